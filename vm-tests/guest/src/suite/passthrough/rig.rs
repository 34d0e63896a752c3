//! A backend that remembers what it has mapped, and a device behind it that is judged by the bytes.
//!
//! ```text
//!   Domain ─► Watched ─► Vfio or Iommufd          Journal   which file's bytes lie, or lay, at an IOVA
//!                │                                   ▲
//!                └── each mapping, its file ─────────┤
//!   suite ─► Passed ── DMA by edu ──► IOMMU          │
//!                └── looks whether bytes changed ────┘
//! ```
//!
//! A stray access of a device is blocked without a word: the device goes on as if it had been done. So
//! a write is looked for in the memory, also in memory that was unmapped: the journal keeps its file.
#![expect(unsafe_code, reason = "passes on what a domain maps, and maps a mailbox")]

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_domain::backend::{Backend, BackendError, Device, Iommufd, Limits, Piece, Vfio};
use longshore_domain::{Builder, Domain};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{AddrRange, DmaMemory, Granule, Iova};
use longshore_pagetable::Prot;

use super::conformance;
use super::edu::{self, COPY_BYTES, Edu};

/// Which of the kernel's interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interface {
    Vfio,
    Iommufd,
}

impl Interface {
    /// The device as it is, given to vfio-pci and otherwise untouched.
    pub(super) fn open(
        self,
        address: &str,
    ) -> Result<(Box<dyn Backend>, Device), longshore_domain::backend::OpenError> {
        Ok(match self {
            Self::Vfio => {
                let (backend, device) = Vfio::open_device(address)?;
                (Box::new(backend), device)
            }
            Self::Iommufd => {
                let (backend, device) = Iommufd::open_device(address)?;
                (Box::new(backend), device)
            }
        })
    }

    /// Where the administrator allows what virtio-iommu cannot isolate.
    pub(super) fn unsafe_interrupts(self) -> &'static str {
        match self {
            Self::Vfio => "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
            Self::Iommufd => "/sys/module/iommufd/parameters/allow_unsafe_interrupts",
        }
    }

    /// All that must be done before a device can be opened; where sysfs has the device.
    pub(super) fn prepare(self) -> Result<std::path::PathBuf, Box<dyn Error>> {
        let folder = edu::folder()?;
        if !fs::read_link(folder.join("driver")).is_ok_and(|driver| driver.ends_with("vfio-pci")) {
            edu::set_driver(&folder, Some("vfio-pci"))?;
        }
        if !remaps_interrupts() {
            fs::write(self.unsafe_interrupts(), "1")?;
        }
        Ok(folder)
    }
}

/// Whether the machine's IOMMU is one that isolates interrupts: here VT-d, and not virtio-iommu.
pub(super) fn remaps_interrupts() -> bool {
    Path::new("/sys/class/iommu/dmar0").exists()
}

impl conformance::Rig for Interface {
    type Device = Passed;

    fn domain(&self) -> (Builder, Passed) {
        self.domain_and_device().unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Interface {
    pub(super) fn domain_and_device(self) -> Result<(Builder, Passed), Box<dyn Error>> {
        let folder = self.prepare()?;
        let (backend, device) = self.open(&edu::address(&folder))?;
        let edu = Edu::new(device)?;
        let mailbox = Arc::new(Mailbox::new()?);
        let journal = Arc::new(Mutex::default());
        let watched = Watched::new(backend, Arc::clone(&mailbox), Arc::clone(&journal))?;
        Ok((Domain::builder(watched), Passed { edu, mailbox, journal }))
    }
}

/// Memory that the device and the test exchange bytes by, mapped beside what the domain maps.
struct Mailbox {
    buffer: Buffer,
    /// The same memory, for calls.
    file: File,
}

/// Below 4 GiB, and where no test of the suite maps anything.
const MAILBOX: Iova = Iova::new(0x7000_0000);
const MAILBOX_BYTES: u64 = 4096;

impl Mailbox {
    fn new() -> Result<Self, Box<dyn Error>> {
        let buffer = Heap::Memfd.allocate(MAILBOX_BYTES)?;
        let file = file_of(&buffer)?;
        Ok(Self { buffer, file })
    }
}

/// The memfd behind a buffer.
fn file_of(buffer: &Buffer) -> Result<File, Box<dyn Error>> {
    // SAFETY: no slice of the buffer is borrowed while the file is written.
    let file = unsafe { buffer.file() };
    let (file, _) = file.ok_or("a memfd has a file")?;
    Ok(File::from(file.try_clone_to_owned()?))
}

/// A mapping that is, or was.
struct Entry {
    range: AddrRange<Iova>,
    file: File,
    file_offset: u64,
    is_mapped: bool,
}

/// What was mapped, the last first.
#[derive(Default)]
struct Journal(VecDeque<Entry>);

/// As many are looked at after they were unmapped; each keeps a descriptor and its memory.
const PAST_MAX: usize = 64;

impl Journal {
    fn add(&mut self, entry: Entry) {
        self.0.push_front(entry);
        let mut past = 0;
        self.0.retain(|entry| {
            past += usize::from(!entry.is_mapped);
            entry.is_mapped || past <= PAST_MAX
        });
    }

    fn remove(&mut self, range: AddrRange<Iova>) {
        let is_it = |entry: &&mut Entry| entry.is_mapped && entry.range == range;
        if let Some(entry) = self.0.iter_mut().find(is_it) {
            entry.is_mapped = false;
        }
    }

    /// The file whose bytes lie at `wanted`, or lay there last, and where.
    fn find(&self, wanted: AddrRange<Iova>) -> Option<(&File, u64)> {
        let entry = self.0.iter().find(|entry| entry.range.contains_range(wanted))?;
        let skip = wanted.start().raw() - entry.range.start().raw();
        Some((&entry.file, entry.file_offset + skip))
    }
}

struct Watched {
    backend: Box<dyn Backend>,
    mailbox: Arc<Mailbox>,
    journal: Arc<Mutex<Journal>>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.backend.fmt(f)
    }
}

impl Watched {
    fn new(
        backend: Box<dyn Backend>,
        mailbox: Arc<Mailbox>,
        journal: Arc<Mutex<Journal>>,
    ) -> Result<Self, BackendError> {
        let host = mailbox.buffer.host().cast();
        let piece = Piece { host, len_bytes: MAILBOX_BYTES, file: None };
        // SAFETY: the mailbox lives until it is unmapped, when `self` is dropped, and nobody borrows
        // its bytes.
        unsafe { backend.map(MAILBOX, piece, Prot::READ_WRITE) }?;
        Ok(Self { backend, mailbox, journal })
    }

    fn window() -> AddrRange<Iova> {
        AddrRange::new(MAILBOX, MAILBOX_BYTES).expect("it ends below all addresses' end")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: mapped when this was made, and not unmapped since.
        let unmapped = unsafe { self.backend.unmap(&[Self::window()]) };
        if unmapped.is_err() {
            // The device may write to it for ever.
            std::mem::forget(Arc::clone(&self.mailbox));
        }
    }
}

// SAFETY: the calls are passed on.
unsafe impl Backend for Watched {
    fn limits(&self) -> Limits {
        let mut limits = self.backend.limits();
        limits.reserved.push(Self::window());
        limits
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.map(iova, piece, prot) }?;
        if let Some((file, at)) = piece.file {
            let file = file.try_clone_to_owned().expect("a descriptor for the journal").into();
            let range = AddrRange::new(iova, piece.len_bytes).expect("it was mapped");
            let entry = Entry { range, file, file_offset: at.raw(), is_mapped: true };
            lock(&self.journal).add(entry);
        }
        Ok(())
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.unmap(ranges) }?;
        ranges.iter().for_each(|range| lock(&self.journal).remove(*range));
        Ok(())
    }
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is in the device's buffer before it reads: one, and another where that is what it read.
const PRIMERS: [u8; 2] = [0xa5, 0x5a];

/// A device that was passed through to this process.
pub(super) struct Passed {
    edu: Edu,
    mailbox: Arc<Mailbox>,
    journal: Arc<Mutex<Journal>>,
}

impl Passed {
    /// Puts bytes into the device's buffer.
    fn load(&self, bytes: &[u8]) {
        self.mailbox.file.write_all_at(bytes, 0).expect("a memfd");
        self.edu.fetch(MAILBOX.raw(), bytes.len());
    }

    /// Whether something could be read: a device that is refused keeps what it had, or gets zeros.
    fn read_some(&self, iova: Iova, into: &mut [u8]) -> bool {
        PRIMERS.iter().any(|primer| {
            self.load(&vec![*primer; into.len()]);
            self.edu.fetch(iova.raw(), into.len());
            self.edu.store(MAILBOX.raw(), into.len());
            self.mailbox.file.read_exact_at(into, 0).expect("a memfd");
            ![0, *primer].iter().any(|none| into.iter().all(|byte| byte == none))
        })
    }

    /// Whether the bytes arrived where they are, or were, mapped, or anywhere that can be read.
    fn write_some(&self, iova: Iova, from: &[u8]) -> bool {
        self.load(from);
        let range = AddrRange::new(iova, from.len() as u64).expect("addresses of a test");
        let journal = lock(&self.journal);
        let Some((file, at)) = journal.find(range) else {
            drop(journal);
            self.edu.store(iova.raw(), from.len());
            let mut seen = vec![0; from.len()];
            return self.read_some(iova, &mut seen) && seen == from;
        };
        let (mut before, mut after) = (vec![0; from.len()], vec![0; from.len()]);
        file.read_exact_at(&mut before, at).expect("a memfd");
        // Each byte something else than what is to arrive.
        let other: Vec<u8> = from.iter().map(|byte| !byte).collect();
        file.write_all_at(&other, at).expect("a memfd");
        self.edu.store(iova.raw(), from.len());
        file.read_exact_at(&mut after, at).expect("a memfd");
        if after == from {
            return true;
        }
        assert_eq!(after, other, "a part of a write arrived");
        file.write_all_at(&before, at).expect("a memfd");
        false
    }

    /// Has the device write without asking whether it could.
    pub(super) fn store(&self, iova: Iova, bytes: &[u8]) {
        self.load(bytes);
        self.edu.store(iova.raw(), bytes.len());
    }

    /// As [`conformance::Device::read`].
    pub(super) fn fetch(&self, iova: Iova, into: &mut [u8]) -> bool {
        let mut at = iova;
        into.chunks_mut(COPY_BYTES).all(|part| {
            let done = self.read_some(at, part);
            at = Iova::new(at.raw() + part.len() as u64);
            done
        })
    }
}

impl conformance::Device for Passed {
    fn read(&self, iova: Iova, into: &mut [u8]) -> bool {
        self.fetch(iova, into)
    }

    fn write(&self, iova: Iova, from: &[u8]) -> bool {
        let mut at = iova;
        from.chunks(COPY_BYTES).all(|part| {
            let done = self.write_some(at, part);
            at = Iova::new(at.raw() + part.len() as u64);
            done
        })
    }
}

/// What the machine's pages are like: the granule of both backends here.
pub(super) const GRANULE: Granule = Granule::SIZE_4K;
