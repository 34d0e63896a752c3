//! What one would write, or put together of crates: an allocator, a map and a list of slots behind a
//! lock.
#![expect(unsafe_code, reason = "copies between memory of transfers and slots")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use vm_allocator::{AddressAllocator, AllocPolicy, RangeInclusive};
use vm_memory::{GuestAddress, Iotlb, Permissions};

use super::parts::{Part, parts, turns};
use super::timed::{Drive, STRETCH, Work};

const PAGE_BYTES: u64 = 4096;
const SPACE_BYTES: u64 = 1 << 48;

/// Mappings of which a device model could ask where an IOVA leads.
pub(super) trait Mappings: Send {
    type Mapping;

    fn map(&mut self, part: Part) -> Result<Self::Mapping>;
    fn unmap(&mut self, mapping: Self::Mapping) -> Result<()>;
}

/// A thread's stretches on mappings behind a lock.
pub(super) struct Locked<M> {
    mappings: Mutex<M>,
    parts: Vec<Vec<Part>>,
    /// Whether all are mapped before the first is unmapped.
    all_at_once: bool,
}

impl<M: Mappings> Locked<M> {
    /// With memory for each thread.
    pub(super) fn new(mappings: M, parts: Vec<Vec<Part>>, all_at_once: bool) -> Self {
        Self { mappings: Mutex::new(mappings), parts, all_at_once }
    }
}

impl<M: Mappings> Work for Locked<M> {
    fn run(&self, thread: usize, drive: Drive<'_>) -> Result<()> {
        let mut turns = turns(&self.parts[thread]);
        let mut mapped = Vec::with_capacity(STRETCH);
        drive(&mut || {
            for part in turns.next_stretch() {
                let mapping = lock(&self.mappings).map(*part)?;
                if self.all_at_once {
                    mapped.push(mapping);
                } else {
                    lock(&self.mappings).unmap(mapping)?;
                }
            }
            for mapping in mapped.drain(..) {
                lock(&self.mappings).unmap(mapping)?;
            }
            Ok(())
        })
    }
}

/// Free ranges and mappings in trees of the standard library; the lowest range that is long enough is
/// taken.
pub(super) struct Trees {
    /// Length by start.
    free: BTreeMap<u64, u64>,
    /// Host address and length by IOVA.
    mapped: BTreeMap<u64, (u64, u64)>,
}

impl Trees {
    pub(super) fn new() -> Self {
        let free = BTreeMap::from([(PAGE_BYTES, SPACE_BYTES - PAGE_BYTES)]);
        Self { free, mapped: BTreeMap::new() }
    }
}

impl Mappings for Trees {
    type Mapping = u64;

    fn map(&mut self, part: Part) -> Result<u64> {
        let len = part.len() as u64;
        let found = self.free.iter().find(|(_, free)| **free >= len);
        let (iova, free) = found.map(|(start, free)| (*start, *free)).context("it is full")?;
        self.free.remove(&iova);
        if free > len {
            self.free.insert(iova + len, free - len);
        }
        self.mapped.insert(iova, (part.start().expose_provenance() as u64, len));
        Ok(iova)
    }

    fn unmap(&mut self, iova: u64) -> Result<()> {
        let (_, len) = self.mapped.remove(&iova).context("it is not mapped")?;
        let (mut start, mut end) = (iova, iova + len);
        if let Some((before, free)) = self.free.range(..iova).next_back()
            && before + free == iova
        {
            start = *before;
        }
        if let Some(free) = self.free.remove(&end) {
            end += free;
        }
        self.free.insert(start, end - start);
        Ok(())
    }
}

/// What rust-vmm has for it: `vm-allocator`'s addresses, `vm-memory`'s translations.
pub(super) struct RustVmm {
    addresses: AddressAllocator,
    iotlb: Iotlb,
}

impl RustVmm {
    pub(super) fn new() -> Result<Self> {
        let addresses = AddressAllocator::new(PAGE_BYTES, SPACE_BYTES - PAGE_BYTES)?;
        Ok(Self { addresses, iotlb: Iotlb::new() })
    }
}

impl Mappings for RustVmm {
    type Mapping = RangeInclusive;

    fn map(&mut self, part: Part) -> Result<RangeInclusive> {
        let len = part.len();
        let range = self.addresses.allocate(len as u64, PAGE_BYTES, AllocPolicy::FirstMatch)?;
        let host = GuestAddress(part.start().expose_provenance() as u64);
        let iova = GuestAddress(range.start());
        self.iotlb.set_mapping(iova, host, len, Permissions::ReadWrite)?;
        Ok(range)
    }

    fn unmap(&mut self, range: RangeInclusive) -> Result<()> {
        self.iotlb.invalidate_mapping(GuestAddress(range.start()), range.len() as usize);
        Ok(self.addresses.free(&range)?)
    }
}

/// A list of slots behind a lock: the copies of a bounce without anything that keeps slots apart,
/// makes more of them, or frees them.
pub(super) struct Slots {
    free: Mutex<Vec<Part>>,
    parts: Vec<Part>,
}

impl Slots {
    pub(super) fn new(parts_of_transfers: &[Part]) -> Result<Self> {
        let free = parts(8, parts_of_transfers[0].len() as u64)?;
        Ok(Self { free: Mutex::new(free), parts: parts_of_transfers.to_vec() })
    }
}

impl Work for Slots {
    fn run(&self, _thread: usize, drive: Drive<'_>) -> Result<()> {
        let mut turns = turns(&self.parts);
        drive(&mut || {
            for part in turns.next_stretch() {
                let slot = lock(&self.free).pop().context("there is no slot left")?;
                // SAFETY: both have as many bytes; slot and memory are this transfer's.
                unsafe { ptr::copy_nonoverlapping(part.start(), slot.start(), part.len()) };
                black_box(slot);
                // SAFETY: the same.
                unsafe { ptr::copy_nonoverlapping(slot.start(), part.start(), part.len()) };
                lock(&self.free).push(slot);
            }
            Ok(())
        })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_join_what_is_given_back() {
        let parts = parts(3, PAGE_BYTES).unwrap();
        let mut trees = Trees::new();
        let iovas: Vec<u64> = parts.iter().map(|part| trees.map(*part).unwrap()).collect();
        assert_eq!(iovas, [0x1000, 0x2000, 0x3000]);
        for nth in [0, 2, 1] {
            trees.unmap(iovas[nth]).unwrap();
        }
        assert_eq!(trees.free, Trees::new().free);
        assert!(trees.mapped.is_empty() && trees.unmap(0x1000).is_err());
    }

    #[test]
    fn addresses_of_rust_vmm_come_back() {
        let part = parts(1, PAGE_BYTES).unwrap()[0];
        let mut vmm = RustVmm::new().unwrap();
        for _ in 0..3 {
            let range = vmm.map(part).unwrap();
            assert_eq!(range.start(), PAGE_BYTES);
            vmm.unmap(range).unwrap();
        }
    }
}
