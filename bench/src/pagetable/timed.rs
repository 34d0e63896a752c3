//! Candidates: the same loop over the tables of each library.

use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::layout::Layout;
use super::tables::Tables;
use crate::harness::metric::TIME_NS;
use crate::harness::{Candidate, Sample, Trouble};

/// What is timed.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// Mapping each piece. With `fresh`, where no table is yet, else where all of them are.
    Map { fresh: bool },
    /// Unmapping each stretch; invalidating and freeing follow and are not counted.
    Unmap,
    /// The same one page at a time, an unmap for each.
    UnmapByPage,
    /// Unmapping each stretch, with an invalidation (of nothing) and the freeing of its tables.
    UnmapAndFinish,
    /// Looking up each address.
    LookUp(Vec<u64>),
    /// Looking for written pages where there are none, in each stretch.
    ScanDirty,
}

/// Some work on some tables.
pub(super) struct Timed<T> {
    name: String,
    tables: T,
    layout: Layout,
    work: Work,
    effort: Effort,
    note: Option<String>,
    counted: Sample,
    is_ours: bool,
}

/// How long a run goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) time: Duration,
}

impl<T: Tables> Timed<T> {
    pub(super) fn new(
        name: impl Into<String>,
        tables: T,
        layout: &Layout,
        work: &Work,
        effort: Effort,
    ) -> Self {
        Self {
            name: name.into(),
            tables,
            layout: layout.clone(),
            work: work.clone(),
            effort,
            note: None,
            counted: Vec::new(),
            is_ours: false,
        }
    }

    /// Of this project's own, with what was counted of the same work.
    pub(super) fn ours(mut self, counted: Sample) -> Self {
        self.counted = counted;
        self.is_ours = true;
        self
    }

    pub(super) fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    fn map_all(&mut self) {
        for piece in &self.layout.pieces {
            self.tables.map(piece);
        }
    }

    /// How long something took that began at `began`, with what it has left in the core's buffers: a
    /// last fence would go uncounted, because a clock can be read before it.
    fn since(began: Instant) -> Duration {
        fence(Ordering::SeqCst);
        began.elapsed()
    }

    /// Does the work once from the state that it begins with, and again leaves that. How long it
    /// took, and of how many parts.
    fn once(&mut self) -> (Duration, usize) {
        match &self.work {
            Work::Map { fresh } => {
                let fresh = *fresh;
                let began = Instant::now();
                self.map_all();
                let took = Self::since(began);
                if fresh {
                    self.tables.reset(&self.layout.pieces);
                } else {
                    for piece in &self.layout.pieces {
                        self.tables.unmap(&piece.stretch());
                    }
                    self.tables.settle();
                }
                (took, self.layout.pieces.len())
            }
            Work::Unmap => {
                self.map_all();
                let began = Instant::now();
                for stretch in &self.layout.stretches {
                    self.tables.unmap(stretch);
                }
                let took = Self::since(began);
                self.tables.settle();
                (took, self.layout.stretches.len())
            }
            Work::UnmapByPage => {
                self.map_all();
                let began = Instant::now();
                for piece in &self.layout.pieces {
                    let page_bytes = 1 << piece.page_log2;
                    let mut page = piece.stretch();
                    page.len_bytes = page_bytes;
                    for _ in 0..piece.len_bytes >> piece.page_log2 {
                        self.tables.unmap(&page);
                        page.iova += page_bytes;
                    }
                }
                let took = Self::since(began);
                self.tables.settle();
                (took, self.layout.stretches.len())
            }
            Work::UnmapAndFinish => {
                self.map_all();
                let began = Instant::now();
                for stretch in &self.layout.stretches {
                    self.tables.unmap(stretch);
                    self.tables.settle();
                }
                (Self::since(began), self.layout.stretches.len())
            }
            Work::LookUp(addresses) => {
                let began = Instant::now();
                let mut sum = 0u64;
                for address in addresses {
                    sum = sum.wrapping_add(self.tables.lookup(*address));
                }
                let took = Self::since(began);
                black_box(sum);
                (took, addresses.len())
            }
            Work::ScanDirty => {
                let began = Instant::now();
                for stretch in &self.layout.stretches {
                    assert_eq!(self.tables.count_dirty(stretch), 0, "nothing was written");
                }
                (Self::since(began), self.layout.stretches.len())
            }
        }
    }
}

impl<T: Tables> Candidate for Timed<T> {
    fn name(&self) -> &str {
        &self.name
    }

    /// The best of many short stretches: what a machine shared with others takes away is not the
    /// work's.
    fn measure(&mut self) -> Result<Sample, Trouble> {
        let stays = matches!(self.work, Work::LookUp(_) | Work::ScanDirty);
        if stays {
            self.map_all();
            self.check_lookups();
        }
        self.once();
        let until = Instant::now() + self.effort.time;
        let mut best = f64::INFINITY;
        loop {
            let (took, parts) = self.once();
            best = best.min(took.as_secs_f64() / parts as f64);
            if Instant::now() > until {
                break;
            }
        }
        if stays {
            self.tables.reset(&self.layout.pieces);
        }
        let mut sample = vec![(TIME_NS, best * 1e9)];
        sample.extend(self.counted.iter().copied());
        Ok(sample)
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn is_ours(&self) -> bool {
        self.is_ours
    }
}

impl<T: Tables> Timed<T> {
    /// A library that maps something else is not to be compared with.
    fn check_lookups(&self) {
        for piece in &self.layout.pieces {
            for offset in [8, piece.len_bytes - 8] {
                let found = self.tables.lookup(piece.iova + offset);
                assert_eq!(found, piece.bus + offset, "{}", self.name);
            }
        }
    }
}

/// A library that cannot do what a case asks.
pub(super) struct Unable {
    name: String,
    why: &'static str,
}

impl Unable {
    pub(super) fn new(name: impl Into<String>, why: &'static str) -> Self {
        Self { name: name.into(), why }
    }
}

impl Candidate for Unable {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        Err(Trouble::NotRun(self.why.to_owned()))
    }
}
