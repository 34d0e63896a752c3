//! The guest's file system, as one file that QEMU passes to the kernel.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use crate::{
    cpio::Writer,
    error::{Error, Result},
    kernel::Module,
    protocol::{PLAN_PATH, Plan},
};

/// A file to put into the guest.
#[derive(Clone, Debug)]
pub(crate) struct GuestFile {
    pub(crate) at: String,
    pub(crate) content: Content,
    pub(crate) executable: bool,
}

/// The source of a guest file's content.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    HostFile(PathBuf),
    Bytes(Vec<u8>),
}

/// The content of an initramfs, except the plan.
#[derive(Debug)]
pub(crate) struct Initramfs<'a> {
    pub(crate) init: &'a Path,
    pub(crate) modules: &'a [Module],
    pub(crate) files: &'a [GuestFile],
}

impl Initramfs<'_> {
    /// Writes the initramfs to `path`, and adds the paths of the modules to `plan`.
    pub(crate) fn write(&self, path: &Path, mut plan: Plan) -> Result<()> {
        let failed = || Error::io("writing", path);
        let file = File::create(path).map_err(failed())?;
        let mut cpio = Writer::new(BufWriter::new(file));
        // The kernel opens this for init before init can mount anything.
        cpio.character_device("/dev/console", 5, 1).map_err(failed())?;
        for folder in ["/proc", "/sys", "/tmp", "/run"] {
            cpio.directory(folder).map_err(failed())?;
        }
        cpio.file("/init", true, &read(self.init)?).map_err(failed())?;
        for (index, module) in self.modules.iter().enumerate() {
            let at = format!("/modules/{index:02}-{}.ko", module.name());
            cpio.file(&at, false, &module.content()?).map_err(failed())?;
            plan.modules.push(at);
        }
        for guest_file in self.files {
            let content = match &guest_file.content {
                Content::HostFile(path) => &read(path)?,
                Content::Bytes(bytes) => bytes,
            };
            cpio.file(&guest_file.at, guest_file.executable, content).map_err(failed())?;
        }
        cpio.file(PLAN_PATH, false, plan.to_json().as_bytes()).map_err(failed())?;
        cpio.finish().and_then(|mut out| out.flush()).map_err(failed())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io("reading", path))
}
