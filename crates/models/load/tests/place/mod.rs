//! A source on a disk and a tmpfs for a test.
//!
//! Each test has a tmpfs of its own, mounted in a mount namespace of the test's thread.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use longshore_load::{Error, Published, Publisher};
use longshore_sys::namespace;

/// The folders of a test: one on a disk for sources, and a tmpfs.
pub(crate) struct Place {
    pub(crate) disk: tempfile::TempDir,
    pub(crate) tmpfs: PathBuf,
}

impl Place {
    pub(crate) fn source(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// Writes a file with parents.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.source(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Writes a model of four files in `model`.
    pub(crate) fn model(&self) -> PathBuf {
        self.write("model/model.safetensors", &safetensors(5_000_000));
        self.write("model/config.json", b"{}");
        self.write("model/empty", b"");
        self.write("model/onnx/model.onnx", &[7; 4096]);
        self.source("model")
    }

    pub(crate) fn publisher(&self) -> Publisher<'static> {
        Publisher::new(&self.tmpfs)
    }

    pub(crate) fn publish(&self, source: &Path) -> Result<Published, Error> {
        self.publisher().publish(source)
    }

    /// Returns the names in the tmpfs, also hidden ones.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&self.tmpfs)
    }
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns a safetensors file with one tensor.
pub(crate) fn safetensors(len_bytes: usize) -> Vec<u8> {
    let mut header =
        format!(r#"{{"t":{{"dtype":"U8","shape":[{len_bytes}],"data_offsets":[0,{len_bytes}]}}}}"#);
    while header.len() % 8 > 0 {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..len_bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]));
    file
}

/// Runs `test` with a tmpfs of these options, which disappears with the thread.
pub(crate) fn with_tmpfs(options: &str, test: impl FnOnce(&Place) + Send + 'static) {
    let options = format!("mode=0755,{options}\0");
    let thread = thread::spawn(move || {
        match namespace::enter() {
            Ok(namespace::Entered::Mounts) => {}
            // Only root can make a mount namespace for one thread.
            other => return println!("SKIPPED: no mount namespace for a thread: {other:?}"),
        }
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(disk.path(), Permissions::from_mode(0o755)).unwrap();
        let tmpfs = disk.path().canonicalize().unwrap().join("tmpfs");
        fs::create_dir(&tmpfs).unwrap();
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        if let Err(error) = rustix::mount::mount("longshore", &tmpfs, "tmpfs", flags, options) {
            return println!("SKIPPED: a tmpfs cannot be mounted: {error}");
        }
        let place = Place { disk, tmpfs };
        test(&place);
        rustix::mount::unmount(&place.tmpfs, rustix::mount::UnmountFlags::DETACH).unwrap();
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while !thread.is_finished() {
        // The mount namespace ends with the process.
        assert!(Instant::now() < deadline, "the test hangs");
        thread::sleep(Duration::from_millis(5));
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
