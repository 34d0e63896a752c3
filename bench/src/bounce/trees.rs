//! The obvious alternative: an allocator and a map of mappings behind a lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use super::parts::{Part, STRETCH, stretches};
use crate::harness::timed::Drive;

const PAGE_BYTES: u64 = 4096;
const SPACE_BYTES: u64 = 1 << 48;

/// Free ranges and mappings in the standard library's B-trees. `map` takes the lowest range that is long
/// enough.
pub(super) struct Trees {
    /// Length by start.
    free: BTreeMap<u64, u64>,
    /// Host address and length by IOVA.
    mapped: BTreeMap<u64, (u64, u64)>,
}

/// Trees that threads share.
pub(super) struct Locked(Mutex<Trees>);

impl Locked {
    /// Maps and unmaps each part, or, with `all_at_once`, maps all before the first is unmapped.
    pub(super) fn run(&self, parts: &[Part], all_at_once: bool, drive: Drive<'_>) -> Result<()> {
        let mut mapped = Vec::with_capacity(STRETCH);
        stretches(parts, drive, |stretch| {
            for part in stretch {
                let iova = lock(&self.0).map(*part)?;
                if all_at_once {
                    mapped.push(iova);
                } else {
                    lock(&self.0).unmap(iova)?;
                }
            }
            mapped.drain(..).try_for_each(|iova| lock(&self.0).unmap(iova))
        })
    }
}

impl Trees {
    fn new() -> Self {
        let free = BTreeMap::from([(PAGE_BYTES, SPACE_BYTES - PAGE_BYTES)]);
        Self { free, mapped: BTreeMap::new() }
    }

    pub(super) fn locked() -> Locked {
        Locked(Mutex::new(Self::new()))
    }

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

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::parts::parts;
    use super::*;

    #[test]
    fn adjacent_free_ranges_are_merged() {
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
}
