//! The machines that the guest tests run in, and which suites run in which.

#[path = "nvme.rs"]
mod nvme;

use std::{env, fs, io, path::Path, time::Duration};

use longshore_vm_tests::{
    Attach, Disk, Error, FileSystem, Flavor, Iommu, Machine, Result, ext4_sector_of, fixture,
    make_image,
};

/// Room for the file system of the one large file.
const LARGE_DISK_BYTES: u64 = 2 * fixture::LARGE_FILE_BYTES;

/// A machine and the suites that run in it, in one boot.
pub(crate) struct Group {
    pub(crate) machine: Machine,
    pub(crate) suites: &'static [&'static str],
    /// The limit of each of their tests.
    pub(crate) timeout: Duration,
}

impl Group {
    /// The same, with the kernel that has iommufd.
    fn on_iommufd(self) -> Self {
        Self { machine: self.machine.kernel(Flavor::Iommufd), ..self }
    }
}

/// A folder with the content of every disk.
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

/// Whether the tests of iommufd are asked for. Their kernel takes minutes to build.
pub(crate) fn has_iommufd() -> bool {
    env::var("LONGSHORE_VM_IOMMUFD").as_deref() == Ok("1")
}

/// All machines, of those that take long to prepare only what the tests `known` are for. The disks'
/// content is in `fixtures`.
pub(crate) fn groups(fixtures: &Path, known: &[String]) -> Result<Vec<Group>> {
    let passthrough = |name, iommu, suites| Group {
        machine: passthrough(name, iommu),
        suites,
        // Of the guest's time, most of which is skipped.
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

/// A machine with a device to pass through to a process. It copies in 100 ms of the guest's time,
/// which cost nothing where the guest's time is that of its instructions.
fn passthrough(name: &str, iommu: Iommu) -> Machine {
    Machine::new(name)
        .iommu(iommu)
        .counting_instructions()
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .device("edu,addr=06.0,multifunction=on,dma_mask=0xffffffffffffffff")
        // In one group with it; the tests take it from the kernel's driver.
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

/// A file system that is whole but for a sector in the middle of its one file.
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
