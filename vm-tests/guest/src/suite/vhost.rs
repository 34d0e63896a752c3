//! The disk that `examples/vhost` serves: reads return its content, writes are kept, also behind an
//! IOMMU, and its writes to guest memory survive a migration.

mod reader;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use longshore_mem::FileOffset;
use longshore_sys::{
    file::{self, ReadFlags},
    memfd::{self, Backing},
};
use longshore_vm_tests::{
    fixture::{
        VHOST_CONTENT_BYTES, VHOST_CONTROL_AT, VHOST_CONTROL_BYTES, VHOST_DISK_BYTES,
        VHOST_READING, VHOST_SEED, VHOST_SERIAL,
    },
    pattern,
};

use self::reader::{Ended, Reader};
use super::{Suite, Test};
use crate::{
    mapped::Mapped,
    outcome::{Passed, TestResult, ensure},
};

pub(super) const SUITE: Suite = Suite {
    name: "vhost",
    tests: &[
        Test { name: "the_disk_is_right", run: the_disk_is_right },
        Test { name: "the_disk_is_right_behind_an_iommu", run: behind_an_iommu },
        Test { name: "memory_is_right_after_a_migration", run: after_a_migration },
        Test {
            name: "memory_is_right_after_a_migration_behind_an_iommu",
            run: after_a_migration_behind_an_iommu,
        },
    ],
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SCRATCH_AT: u64 = VHOST_CONTROL_AT + VHOST_CONTROL_BYTES;
const CHUNK_BYTES: u64 = 1 << 20;
/// The maximum wait for the disk, which the kernel probes in the background.
const APPEARANCE_LIMIT: Duration = Duration::from_secs(20);
/// After this time without a read, the disk is considered stuck.
const STUCK: Duration = Duration::from_secs(15);

fn the_disk_is_right() -> TestResult {
    Disk::untranslated()?.exercise(11)
}

fn behind_an_iommu() -> TestResult {
    Disk::translated()?.exercise(12)
}

fn after_a_migration() -> TestResult {
    migrate(&Disk::untranslated()?)
}

fn after_a_migration_behind_an_iommu() -> TestResult {
    migrate(&Disk::translated()?)
}

/// Reads continue while the host migrates the machine. Then each page must have the content of its last
/// read.
fn migrate(disk: &Disk) -> TestResult {
    let reader = Reader::start(disk.open_direct()?)?;
    reader.wait_until_each_was_read(STUCK)?;
    println!("{VHOST_READING}");
    let ended = reader.wait_for_the_move(STUCK);
    // Check before any other read, which could repair a stale page.
    let found = reader.look()?;
    println!("{found:?}, after {} reads: {ended:?}", reader.reads());
    ensure!(found.stale == 0, "{} of {} pages are stale; {ended:?}", found.stale, found.looked_at);
    ensure!(matches!(ended, Ended::Moved), "the disk does not go on: {ended:?}");
    ensure!(found.looked_at > 1000, "only {} pages were looked at", found.looked_at);
    disk.exercise(13)
}

/// The disk.
struct Disk {
    device: PathBuf,
    /// Its folder in sysfs.
    folder: PathBuf,
}

impl Disk {
    /// Finds the disk, and checks that it is not behind an IOMMU.
    fn untranslated() -> Result<Self> {
        let disk = Self::find()?;
        ensure!(!disk.is_behind_iommu(), "the disk is behind an IOMMU");
        Ok(disk)
    }

    /// Finds the disk, and checks that it is behind an IOMMU.
    fn translated() -> Result<Self> {
        let disk = Self::find()?;
        ensure!(disk.is_behind_iommu(), "the disk is not behind an IOMMU, or not translated by it");
        Ok(disk)
    }

    fn find() -> Result<Self> {
        let started = Instant::now();
        loop {
            for entry in fs::read_dir("/sys/block")? {
                let folder = entry?.path();
                let serial = fs::read_to_string(folder.join("serial")).unwrap_or_default();
                if serial.trim() == VHOST_SERIAL {
                    let name = folder.file_name().ok_or("a disk without a name")?;
                    return Ok(Self { device: Path::new("/dev").join(name), folder });
                }
            }
            ensure!(started.elapsed() < APPEARANCE_LIMIT, "no disk has the serial {VHOST_SERIAL}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns `true` if an IOMMU translates the addresses that the kernel gives the disk.
    fn is_behind_iommu(&self) -> bool {
        // …/0000:00:05.0/virtio0/block/vda
        let device = fs::canonicalize(self.folder.join("device")).unwrap_or_default();
        let group = device.ancestors().nth(1).map(|pci| pci.join("iommu_group/type"));
        let kind = group.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        kind.starts_with("DMA")
    }

    fn open_direct(&self) -> Result<File> {
        Ok(File::options().read(true).custom_flags(libc::O_DIRECT).open(&self.device)?)
    }

    /// Reads the whole content, writes a part, and reads that.
    fn exercise(&self, seed: u64) -> TestResult {
        let size = fs::read_to_string(self.folder.join("size"))?;
        let sectors: u64 = size.trim().parse()?;
        ensure!(sectors * 512 == VHOST_DISK_BYTES, "it has {sectors} sectors");
        let direct = self.open_direct()?;
        let target = memfd::create("target", Backing::Shmem)?;
        memfd::set_len(&target, CHUNK_BYTES)?;
        let mut target = Mapped::new(&target, CHUNK_BYTES)?;
        for at in (0..VHOST_CONTENT_BYTES).step_by(CHUNK_BYTES as usize) {
            read_chunk(&direct, &mut target, at, VHOST_SEED, at)?;
        }
        let file = File::options().write(true).open(&self.device)?;
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        for chunk in 0..8 {
            // Not aligned to the kernel's own blocks.
            pattern::fill(seed, chunk * CHUNK_BYTES, &mut bytes);
            file.write_all_at(&bytes, SCRATCH_AT + chunk * CHUNK_BYTES)?;
        }
        // The kernel writes its dirty pages, and makes the device flush.
        file.sync_all()?;
        for chunk in 0..8 {
            let at = chunk * CHUNK_BYTES;
            read_chunk(&direct, &mut target, SCRATCH_AT + at, seed, at)?;
        }
        Ok(Passed::Yes)
    }
}

/// Reads a chunk from the disk at `at`, and compares it with the content with this seed from `offset`
/// on.
fn read_chunk(disk: &File, into: &mut Mapped, at: u64, seed: u64, offset: u64) -> Result<()> {
    let mut done = 0;
    while done < CHUNK_BYTES as usize {
        let mut view = into.view_mut();
        let mut part = view.subslice_mut(done, CHUNK_BYTES as usize - done)?;
        let from = FileOffset::new(at + done as u64);
        let read = file::read_at(disk, &mut part, from, ReadFlags::default())?;
        ensure!(read > 0, "the disk ends at {from:?}");
        done += read;
    }
    let mut bytes = vec![0; CHUNK_BYTES as usize];
    into.view().read(0, &mut bytes)?;
    let difference = pattern::first_difference(seed, offset, &bytes);
    ensure!(difference.is_none(), "at {at:#x}: byte {difference:?} of content {seed} differs");
    Ok(())
}
