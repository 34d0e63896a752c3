//! The machines of the NVMe driver's tests.
//!
//! ```text
//!   content (a pattern) ──► nvme-raw, nvme-slow     as it is
//!      └── in an ext4 ────► nvme-file               in many pieces
//! ```
//!
//! The two large files are created once and kept in the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_vm_tests::{
    Attach, Disk, FileSystem, Iommu, Machine, Result, fixture, make_fragmented_ext4,
    quick_static_binary,
};

use super::{Group, failed};

/// Space for the content, for metadata, and for the unused blocks of each block group.
const FILE_DISK_BYTES: u64 = fixture::DRIVEN_BYTES + fixture::DRIVEN_BYTES / 8;
const PROGRAM: &str = "longshore-nvme-example";

pub(super) fn groups(fixtures: &Path, known: &[String]) -> Result<Vec<Group>> {
    let suites: [(&str, Iommu, &'static [&str]); 4] = [
        ("nvme-vfio-intel", Iommu::Intel, &["nvme_vfio_intel"]),
        ("nvme-vfio-virtio", Iommu::Virtio, &["nvme_vfio_virtio"]),
        ("nvme-iommufd-intel", Iommu::Intel, &["nvme_iommufd_intel"]),
        ("nvme-iommufd-virtio", Iommu::Virtio, &["nvme_iommufd_virtio"]),
    ];
    let is_known = |suite: &str| known.iter().any(|name| name.split("::").next() == Some(suite));
    let mut disks = None;
    let mut groups = Vec::new();
    for (name, iommu, suites) in suites {
        if !is_known(suites[0]) {
            continue;
        }
        let disks = match &mut disks {
            Some(disks) => disks,
            none => none.insert(Disks::make(fixtures)?),
        };
        let machine = disks.machine(name, iommu)?;
        let group = Group { machine, suites, timeout: Duration::from_secs(180) };
        let on_iommufd = suites[0].contains("iommufd");
        groups.push(if on_iommufd { group.on_iommufd() } else { group });
    }
    Ok(groups)
}

struct Disks {
    content: PathBuf,
    file: PathBuf,
    /// The folder for disks that a machine writes to.
    scratch: PathBuf,
}

impl Disks {
    fn make(fixtures: &Path) -> Result<Self> {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let content = once(kept.join("nvme-content-1"), |path| {
            fixture::write_file(path, fixture::DRIVEN_SEED, fixture::DRIVEN_BYTES)
                .map_err(|source| failed("writing", path, source))
        })?;
        let file = once(kept.join("nvme-file-1"), |path| {
            let folder = fixtures.join("driven");
            fs::create_dir(&folder).map_err(|source| failed("making", &folder, source))?;
            let link = folder.join(fixture::DRIVEN_FILE);
            fs::hard_link(&content, &link).map_err(|source| failed("linking", &link, source))?;
            let odd = fixture::DRIVEN_ODD_BYTES;
            let path_of_odd = folder.join(fixture::file_name(odd));
            fixture::write_file(&path_of_odd, odd, odd)
                .map_err(|source| failed("writing", &path_of_odd, source))?;
            make_fragmented_ext4(&folder, path, FILE_DISK_BYTES)
        })?;
        Ok(Self { content, file, scratch: fixtures.to_owned() })
    }

    fn machine(&self, name: &str, iommu: Iommu) -> Result<Machine> {
        let at = |disk: Disk, address: &str| {
            // Without domain and bus.
            disk.attach(Attach::Nvme).property("addr", &address["0000:00:".len()..])
        };
        let small = Disk::file("nvme-small", self.small(name)?).writable();
        let small = ["logical_block_size", "physical_block_size"]
            .into_iter()
            .fold(small, |disk, name| disk.property(name, 4096))
            .property("mdts", 2);
        let slow = Disk::file("nvme-slow", &self.content)
            .reads_per_second(fixture::DRIVEN_SLOW_BYTES_PER_SECOND);
        let file = Disk::file("nvme-file", &self.file).mount("/disk/nvme-file", FileSystem::Ext4);
        let program = quick_static_binary(PROGRAM, PROGRAM)?;
        Ok(Machine::new(name)
            .memory_mib(2048)
            .iommu(iommu)
            .module("vfio-pci")
            .module("vfio_iommu_type1")
            .binary(program, "/bin/nvme")
            .disk(at(Disk::file("nvme-raw", &self.content), fixture::DRIVEN_RAW))
            .disk(at(slow, fixture::DRIVEN_SLOW))
            .disk(at(file, fixture::DRIVEN_DISK_OF_FILE))
            .disk(at(small, fixture::DRIVEN_SMALL)))
    }

    /// Creates the disk that the machine `name` writes to. Each machine has its own.
    fn small(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.join(format!("{name}-small"));
        let bytes = fixture::DRIVEN_SMALL_BYTES;
        fixture::write_file(&path, fixture::DRIVEN_SMALL_SEED, bytes)
            .and_then(|()| fs::File::options().write(true).open(&path)?.set_len(2 * bytes))
            .map_err(|source| failed("writing", &path, source))?;
        Ok(path)
    }
}

/// Returns the file, creating it if it does not exist. An interrupted creation leaves no file of this
/// name.
fn once(path: PathBuf, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    if !path.exists() {
        let unfinished = path.with_extension(format!("unfinished-{}", std::process::id()));
        make(&unfinished)?;
        fs::rename(&unfinished, &path).map_err(|source| failed("naming", &path, source))?;
    }
    Ok(path)
}
