//! The model of a transfer: its bytes as seen by the CPU and by the device.

use std::ops::Range;

use longshore_domain::{Bounce, Direction};
use longshore_pagetable::Prot;

use crate::memory::{PAGE, Place};

/// A byte of a slot whose value the model does not know.
pub(crate) const UNKNOWN: u16 = 0x100;

/// The sizes of slots in granules. A transfer takes the smallest slot that it fits into.
pub(crate) const SLOTS: [u64; 21] =
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64];

/// The way in which a transfer is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Direct,
    Slot { else_direct: bool },
    Unaligned,
}

/// The configuration of the domain, as far as it decides on routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) bounce: Bounce,
    pub(crate) refuses: bool,
    pub(crate) trusted: bool,
    pub(crate) denies_reads: bool,
}

impl Rules {
    pub(crate) fn route(&self, start: u64, len: u64) -> Route {
        let is_whole = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        let may_map = self.trusted || is_whole;
        let wants = match self.bounce {
            Bounce::Never => false,
            Bounce::Below(bytes) => len < bytes,
            Bounce::Always => true,
        };
        match (may_map, wants || !may_map, len.div_ceil(PAGE) <= 64) {
            (_, true, true) => Route::Slot { else_direct: may_map && !self.refuses },
            (true, ..) => Route::Direct,
            (false, ..) => Route::Unaligned,
        }
    }

    /// Returns the rights of a device to a transfer.
    pub(crate) fn rights(&self, direction: Direction) -> Prot {
        match direction {
            Direction::FromDevice if !self.denies_reads => Prot::READ_WRITE,
            direction => direction.prot(),
        }
    }
}

/// The place of a transfer's bytes for the device.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Direct,
    /// All the granules of a slot.
    Slot(Vec<u16>),
    Unaligned {
        head: Option<Vec<u16>>,
        tail: Option<Vec<u16>>,
    },
}

/// The expected state of a mapping.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) direction: Direction,
    pub(crate) rights: Prot,
    pub(crate) is_reported: bool,
    pub(crate) shape: Shape,
    /// The memory, with the bytes around the transfer. The transfer begins at `first`.
    pub(crate) memory: Vec<u8>,
    pub(crate) first: usize,
    pub(crate) place: Place,
    /// `true` if it is possibly no longer mapped.
    pub(crate) is_shaky: bool,
    /// `true` if unknown bytes of a slot were copied to the memory.
    pub(crate) is_vague: bool,
}

impl Transfer {
    /// Returns a transfer that was just mapped at `iova`, by this route.
    pub(crate) fn new(
        [iova, len]: [u64; 2],
        direction: Direction,
        rights: Prot,
        is_reported: bool,
        route: Route,
        (memory, first, place): (Vec<u8>, usize, Place),
    ) -> Self {
        let bytes = &memory[first..first + len as usize];
        let page = PAGE as usize;
        let zeros = if is_reported { UNKNOWN } else { 0 };
        let copy = |cells: &mut [u16], from: &[u8]| {
            if !is_reported {
                cells.iter_mut().zip(from).for_each(|(cell, byte)| *cell = u16::from(*byte));
            }
        };
        let shape = match route {
            Route::Direct => Shape::Direct,
            Route::Slot { .. } => {
                let granules = SLOTS.iter().find(|granules| **granules * PAGE >= len).unwrap();
                let mut cells = vec![zeros; (granules * PAGE) as usize];
                copy(&mut cells, bytes);
                // Bytes that the device cannot read are not zeroed.
                if !rights.contains(Prot::READ) {
                    cells[bytes.len()..].fill(UNKNOWN);
                }
                Shape::Slot(cells)
            }
            Route::Unaligned => {
                let (skip, end) = (first % page, (first + len as usize) % page);
                let zeros = if is_reported || !rights.contains(Prot::READ) { UNKNOWN } else { 0 };
                let head = (skip != 0).then(|| {
                    let mut cells = vec![zeros; page];
                    copy(&mut cells[skip..], bytes);
                    cells
                });
                let tail = (end != 0).then(|| {
                    let mut cells = vec![zeros; page];
                    copy(&mut cells, &bytes[bytes.len() - end..]);
                    cells
                });
                Shape::Unaligned { head, tail }
            }
        };
        let (is_shaky, is_vague) = (false, false);
        Self {
            iova,
            len,
            direction,
            rights,
            is_reported,
            shape,
            memory,
            first,
            place,
            is_shaky,
            is_vague,
        }
    }

    /// Returns the start and the length of the range that the device can access.
    pub(crate) fn window(&self) -> (u64, u64) {
        match &self.shape {
            Shape::Slot(cells) => (self.iova, cells.len() as u64),
            _ => {
                let start = self.iova & !(PAGE - 1);
                (start, (self.iova + self.len).next_multiple_of(PAGE) - start)
            }
        }
    }

    /// Returns the part of the window that is the memory itself: its IOVA, its length, and its offset in
    /// the memory.
    pub(crate) fn own(&self) -> Option<(u64, u64, u64)> {
        let (start, len) = self.window();
        let page_of_memory = (self.first as u64) & !(PAGE - 1);
        match &self.shape {
            Shape::Direct => Some((start, len, page_of_memory)),
            Shape::Slot(_) => None,
            Shape::Unaligned { head, tail } => {
                let before = if head.is_some() { PAGE } else { 0 };
                let after = if tail.is_some() { PAGE } else { 0 };
                let len = len - before - after;
                (len != 0).then_some((start + before, len, page_of_memory + before))
            }
        }
    }

    /// Returns the IOVAs of the ends that are copied.
    pub(crate) fn ends(&self) -> impl Iterator<Item = u64> {
        let (start, len) = self.window();
        let (head, tail) = match &self.shape {
            Shape::Unaligned { head, tail } => (head.is_some(), tail.is_some()),
            _ => (false, false),
        };
        head.then_some(start).into_iter().chain(tail.then_some(start + len.max(PAGE) - PAGE))
    }

    /// Returns a byte of the window.
    pub(crate) fn get(&self, at: u64) -> u16 {
        let page_of_memory = self.first & !(PAGE as usize - 1);
        let tail_at = self.window().1 - PAGE.min(self.window().1);
        match &self.shape {
            Shape::Slot(cells) => cells[at as usize],
            Shape::Unaligned { head: Some(head), .. } if at < PAGE => head[at as usize],
            Shape::Unaligned { tail: Some(tail), .. } if at >= tail_at => {
                tail[(at - tail_at) as usize]
            }
            _ => self.memory[page_of_memory + at as usize].into(),
        }
    }

    /// Appends `count` bytes from `at` on, which lie in one granule.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u16>, at: u64, count: usize) {
        let (start, _) = self.window();
        if let Shape::Slot(cells) = &self.shape {
            bytes.extend_from_slice(&cells[at as usize..][..count]);
        } else if self.own().is_some_and(|(own, len, _)| (own..own + len).contains(&(start + at))) {
            let from = (self.first & !(PAGE as usize - 1)) + at as usize;
            bytes.extend(self.memory[from..from + count].iter().map(|byte| u16::from(*byte)));
        } else {
            bytes.extend((at..at + count as u64).map(|at| self.get(at)));
        }
    }

    pub(crate) fn set(&mut self, at: u64, byte: u8) {
        let page_of_memory = self.first & !(PAGE as usize - 1);
        let tail_at = self.window().1 - PAGE.min(self.window().1);
        match &mut self.shape {
            Shape::Slot(cells) => cells[at as usize] = byte.into(),
            Shape::Unaligned { head: Some(head), .. } if at < PAGE => {
                head[at as usize] = byte.into();
            }
            Shape::Unaligned { tail: Some(tail), .. } if at >= tail_at => {
                tail[(at - tail_at) as usize] = byte.into();
            }
            _ => self.memory[page_of_memory + at as usize] = byte,
        }
    }

    /// Returns true if byte `at` of the transfer is copied, not mapped.
    fn is_copied(&self, at: u64) -> bool {
        let at = self.iova + at;
        self.own().is_none_or(|(start, len, _)| at < start || at >= start + len)
    }

    /// Returns the number of these bytes of the transfer that are copied.
    pub(crate) fn copied(&self, bytes: Range<u64>) -> u64 {
        let end = bytes.end.min(self.len);
        let own = self.own().map_or(0, |(start, len, _)| {
            let (from, to) = (self.iova + bytes.start, self.iova + end);
            (start + len).min(to).saturating_sub(start.max(from))
        });
        end.saturating_sub(bytes.start) - own
    }

    /// Returns true if the model knows the values of these bytes for the device.
    pub(crate) fn is_known(&self, bytes: Range<u64>) -> bool {
        let skip = self.iova - self.window().0;
        bytes.into_iter().all(|at| self.get(skip + at) != UNKNOWN)
    }

    /// Copies these bytes from their place for the device to the memory.
    pub(crate) fn copy_to_memory(&mut self, bytes: Range<u64>) {
        let skip = self.iova - self.window().0;
        for at in bytes {
            if self.is_copied(at) {
                match u8::try_from(self.get(skip + at)) {
                    Ok(byte) => self.memory[self.first + at as usize] = byte,
                    Err(_) => self.is_vague = true,
                }
            }
        }
    }

    /// Copies these bytes from the memory to their place for the device.
    pub(crate) fn copy_to_device(&mut self, bytes: Range<u64>) {
        let skip = self.iova - self.window().0;
        for at in bytes {
            if self.is_copied(at) {
                self.set(skip + at, self.memory[self.first + at as usize]);
            }
        }
    }

    /// Asserts that the memory has the expected bytes.
    pub(crate) fn check_memory(&mut self) {
        let found = self.place.bytes();
        if self.is_vague {
            // The device reported bytes that it had not written. Any bytes of the transfer are accepted.
            let end = self.first + self.len as usize;
            self.memory[self.first..end].copy_from_slice(&found[self.first..end]);
            self.is_vague = false;
        }
        let wrong = found.iter().zip(&self.memory).position(|(found, right)| found != right);
        assert!(
            wrong.is_none(),
            "byte {wrong:?} of memory, where the transfer is {}..{}: {:x?}",
            self.first,
            self.first as u64 + self.len,
            wrong.map(|at| (found[at], self.memory[at]))
        );
    }
}
