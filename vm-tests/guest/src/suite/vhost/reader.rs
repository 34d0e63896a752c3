//! A thread that reads blocks of the disk at random into a buffer, and records which block is where.

use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use longshore_mem::FileOffset;
use longshore_sys::{
    file::{self, ReadFlags},
    memfd::{self, Backing},
};
use longshore_vm_tests::{
    fixture::{VHOST_CONTENT_BYTES, VHOST_CONTROL_AT, VHOST_CONTROL_BYTES, VHOST_SEED},
    pattern,
};

use super::Result;
use crate::{mapped::Mapped, outcome::ensure};

const PAGE_BYTES: u64 = 4096;
/// The pages of the buffer; another page for the control block follows.
const PAGES: u64 = 4096;
/// The maximum pages of a read.
const READ_PAGES_MAX: u64 = 16;
/// The number of reads between two checks of the control block.
const LOOK_EVERY: u64 = 32;
const BLOCKS: u64 = VHOST_CONTENT_BYTES / PAGE_BYTES;
/// Notes of a page: no read into it has begun; a read into it is in flight.
const NOTHING: u64 = u64::MAX;
const BUSY: u64 = u64::MAX - 1;
const POLL: Duration = Duration::from_millis(20);

/// The reason why reading has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The control block says that the machine has migrated.
    Moved,
    /// A read failed.
    Failed(#[expect(dead_code, reason = "shown")] io::Error),
    /// A read does not end.
    Stuck,
}

/// The comparison of the pages with their last reads.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) looked_at: u64,
    /// The pages with other content.
    pub(super) stale: u64,
    /// The pages with a read in flight.
    pub(super) busy: u64,
}

struct Notes {
    /// The disk block that each page holds.
    blocks: Vec<AtomicU64>,
    /// The number of completed reads.
    reads: AtomicU64,
}

pub(super) struct Reader {
    notes: Arc<Notes>,
    /// Another mapping of the thread's buffer.
    buffer: Mapped,
    ended: Receiver<Ended>,
}

impl Reader {
    pub(super) fn start(disk: File) -> Result<Self> {
        let len_bytes = PAGES * PAGE_BYTES + VHOST_CONTROL_BYTES;
        let file = memfd::create("buffer", Backing::Shmem)?;
        memfd::set_len(&file, len_bytes)?;
        let (buffer, mut target) = (Mapped::new(&file, len_bytes)?, Mapped::new(&file, len_bytes)?);
        let blocks = (0..PAGES).map(|_| AtomicU64::new(NOTHING)).collect();
        let notes = Arc::new(Notes { blocks, reads: AtomicU64::new(0) });
        let (for_thread, (sender, ended)) = (Arc::clone(&notes), mpsc::channel());
        thread::spawn(move || {
            let ended = match read_on(&disk, &mut target, &for_thread) {
                Ok(()) => Ended::Moved,
                Err(error) => Ended::Failed(error),
            };
            // The test may have given up.
            let _ = sender.send(ended);
        });
        Ok(Self { notes, buffer, ended })
    }

    pub(super) fn reads(&self) -> u64 {
        self.notes.reads.load(Ordering::Acquire)
    }

    /// Waits until there was a read into each page.
    pub(super) fn wait_until_each_was_read(&self, limit: Duration) -> Result<()> {
        let is_read = |block: &AtomicU64| block.load(Ordering::Acquire) != NOTHING;
        let ended = self.wait_until(limit, || self.notes.blocks.iter().all(is_read));
        ensure!(ended.is_none(), "reading has ended: {ended:?}");
        Ok(())
    }

    /// Waits until the control block says that the machine has migrated, or until no read has completed
    /// for `limit`.
    pub(super) fn wait_for_the_move(&self, limit: Duration) -> Ended {
        self.wait_until(limit, || false).unwrap_or(Ended::Stuck)
    }

    /// Waits until `is_over`; returns the reason if reading has ended before.
    fn wait_until(&self, limit: Duration, is_over: impl Fn() -> bool) -> Option<Ended> {
        let (mut reads, mut since) = (self.reads(), Instant::now());
        while !is_over() {
            match self.ended.recv_timeout(POLL) {
                Ok(ended) => return Some(ended),
                Err(_) if self.reads() != reads => (reads, since) = (self.reads(), Instant::now()),
                Err(_) if since.elapsed() > limit => return Some(Ended::Stuck),
                Err(_) => {}
            }
        }
        None
    }

    /// Compares each page with its last read.
    pub(super) fn look(&self) -> Result<Found> {
        let mut found = Found::default();
        let mut bytes = vec![0; PAGE_BYTES as usize];
        for (page, block) in self.notes.blocks.iter().enumerate() {
            match block.load(Ordering::Acquire) {
                BUSY => found.busy += 1,
                block => {
                    self.buffer.view().read(page * PAGE_BYTES as usize, &mut bytes)?;
                    let differs =
                        pattern::first_difference(VHOST_SEED, block * PAGE_BYTES, &bytes).is_some();
                    found.looked_at += 1;
                    found.stale += u64::from(differs);
                }
            }
        }
        Ok(found)
    }
}

/// Reads until the control block says that the machine has migrated.
fn read_on(disk: &File, buffer: &mut Mapped, notes: &Notes) -> io::Result<()> {
    let mut random = 1_u64;
    let (mut page, mut pages) = (0, READ_PAGES_MAX);
    loop {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let block = random % (BLOCKS - pages);
        let noted = &notes.blocks[page as usize..(page + pages) as usize];
        noted.iter().for_each(|note| note.store(BUSY, Ordering::Release));
        read(disk, buffer, page, pages, block * PAGE_BYTES)?;
        for (note, block) in noted.iter().zip(block..) {
            note.store(block, Ordering::Release);
        }
        let reads = notes.reads.fetch_add(1, Ordering::AcqRel) + 1;
        if reads.is_multiple_of(LOOK_EVERY) && has_moved(disk, buffer)? {
            return Ok(());
        }
        page = (page + pages) % PAGES;
        pages = (1 + (random >> 32) % READ_PAGES_MAX).min(PAGES - page);
    }
}

/// Reads the control block like any other block, and returns `true` if the machine has migrated.
fn has_moved(disk: &File, buffer: &mut Mapped) -> io::Result<bool> {
    read(disk, buffer, PAGES, 1, VHOST_CONTROL_AT)?;
    let mut word = [0; 8];
    let at = (PAGES * PAGE_BYTES) as usize;
    buffer.view().read(at, &mut word).map_err(io::Error::other)?;
    Ok(u64::from_le_bytes(word) != 0)
}

fn read(disk: &File, buffer: &mut Mapped, page: u64, pages: u64, at: u64) -> io::Result<()> {
    let (start, len) = ((page * PAGE_BYTES) as usize, (pages * PAGE_BYTES) as usize);
    let mut view = buffer.view_mut();
    let mut part = view.subslice_mut(start, len).map_err(io::Error::other)?;
    match file::read_at(disk, &mut part, FileOffset::new(at), ReadFlags::default())? {
        read if read == len => Ok(()),
        read => Err(io::Error::other(format!("{read} of {len} bytes at {at:#x}"))),
    }
}
