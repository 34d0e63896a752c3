//! Reads that follow the allocation, batch by batch, as in the published scheme.
//!
//! ```text
//!   one thread      allocate 0 │ allocate 1 │ allocate 2 │ ...
//!   another                    │ read 0     │ read 1     │ ...
//! ```

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;

use anyhow::{Result, anyhow};
use longshore_heap::Reservation;

use super::reading::read_range;

/// The batch size of the published scheme.
const BATCH_BYTES: u64 = 128 << 20;

/// Fills `memory` from `source` while another thread populates its pages.
pub(super) fn fill_behind_allocation(source: &OwnedFd, memory: &Reservation) -> Result<()> {
    let (made, batches) = mpsc::channel::<Range<u64>>();
    thread::scope(|scope| {
        let maker = scope.spawn(move || -> Result<()> {
            for batch in batches_of(memory.len()) {
                memory.populate(batch.clone())?;
                if made.send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let mut read = Ok(());
        for batch in batches {
            read = read_range(source, memory, batch);
            if read.is_err() {
                break;
            }
        }
        maker.join().map_err(|_| anyhow!("the allocating thread panicked"))??;
        read
    })
}

fn batches_of(len_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len_bytes)
        .step_by(BATCH_BYTES as usize)
        .map(move |start| start..len_bytes.min(start + BATCH_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_everything_once() {
        let batches: Vec<_> = batches_of(BATCH_BYTES * 2 + 5).collect();
        assert_eq!(
            batches,
            [0..BATCH_BYTES, BATCH_BYTES..BATCH_BYTES * 2, BATCH_BYTES * 2..BATCH_BYTES * 2 + 5]
        );
        assert_eq!(batches_of(0).count(), 0);
    }
}
