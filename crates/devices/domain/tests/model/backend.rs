//! A backend that keeps a list of its mappings, and refuses calls by a script.
#![allow(unreachable_pub, reason = "read by test programs of several kinds")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_domain::backend::{Backend, BackendError, Limits, Piece, Soft};
use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;

/// The size of a chunk, by which pools grow.
pub const CHUNK: u64 = 2 << 20;

/// A mapping of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub len_bytes: u64,
    /// The address in this process.
    pub host: u64,
    pub prot: Prot,
}

/// The calls of a backend so far, and those that it is to refuse.
#[derive(Debug, Default)]
pub struct Script {
    /// The mappings, by IOVA.
    pub entries: BTreeMap<u64, Entry>,
    /// The number of the mapping that is refused, counted from here on; 0 is the next.
    pub refuse_map: Option<u32>,
    /// The number of the unmapping that is refused, and `true` if its first range is unmapped anyway.
    pub refuse_unmap: Option<(u32, bool)>,
    /// `true` if all later calls are refused, too.
    pub keeps_refusing: bool,
    /// Ranges that were unmapped by a call that then failed.
    gone: BTreeMap<u64, u64>,
    /// The number of refused calls.
    pub refused: u32,
    /// `true` if a chunk could not be unmapped, and is leaked.
    pub lost_chunk: bool,
    pub calls: u32,
}

impl Script {
    pub fn relent(&mut self) {
        (self.refuse_map, self.refuse_unmap, self.keeps_refusing) = (None, None, false);
    }

    fn is_refused(&mut self, count: Option<u32>) -> (bool, Option<u32>) {
        self.calls += 1;
        let refused = count == Some(0);
        self.refused += u32::from(refused);
        let next = if refused && !self.keeps_refusing { None } else { count };
        (refused, next.map(|count| count.saturating_sub(1)))
    }

    fn add(&mut self, iova: u64, entry: Entry) {
        let end = iova + entry.len_bytes;
        for (start, other) in &self.entries {
            assert!(
                start + other.len_bytes <= iova || end <= *start,
                "{iova:#x} is mapped, over {start:#x}"
            );
            // The ends of long transfers are granules of chunks, which are mapped as such, too.
            let is_apart = other.host + other.len_bytes <= entry.host
                || entry.host + entry.len_bytes <= other.host;
            let is_end = other.len_bytes == CHUNK && entry.len_bytes == 4096;
            assert!(is_apart || is_end, "a granule of {iova:#x} is one of {start:#x}");
        }
        self.entries.insert(iova, entry);
    }
}

/// The space of this process, with a script.
#[derive(Debug)]
pub struct Scripted {
    pub soft: Soft,
    pub script: Arc<Mutex<Script>>,
    /// `false` if devices can read memory that is mapped for writing only, as with VT-d under Linux.
    pub denies_reads: bool,
}

impl Scripted {
    pub fn new(denies_reads: bool) -> Self {
        Self { soft: Soft::new().unwrap(), script: Arc::default(), denies_reads }
    }
}

/// Locks the script, also after a test has failed.
pub fn lock(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused() -> BackendError {
    BackendError::Io { operation: "refusing", source: io::Error::other("as the script says") }
}

// SAFETY: the calls are passed on to a space, or return an error. The sessions of the test access only
// memory of the test.
#[allow(unsafe_code, reason = "passes on what a domain maps")]
unsafe impl Backend for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn limits(&self) -> Limits {
        // As a backend of the kernel, for which `Builder::trusted` has an effect.
        let mut limits = self.soft.limits();
        limits.denies_reads = self.denies_reads;
        limits.in_process = false;
        limits
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        let mut script = lock(&self.script);
        let (is_refused, next) = {
            let count = script.refuse_map;
            script.is_refused(count)
        };
        script.refuse_map = next;
        if is_refused {
            return Err(refused());
        }
        let prot = if self.denies_reads { prot } else { prot.union(Prot::READ) };
        let host = piece.host.addr().get() as u64;
        script.add(iova.raw(), Entry { len_bytes: piece.len_bytes, host, prot });
        // SAFETY: the caller's promise.
        unsafe { self.soft.map(iova, piece, prot) }
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        let mut script = lock(&self.script);
        let partly = script.refuse_unmap.is_some_and(|(_, partly)| partly);
        let (is_refused, next) = {
            let count = script.refuse_unmap.map(|(count, _)| count);
            script.is_refused(count)
        };
        script.refuse_unmap = next.map(|count| (count, partly));
        script.lost_chunk |= is_refused && ranges[0].len() == CHUNK;
        let count = match (is_refused, partly) {
            (false, _) => ranges.len(),
            (true, true) => 1,
            (true, false) => 0,
        };
        for range in &ranges[..count] {
            let (start, len_bytes) = (range.start().raw(), range.len());
            if script.gone.remove(&start) == Some(len_bytes) {
                assert!(is_refused || !script.entries.contains_key(&start));
                if is_refused {
                    script.gone.insert(start, len_bytes);
                }
                continue;
            }
            let entry = script.entries.remove(&start);
            assert_eq!(entry.map(|entry| entry.len_bytes), Some(len_bytes), "at {start:#x}");
            // SAFETY: the caller's promise.
            unsafe { self.soft.unmap(&[*range]) }?;
            if is_refused {
                script.gone.insert(start, len_bytes);
            }
        }
        if is_refused { Err(refused()) } else { Ok(()) }
    }
}
