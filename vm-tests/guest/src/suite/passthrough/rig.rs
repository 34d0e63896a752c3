//! A backend that records its mappings, and a device behind it that is checked by comparing bytes.
//!
//! ```text
//!   Domain ─► Watched ─► Vfio or Iommufd          Journal   the file whose bytes are, or were, at an IOVA
//!                │                                   ▲
//!                └── each mapping, its file ─────────┤
//!   suite ─► Passed ── DMA by edu ──► IOMMU          │
//!                └── checks whether bytes changed ───┘
//! ```
//!
//! The IOMMU blocks a stray access without a report: the device continues as if it had been done. So a
//! test looks for a write in the memory, including unmapped memory, whose file the journal keeps.
#![expect(unsafe_code, reason = "passes on what a domain maps, and maps a mailbox")]

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_domain::backend::{Backend, BackendError, Device, Iommufd, Limits, Piece, Vfio};
use longshore_domain::{Bounce, Builder, Domain};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{AddrRange, DmaMemory, Granule, Iova};
use longshore_pagetable::Prot;

use super::conformance;
use super::edu::{self, COPY_BYTES, Edu};

/// The kernel's interface to the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interface {
    Vfio,
    Iommufd,
}

impl Interface {
    /// Returns the name, which is passed to another process.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Vfio => "vfio",
            Self::Iommufd => "iommufd",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Vfio, Self::Iommufd].into_iter().find(|interface| interface.name() == name)
    }

    /// Opens the device without watching it; it must be bound to vfio-pci.
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

    /// Returns the file in which the administrator allows devices without interrupt isolation, as behind
    /// virtio-iommu.
    pub(super) fn unsafe_interrupts(self) -> &'static str {
        match self {
            Self::Vfio => "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
            Self::Iommufd => "/sys/module/iommufd/parameters/allow_unsafe_interrupts",
        }
    }

    /// Prepares the device for opening, and returns its folder in sysfs.
    pub(super) fn prepare(self) -> Result<std::path::PathBuf, Box<dyn Error>> {
        let folder = edu::folder()?;
        if !fs::read_link(folder.join("driver")).is_ok_and(|driver| driver.ends_with("vfio-pci")) {
            edu::set_driver(&folder, Some("vfio-pci"))?;
        }
        let neighbour = edu::neighbour(&folder);
        if neighbour.join("driver").exists() {
            edu::set_driver(&neighbour, None)?;
        }
        if !remaps_interrupts() {
            fs::write(self.unsafe_interrupts(), "1")?;
        }
        Ok(folder)
    }
}

/// Returns `true` if the machine's IOMMU isolates interrupts: VT-d does, virtio-iommu does not.
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
        // Most tests access the memory while it is mapped.
        let builder = Domain::builder(watched).bounce(Bounce::Never);
        Ok((builder, Passed { edu, mailbox, journal }))
    }
}

/// Memory through which the device and the test exchange bytes, mapped beside the domain's mappings.
struct Mailbox {
    buffer: Buffer,
    /// The same memory as a file.
    file: File,
}

/// Below 4 GiB, at an address that no test of the suite maps.
const MAILBOX: Iova = Iova::new(0x7000_0000);
const MAILBOX_BYTES: u64 = 4096;

impl Mailbox {
    fn new() -> Result<Self, Box<dyn Error>> {
        let buffer = Heap::Memfd.allocate(MAILBOX_BYTES)?;
        let file = file_of(&buffer)?;
        Ok(Self { buffer, file })
    }
}

/// Returns the memfd of a buffer.
fn file_of(buffer: &Buffer) -> Result<File, Box<dyn Error>> {
    // SAFETY: no slice of the buffer is borrowed while the file is written.
    let file = unsafe { buffer.file() };
    let (file, _) = file.ok_or("a memfd has a file")?;
    Ok(File::from(file.try_clone_to_owned()?))
}

/// An existing or earlier mapping.
struct Entry {
    range: AddrRange<Iova>,
    /// A file through which the bytes can be read: the memory's own file, or this process's memory.
    file: File,
    file_offset: u64,
    /// `true` if the file keeps the memory, so that it can be read after the unmap.
    keeps: bool,
    is_mapped: bool,
}

/// The mappings, the latest first.
#[derive(Default)]
struct Journal(VecDeque<Entry>);

/// The maximum number of unmapped entries; each keeps a descriptor and its memory.
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
        self.0.retain_mut(|entry| {
            if entry.is_mapped && range.contains_range(entry.range) {
                entry.is_mapped = false;
            }
            entry.is_mapped || entry.keeps
        });
    }

    /// Returns the place of the bytes that are at `wanted`, or were there last.
    fn find(&self, wanted: AddrRange<Iova>) -> Option<Place<'_>> {
        let entry = self.0.iter().find(|entry| entry.range.contains_range(wanted))?;
        let at = entry.file_offset + (wanted.start().raw() - entry.range.start().raw());
        Some(Place { file: &entry.file, at, is_mapped: entry.is_mapped })
    }
}

/// Bytes that a device may access.
struct Place<'a> {
    file: &'a File,
    at: u64,
    is_mapped: bool,
}

impl Place<'_> {
    fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, self.at).expect("memory of a mapping");
        bytes
    }

    fn write(&self, bytes: &[u8]) {
        self.file.write_all_at(bytes, self.at).expect("memory of a mapping");
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
        let piece = Piece::new(host, MAILBOX_BYTES, None);
        // SAFETY: the mailbox lives until it is unmapped, when `self` is dropped, and its bytes are
        // never borrowed.
        unsafe { backend.map(MAILBOX, piece, Prot::READ_WRITE) }?;
        Ok(Self { backend, mailbox, journal })
    }

    fn window() -> AddrRange<Iova> {
        AddrRange::new(MAILBOX, MAILBOX_BYTES).expect("it ends below all addresses' end")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: mapped when `self` was created, and not unmapped since.
        let unmapped = unsafe { self.backend.unmap(&[Self::window()]) };
        if unmapped.is_err() {
            // The device may still write to it, so it is never freed.
            std::mem::forget(Arc::clone(&self.mailbox));
        }
    }
}

// SAFETY: all calls are passed on.
unsafe impl Backend for Watched {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn limits(&self) -> Limits {
        let mut limits = self.backend.limits();
        limits.reserved.push(Self::window());
        limits
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        // SAFETY: the caller guarantees it.
        unsafe { self.backend.map(iova, piece, prot) }?;
        let (file, file_offset) = match piece.file {
            Some((file, at)) => (file.try_clone_to_owned().map(File::from), at.raw()),
            None => {
                let own = File::options().read(true).write(true).open("/proc/self/mem");
                (own, piece.host.addr().get() as u64)
            }
        };
        let file = file.expect("a descriptor for the journal");
        let range = AddrRange::new(iova, piece.len_bytes).expect("it was mapped");
        let keeps = piece.file.is_some();
        lock(&self.journal).add(Entry { range, file, file_offset, keeps, is_mapped: true });
        Ok(())
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller guarantees it.
        unsafe { self.backend.unmap(ranges) }?;
        ranges.iter().for_each(|range| lock(&self.journal).remove(*range));
        Ok(())
    }
}

fn range_of(iova: Iova, len: usize) -> AddrRange<Iova> {
    AddrRange::new(iova, len as u64).expect("addresses of a test")
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The contents of the device's buffer before it reads, one after the other.
const PRIMERS: [u8; 2] = [0xa5, 0x5a];

/// A device that was passed through to this process.
pub(super) struct Passed {
    edu: Edu,
    mailbox: Arc<Mailbox>,
    journal: Arc<Mutex<Journal>>,
}

impl Passed {
    /// Copies bytes into the device's buffer.
    fn load(&self, bytes: &[u8]) {
        self.mailbox.file.write_all_at(bytes, 0).expect("a memfd");
        self.edu.fetch(MAILBOX.raw(), bytes.len());
    }

    /// Reads at `iova` with the device; returns `true` if the access was allowed.
    fn read_some(&self, iova: Iova, into: &mut [u8]) -> bool {
        // After a refused read, the device's buffer is unchanged or has zeros.
        let seen = PRIMERS.map(|primer| {
            self.load(&vec![primer; into.len()]);
            self.edu.fetch(iova.raw(), into.len());
            self.edu.store(MAILBOX.raw(), into.len());
            self.mailbox.file.read_exact_at(into, 0).expect("a memfd");
            into.iter().any(|byte| *byte != primer)
        });
        if into.iter().any(|byte| *byte != 0) {
            return seen.contains(&true);
        }
        self.are_zeros_there(iova, into.len())
    }

    /// Returns `true` if zeros that were read come from the memory: then the device also reads another
    /// content from there.
    fn are_zeros_there(&self, iova: Iova, len: usize) -> bool {
        let journal = lock(&self.journal);
        let Some(place) = journal.find(range_of(iova, len)).filter(|place| place.is_mapped) else {
            return false;
        };
        if place.read(len).iter().any(|byte| *byte != 0) {
            return false;
        }
        let marker = vec![PRIMERS[0]; len];
        self.load(&vec![PRIMERS[1]; len]);
        place.write(&marker);
        self.edu.fetch(iova.raw(), len);
        place.write(&vec![0; len]);
        self.edu.store(MAILBOX.raw(), len);
        let mut seen = vec![0; len];
        self.mailbox.file.read_exact_at(&mut seen, 0).expect("a memfd");
        seen == marker
    }

    /// Writes with the device; returns `true` if the bytes arrived in the present or earlier mapping, or
    /// in any readable memory.
    fn write_some(&self, iova: Iova, from: &[u8]) -> bool {
        self.load(from);
        let journal = lock(&self.journal);
        let Some(place) = journal.find(range_of(iova, from.len())) else {
            drop(journal);
            self.edu.store(iova.raw(), from.len());
            let mut seen = vec![0; from.len()];
            return self.read_some(iova, &mut seen) && seen == from;
        };
        let before = place.read(from.len());
        // Each byte differs from the one that is to arrive.
        let other: Vec<u8> = from.iter().map(|byte| !byte).collect();
        place.write(&other);
        self.edu.store(iova.raw(), from.len());
        let after = place.read(from.len());
        if after == from {
            return true;
        }
        assert_eq!(after, other, "a part of a write arrived");
        place.write(&before);
        false
    }

    /// Makes the device write, without a check of the result.
    pub(super) fn store(&self, iova: Iova, bytes: &[u8]) {
        self.load(bytes);
        self.edu.store(iova.raw(), bytes.len());
    }

    /// Like [`conformance::Device::read`].
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

/// The page size of the machine, which is the granule of both backends.
pub(super) const GRANULE: Granule = Granule::SIZE_4K;
