//! The copies of a bounce alone: the limit.
#![expect(unsafe_code, reason = "copies between memory of transfers and a slot")]

use std::hint::black_box;

use anyhow::Result;
use longshore_mem::copy;

use super::parts::{Part, parts, turns};
use super::timed::{Drive, Work};

/// By which routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routine {
    /// The one that bounces copy by.
    Ours,
    /// The C library's.
    Libc,
}

/// Which of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    InAndOut,
    Out,
}

/// Copies between the memory of transfers and one slot, which stays where it is.
pub(super) struct Copies {
    parts: Vec<Part>,
    slot: Part,
    routine: Routine,
    ways: Ways,
}

impl Copies {
    pub(super) fn new(parts_of: &[Part], routine: Routine, ways: Ways) -> Result<Self> {
        let slot = parts(1, parts_of[0].len() as u64)?[0];
        Ok(Self { parts: parts_of.to_vec(), slot, routine, ways })
    }

    #[inline(always)]
    fn each(&self, parts: &[Part], copy: impl Fn(Part, Part) -> Result<()>) -> Result<()> {
        for part in parts {
            if self.ways == Ways::InAndOut {
                copy(*part, self.slot)?;
            }
            black_box(self.slot);
            copy(self.slot, *part)?;
        }
        Ok(())
    }
}

impl Work for Copies {
    fn run(&self, _thread: usize, drive: Drive<'_>) -> Result<()> {
        let mut turns = turns(&self.parts);
        match self.routine {
            Routine::Ours => drive(&mut || {
                self.each(turns.next_stretch(), |from, to| {
                    // SAFETY: both have as many bytes, and nobody else uses them.
                    unsafe { copy::copy_bytes(from.start(), to.start(), from.len()) }?;
                    Ok(())
                })
            }),
            Routine::Libc => drive(&mut || {
                self.each(turns.next_stretch(), |from, to| {
                    // SAFETY: both have as many bytes, and nobody else uses them.
                    unsafe {
                        libc::memcpy(to.start().cast(), from.start().cast(), from.len());
                    }
                    Ok(())
                })
            }),
        }
    }
}
