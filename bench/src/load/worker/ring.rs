//! Direct reads by io_uring, a fixed number in flight, into whatever memory they are given.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use longshore_mem::{FileOffset, VolatileSliceMut};
use longshore_sys::{file, uring};

use crate::harness::Trouble;

/// As the library reads by default.
pub(super) const BLOCK_BYTES: u64 = 8 << 20;
pub(super) const DEPTH: u32 = 8;

const PATIENCE: Duration = Duration::from_secs(1);

/// Opens a file for direct reads.
pub(super) fn open_direct(path: &Path) -> Result<OwnedFd> {
    file::reopen_direct(File::open(path)?).context("opening the file for direct reads")
}

/// Where io_uring is refused, as in many containers, what needs it cannot be measured.
pub(super) fn require() -> std::result::Result<(), Trouble> {
    uring::probe(8).map_err(|error| Trouble::NotRun(format!("io_uring is refused here: {error}")))
}

/// Reads the first `len_bytes` of `file`. `memory` gives the memory for a range of the file, which
/// begins and ends at multiples of a page or at the end, and for one of [`DEPTH`] slots; two reads
/// in flight never have the same slot.
pub(super) fn read_all<'mem>(
    file: BorrowedFd<'mem>,
    len_bytes: u64,
    mut memory: impl FnMut(u32, Range<u64>) -> Result<VolatileSliceMut<'mem>>,
) -> Result<()> {
    uring::with_ring(DEPTH, |ring| {
        let mut free: Vec<u32> = (0..DEPTH).collect();
        let mut flights: Vec<Range<u64>> = vec![0..0; DEPTH as usize];
        let mut next = 0;
        loop {
            while next < len_bytes
                && let Some(slot) = free.pop()
            {
                let range = next..len_bytes.min(next + BLOCK_BYTES);
                next = range.end;
                let target = memory(slot, range.clone())?;
                ring.push_read(file.as_fd(), target, FileOffset::new(range.start), slot.into())?;
                flights[slot as usize] = range;
            }
            if ring.in_flight() == 0 {
                return Ok(());
            }
            let mut outcome = Ok(());
            ring.wait(PATIENCE, |completion| {
                let slot = completion.token as u32;
                let wanted = &flights[slot as usize];
                if let Err(error) = whole(completion.result, wanted) {
                    outcome = Err(error);
                }
                free.push(slot);
            })?;
            outcome?;
        }
    })
    .context("io_uring")?
}

/// Regular files give all that is asked for up to their end; anything else would be measured as
/// more than it is.
fn whole(result: io::Result<usize>, wanted: &Range<u64>) -> Result<()> {
    let read_bytes = result.with_context(|| format!("reading bytes {wanted:?}"))? as u64;
    anyhow::ensure!(
        read_bytes >= wanted.end - wanted.start,
        "a read of bytes {wanted:?} gave {read_bytes}"
    );
    Ok(())
}
