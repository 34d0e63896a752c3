//! The machines that the guest tests run in, and which suites run in which.

#[path = "nvme.rs"]
mod nvme;

use std::{env, fs, io, path::Path, time::Duration};

use longshore_vm_tests::{
    Attach, Disk, Error, FileSystem, Flavor, Iommu, Machine, Result, ext4_sector_of, fixture,
    make_image,
};

/// Space for the file system with the single large file.
const LARGE_DISK_BYTES: u64 = 2 * fixture::LARGE_FILE_BYTES;

/// A machine and the suites that run in one boot of it.
pub(crate) struct Group {
    pub(crate) machine: Machine,
    pub(crate) suites: &'static [&'static str],
    /// The time limit of each test.
    pub(crate) timeout: Duration,
}

impl Group {
    /// Returns the group with the kernel that has iommufd.
    fn on_iommufd(self) -> Self {
        Self { machine: self.machine.kernel(Flavor::Iommufd), ..self }
    }
}

/// Creates a folder with the content of all disks.
pub(crate) fn fixtures() -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let dir =
        dir.map_err(|source| failed("making a folder in", env!("CARGO_TARGET_TMPDIR"), source))?;
    let at = dir.path();
    write(at).map_err(|source| failed("writing", at, source))?;
    Ok(dir)
}

fn write(at: &Path) -> io::Result<()> {
    for (name, seed) in
        [("virtio", fixture::VIRTIO_SEED), ("nvme", fixture::NVME_SEED), ("bad", fixture::BAD_SEED)]
    {
        fixture::write_file(&at.join(name), seed, fixture::RAW_DISK_BYTES)?;
    }
    for folder in ["sized", "large"] {
        fs::create_dir(at.join(folder))?;
    }
    fixture::write_sized_files(&at.join("sized"))?;
    let len = fixture::LARGE_FILE_BYTES;
    fixture::write_file(&at.join("large").join(fixture::file_name(len)), len, len)
}

/// Returns `true` if the tests of iommufd are enabled. Their kernel takes minutes to build.
pub(crate) fn has_iommufd() -> bool {
    env::var("LONGSHORE_VM_IOMMUFD").as_deref() == Ok("1")
}

/// Returns all groups; those that take long to prepare only if `known` has tests of them. `fixtures` has
/// the content of the disks.
pub(crate) fn groups(fixtures: &Path, known: &[String]) -> Result<Vec<Group>> {
    let passthrough = |name, iommu, suites| Group {
        machine: passthrough(name, iommu),
        suites,
        // Guest time, most of which is skipped.
        timeout: Duration::from_secs(3600),
    };
    let mut groups = vec![
        Group {
            machine: plain(fixtures)?,
            suites: &["kernel", "heap", "load", "access"],
            timeout: Duration::from_secs(90),
        },
        passthrough("vfio-intel", Iommu::Intel, &["vfio_intel"]),
        passthrough("vfio-virtio", Iommu::Virtio, &["vfio_virtio"]),
    ];
    if has_iommufd() {
        groups.push(passthrough("iommufd-intel", Iommu::Intel, &["iommufd_intel"]).on_iommufd());
        groups.push(passthrough("iommufd-virtio", Iommu::Virtio, &["iommufd_virtio"]).on_iommufd());
    }
    groups.extend(nvme::groups(fixtures, known)?);
    Ok(groups)
}

/// A machine with a device to pass through to a process. The device takes 100 ms of guest time to copy,
/// which take no host time in a machine that counts instructions.
fn passthrough(name: &str, iommu: Iommu) -> Machine {
    Machine::new(name)
        .iommu(iommu)
        .counting_instructions()
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .device("edu,addr=06.0,multifunction=on,dma_mask=0xffffffffffffffff")
        // In the same group; the tests unbind it from the kernel's driver.
        .device("pci-serial,addr=06.1")
}

fn plain(fixtures: &Path) -> Result<Machine> {
    let sized = fixtures.join("sized");
    Ok(Machine::new("plain")
        .module("overlay")
        .disk(Disk::file("virtio", fixtures.join("virtio")))
        .disk(Disk::file("nvme", fixtures.join("nvme")).attach(Attach::Nvme))
        .disk(Disk::with_read_error_at("bad", fixtures.join("bad"), fixture::BAD_SECTOR))
        .disk(Disk::ext4_from_dir("ext4", &sized, 128 << 20))
        .disk(Disk::xfs_from_dir("xfs", &sized, 320 << 20).attach(Attach::Nvme))
        .disk(Disk::erofs_from_dir("erofs", &sized))
        .disk(broken(fixtures)?)
        .disk(
            Disk::ext4_from_dir("slow", fixtures.join("large"), LARGE_DISK_BYTES)
                .reads_per_second(fixture::SLOW_BYTES_PER_SECOND),
        ))
}

/// Creates a disk whose file system is intact except for one unreadable sector in its only file.
fn broken(fixtures: &Path) -> Result<Disk> {
    let image = fixtures.join("broken");
    make_image(FileSystem::Ext4, &fixtures.join("large"), &image, LARGE_DISK_BYTES)?;
    let file = format!("/{}", fixture::file_name(fixture::LARGE_FILE_BYTES));
    let sector = ext4_sector_of(&image, &file, fixture::BROKEN_AT)?;
    Ok(Disk::with_read_error_at("broken", image, sector).mount("/disk/broken", FileSystem::Ext4))
}

fn failed(operation: &'static str, path: impl AsRef<Path>, source: io::Error) -> Error {
    Error::Io { operation, path: path.as_ref().to_owned(), source }
}
