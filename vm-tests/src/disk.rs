//! The disks of a guest.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    filesystem::{self, FileSystem},
    protocol::{DiskPlan, MountPlan},
};

/// The longest serial number that virtio-blk and nvme both report completely.
const SERIAL_BYTES_MAX: usize = 20;

/// The kind of device that a disk is in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attach {
    /// virtio-blk, whose driver is a module that the harness loads.
    Virtio,
    /// NVMe, whose driver is built into the kernel.
    Nvme,
}

/// A disk of a guest. Its name is the serial number that it reports, and the guest finds its device as
/// `/dev/disk/NAME`.
#[derive(Clone, Debug)]
pub struct Disk {
    name: String,
    source: Source,
    attach: Attach,
    writable: bool,
    read_errors: Vec<ReadError>,
    reads_per_second_bytes: Option<u64>,
    mount: Option<(String, FileSystem)>,
    properties: Vec<(String, Value)>,
}

#[derive(Clone, Debug)]
enum Source {
    Null { bytes: u64 },
    File(PathBuf),
    Tree { file_system: FileSystem, dir: PathBuf, bytes: u64 },
}

/// A read that fails with EIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadError {
    sector: u64,
    once: bool,
}

impl ReadError {
    /// Makes every read of this sector (of 512 bytes) fail.
    #[must_use]
    pub fn at_sector(sector: u64) -> Self {
        Self { sector, once: false }
    }

    /// Makes only the first such read fail.
    #[must_use]
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }
}

impl Disk {
    /// Creates a disk that reads as zeroes at full speed, to measure the I/O path without a medium.
    #[must_use]
    pub fn null(name: impl Into<String>, bytes: u64) -> Self {
        Self::new(name, Source::Null { bytes })
    }

    /// Creates a disk whose content is this file of the host. It is read-only unless [`Disk::writable`]
    /// is called.
    #[must_use]
    pub fn file(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self::new(name, Source::File(path.into()))
    }

    /// Creates a disk from a file of the host on which every read of `sector` (of 512 bytes) fails with
    /// EIO.
    #[must_use]
    pub fn with_read_error_at(
        name: impl Into<String>,
        path: impl Into<PathBuf>,
        sector: u64,
    ) -> Self {
        Self::file(name, path).read_error(ReadError::at_sector(sector))
    }

    /// Creates a disk with an ext4 file system of `bytes` with the content of `dir`, writable, made for
    /// each run.
    #[must_use]
    pub fn ext4_from_dir(name: impl Into<String>, dir: impl Into<PathBuf>, bytes: u64) -> Self {
        Self::tree(name, FileSystem::Ext4, dir, bytes).writable()
    }

    /// Creates a disk with an XFS file system of `bytes` (at least 300 MiB) with the content of `dir`,
    /// writable, made for each run.
    #[must_use]
    pub fn xfs_from_dir(name: impl Into<String>, dir: impl Into<PathBuf>, bytes: u64) -> Self {
        Self::tree(name, FileSystem::Xfs, dir, bytes).writable()
    }

    /// Creates a disk with an EROFS file system of the content of `dir`, as large as necessary, made for
    /// each run.
    #[must_use]
    pub fn erofs_from_dir(name: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        Self::tree(name, FileSystem::Erofs, dir, 0)
    }

    /// Sets the kind of device; virtio-blk by default.
    #[must_use]
    pub fn attach(self, attach: Attach) -> Self {
        Self { attach, ..self }
    }

    /// Lets the guest write to it.
    #[must_use]
    pub fn writable(self) -> Self {
        Self { writable: true, ..self }
    }

    /// Adds a failing read.
    #[must_use]
    pub fn read_error(mut self, error: ReadError) -> Self {
        self.read_errors.push(error);
        self
    }

    /// Limits the reads to `bytes` per second, so that a test can act while a read is in flight.
    #[must_use]
    pub fn reads_per_second(self, bytes: u64) -> Self {
        Self { reads_per_second_bytes: Some(bytes), ..self }
    }

    /// Makes the guest mount the disk at `path` before the first task.
    #[must_use]
    pub fn mount(self, path: impl Into<String>, file_system: FileSystem) -> Self {
        Self { mount: Some((path.into(), file_system)), ..self }
    }

    /// Sets a property of the device, as in QEMU's `-device`.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    fn tree(
        name: impl Into<String>,
        file_system: FileSystem,
        dir: impl Into<PathBuf>,
        bytes: u64,
    ) -> Self {
        let name = name.into();
        let at = format!("/disk/{name}");
        let source = Source::Tree { file_system, dir: dir.into(), bytes };
        Self::new(name, source).mount(at, file_system)
    }

    fn new(name: impl Into<String>, source: Source) -> Self {
        Self {
            name: name.into(),
            source,
            attach: Attach::Virtio,
            writable: false,
            read_errors: Vec::new(),
            reads_per_second_bytes: None,
            mount: None,
            properties: Vec::new(),
        }
    }

    /// Returns the modules that the guest needs for the disk.
    pub(crate) fn modules(&self) -> Vec<String> {
        let driver = (self.attach == Attach::Virtio).then_some("virtio_blk");
        let file_system = self.mount.as_ref().map(|(_, file_system)| file_system.kernel_name());
        driver.into_iter().chain(file_system).map(str::to_owned).collect()
    }

    /// Returns the guest's work with the disk before the first task.
    pub(crate) fn plan(&self) -> DiskPlan {
        let mount = self.mount.as_ref().map(|(at, file_system)| MountPlan {
            at: at.clone(),
            file_system: file_system.kernel_name().to_owned(),
            read_only: !self.writable,
        });
        DiskPlan { serial: self.name.clone(), mount }
    }

    /// Makes the disk's image in `scratch` if it needs one, and returns QEMU's arguments for the disk
    /// number `index`.
    pub(crate) fn qemu_args(&self, index: usize, scratch: &Path) -> Result<Vec<String>> {
        if self.name.is_empty() || self.name.len() > SERIAL_BYTES_MAX {
            return Err(Error::Unsupported {
                path: PathBuf::from(&self.name),
                reason: "a disk's name is its serial number and has 1 to 20 bytes",
            });
        }
        let node = format!("disk{index}");
        let file = match &self.source {
            // Without read-zeroes, a read does not change the buffer.
            Source::Null { bytes } => {
                json!({"driver": "null-co", "size": bytes, "read-zeroes": true})
            }
            Source::File(path) => host_file(path)?,
            Source::Tree { file_system, dir, bytes } => {
                let image = scratch.join(format!("{node}.img"));
                filesystem::make_image(*file_system, dir, &image, *bytes)?;
                host_file(&image)?
            }
        };
        let mut file = self.with_read_errors(file);
        let mut args = Vec::new();
        if let Some(bytes) = self.reads_per_second_bytes {
            let group = format!("{node}-limit");
            let limits = json!({"bps-read": bytes});
            let object = json!({"qom-type": "throttle-group", "id": group, "limits": limits});
            args.extend(["-object".into(), object.to_string()]);
            file = json!({"driver": "throttle", "throttle-group": group, "file": file});
        }
        let block = json!({
            "driver": "raw",
            "node-name": node,
            "read-only": !self.writable,
            "file": file,
        });
        let device = match self.attach {
            Attach::Virtio => "virtio-blk-pci",
            Attach::Nvme => "nvme",
        };
        let mut device = json!({"driver": device, "drive": node, "serial": self.name});
        if self.attach == Attach::Virtio && !self.read_errors.is_empty() {
            // Otherwise QEMU merges requests, so a read beside the bad sector fails too.
            device["request-merging"] = false.into();
        }
        for (name, value) in &self.properties {
            device[name] = value.clone();
        }
        args.extend(["-blockdev".into(), block.to_string()]);
        args.extend(["-device".into(), device.to_string()]);
        Ok(args)
    }

    fn with_read_errors(&self, file: Value) -> Value {
        if self.read_errors.is_empty() {
            return file;
        }
        let rules: Vec<_> = self
            .read_errors
            .iter()
            // "none" injects the error into the read itself, not into an event of the format driver.
            .map(|error| {
                json!({
                    "event": "none",
                    "iotype": "read",
                    "errno": 5,
                    "sector": error.sector,
                    "once": error.once,
                })
            })
            .collect();
        json!({"driver": "blkdebug", "image": file, "inject-error": rules})
    }
}

fn host_file(path: &Path) -> Result<Value> {
    // QEMU runs in another folder than the caller, so make the path absolute.
    let path = std::path::absolute(path).map_err(Error::io("finding", path))?;
    match path.to_str() {
        Some(name) => Ok(json!({"driver": "file", "filename": name})),
        None => Err(Error::Unsupported { path, reason: "QEMU needs file names in UTF-8" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(disk: &Disk) -> Value {
        let args = disk.qemu_args(0, Path::new("/nowhere")).unwrap();
        assert_eq!((args[0].as_str(), args[2].as_str()), ("-blockdev", "-device"));
        serde_json::from_str(&args[1]).unwrap()
    }

    #[test]
    fn a_file_is_read_only_by_default() {
        let disk = Disk::file("weights", "/a,b.img");
        assert_eq!(block(&disk)["read-only"], true);
        assert_eq!(block(&disk)["file"]["filename"], "/a,b.img");
        assert_eq!(block(&disk.writable())["read-only"], false);
    }

    #[test]
    fn read_errors_are_injected_between_the_disk_and_the_file() {
        let disk = Disk::with_read_error_at("bad", "/a.img", 80)
            .read_error(ReadError::at_sector(7).once());
        let file = &block(&disk)["file"];
        assert_eq!(file["driver"], "blkdebug");
        assert_eq!(file["image"]["filename"], "/a.img");
        assert_eq!(file["inject-error"][0]["sector"], 80);
        assert_eq!(file["inject-error"][0]["once"], false);
        assert_eq!(file["inject-error"][1]["once"], true);
        let args = disk.qemu_args(0, Path::new("/nowhere")).unwrap();
        let device: Value = serde_json::from_str(&args[3]).unwrap();
        assert_eq!(device["request-merging"], false);
    }

    #[test]
    fn a_limit_is_applied_to_the_file() {
        let disk = Disk::file("slow", "/a.img").reads_per_second(1 << 20);
        let args = disk.qemu_args(3, Path::new("/nowhere")).unwrap();
        assert_eq!(args[0], "-object");
        let object: Value = serde_json::from_str(&args[1]).unwrap();
        assert_eq!(object["limits"]["bps-read"], 1 << 20);
        let block: Value = serde_json::from_str(&args[3]).unwrap();
        assert_eq!(block["file"]["throttle-group"], object["id"]);
        assert_eq!(block["file"]["file"]["filename"], "/a.img");
    }

    #[test]
    fn properties_are_set_on_the_device() {
        let disk = Disk::null("null", 1 << 20).attach(Attach::Nvme).property("mdts", 2);
        let args = disk.property("addr", "10.0").qemu_args(0, Path::new("/nowhere")).unwrap();
        let device: Value = serde_json::from_str(&args[3]).unwrap();
        assert_eq!((&device["mdts"], &device["addr"]), (&2.into(), &"10.0".into()));
    }

    #[test]
    fn the_driver_module_follows_the_attachment() {
        let disk = Disk::null("null", 1 << 20);
        assert_eq!(disk.modules(), ["virtio_blk"]);
        assert!(disk.attach(Attach::Nvme).modules().is_empty());
        assert_eq!(Disk::xfs_from_dir("x", "/d", 1).modules(), ["virtio_blk", "xfs"]);
    }

    #[test]
    fn a_tree_is_mounted_under_its_name() {
        let plan = Disk::erofs_from_dir("image", "/d").plan();
        let mount = plan.mount.unwrap();
        assert_eq!((plan.serial.as_str(), mount.at.as_str()), ("image", "/disk/image"));
        assert!(mount.read_only, "EROFS cannot be written");
        assert!(!Disk::ext4_from_dir("e", "/d", 1).plan().mount.unwrap().read_only);
        assert_eq!(Disk::null("n", 1).plan(), DiskPlan { serial: "n".into(), mount: None });
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        for name in ["", "123456789012345678901"] {
            assert!(Disk::null(name, 1).qemu_args(0, Path::new("/nowhere")).is_err(), "{name}");
        }
        assert!(Disk::null("12345678901234567890", 1).qemu_args(0, Path::new("/")).is_ok());
    }
}
