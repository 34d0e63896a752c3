//! Copies from, to and between cursors.
//!
//! An [`Engine`] does them with one instruction set; the functions here with the best that the
//! machine has, or that `LONGSHORE_ISA` names ([`longshore_mem::isa`]).
#![expect(unsafe_code, reason = "hands segments to the copies of `longshore-mem`")]

use longshore_mem::Page;
use longshore_mem::copy::fill as fill_bytes;
use longshore_mem::dispatch_isa;
use longshore_mem::isa::{Isa, IsaToken};

use crate::direction::{Dest, Direction, Source};
use crate::error::Error;
use crate::fused::{self, ended};
use crate::sink::{Nothing, Sink};
use crate::source::SegmentSource;

/// Copies, checksums and digests with one instruction set, chosen before any loop.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    pub(crate) token: IsaToken,
}

impl Engine {
    /// The best that the machine has, or what `LONGSHORE_ISA` names.
    #[inline]
    pub fn active() -> Self {
        Self { token: IsaToken::active() }
    }

    /// With `isa`, where the machine has it.
    pub fn with(isa: Isa) -> Option<Self> {
        isa.token().map(|token| Self { token })
    }

    /// One for each instruction set that the machine has, the least first.
    pub fn all() -> impl Iterator<Item = Self> {
        IsaToken::all().map(|token| Self { token })
    }

    /// The instruction set.
    pub const fn isa(self) -> Isa {
        self.token.isa()
    }

    /// See [`read`].
    ///
    /// # Errors
    /// As [`read`].
    pub fn read(
        self,
        source: &mut impl SegmentSource<Source>,
        into: &mut [u8],
    ) -> Result<usize, Error> {
        fused::read(self.token, source, into, &mut Nothing)
    }

    /// See [`write()`].
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write(self, dest: &mut impl SegmentSource<Dest>, from: &[u8]) -> Result<usize, Error> {
        fused::write(self.token, dest, from, &mut Nothing)
    }

    /// See [`fill`].
    ///
    /// # Errors
    /// As [`fill`].
    pub fn fill(
        self,
        dest: &mut impl SegmentSource<Dest>,
        byte: u8,
        len_bytes: usize,
    ) -> Result<usize, Error> {
        let mut met = None;
        let done = dispatch_isa!(self.token, isa => dest.iterate(len_bytes, |mut segment, _| {
            // SAFETY: the segment is valid, as its maker promised.
            match unsafe { fill_bytes(isa, segment.as_mut_ptr(), byte, segment.len()) } {
                Ok(()) => 0,
                Err(stop) => {
                    met = Some(stop.fault);
                    segment.len() - stop.done_bytes
                }
            }
        }));
        ended(done.min(len_bytes), met)
    }

    /// See [`transfer`].
    ///
    /// # Errors
    /// As [`transfer`].
    pub fn transfer(
        self,
        source: &mut impl SegmentSource<Source>,
        dest: &mut impl SegmentSource<Dest>,
        len_bytes: usize,
    ) -> Result<usize, Error> {
        fused::transfer(self.token, source, dest, len_bytes, &mut Nothing)
    }

    /// Has `sink` take in bytes of our own.
    pub fn update(self, bytes: &[u8], sink: &mut impl Sink) {
        fused::own(self.token, bytes, sink);
    }

    /// See [`read_into`].
    ///
    /// # Errors
    /// As [`read_into`].
    pub fn read_into(
        self,
        source: &mut impl SegmentSource<Source>,
        into: &mut [u8],
        sink: &mut impl Sink,
    ) -> Result<usize, Error> {
        fused::read(self.token, source, into, sink)
    }

    /// See [`write_into`].
    ///
    /// # Errors
    /// As [`write_into`].
    pub fn write_into(
        self,
        dest: &mut impl SegmentSource<Dest>,
        from: &[u8],
        sink: &mut impl Sink,
    ) -> Result<usize, Error> {
        fused::write(self.token, dest, from, sink)
    }

    /// See [`transfer_into`].
    ///
    /// # Errors
    /// As [`transfer_into`].
    pub fn transfer_into(
        self,
        source: &mut impl SegmentSource<Source>,
        dest: &mut impl SegmentSource<Dest>,
        len_bytes: usize,
        sink: &mut impl Sink,
    ) -> Result<usize, Error> {
        fused::transfer(self.token, source, dest, len_bytes, sink)
    }

    /// See [`walk_into`].
    ///
    /// # Errors
    /// As [`walk_into`].
    pub fn walk_into(
        self,
        source: &mut impl SegmentSource<Source>,
        len_bytes: usize,
        sink: &mut impl Sink,
    ) -> Result<usize, Error> {
        fused::walk(self.token, source, len_bytes, sink)
    }
}

/// Copies the next bytes of `source` into `into`, as many as there are. Returns how many: fewer than
/// `into` has only where the source ended.
///
/// # Errors
/// [`Error::Fault`] where foreign memory was not there and a
/// [`FaultGuard`](longshore_mem::fault::FaultGuard) lives; the cursor stands at the byte that
/// faulted.
#[doc(alias = "copy_from_iter")]
pub fn read(source: &mut impl SegmentSource<Source>, into: &mut [u8]) -> Result<usize, Error> {
    Engine::active().read(source, into)
}

/// [`read`] of all that `into` takes, or nothing: the cursor does not move where less is to be had.
///
/// # Errors
/// [`Error::TooShort`], or what [`read`] returns; `into` may have been written to.
#[doc(alias = "copy_from_iter_full")]
pub fn read_full(source: &mut impl SegmentSource<Source>, into: &mut [u8]) -> Result<(), Error> {
    in_full(source, into.len(), |source| read(source, into))
}

/// Copies `from` to the next bytes of `dest`, as many as fit. Returns how many: fewer than `from`
/// has only where the destination ended.
///
/// # Errors
/// As [`read`].
#[doc(alias = "copy_to_iter")]
pub fn write(dest: &mut impl SegmentSource<Dest>, from: &[u8]) -> Result<usize, Error> {
    Engine::active().write(dest, from)
}

/// [`write()`] of all of `from`, or the cursor does not move.
///
/// # Errors
/// [`Error::TooShort`], or what [`write()`] returns; memory behind the cursor may have been written.
#[doc(alias = "copy_to_iter_full")]
pub fn write_full(dest: &mut impl SegmentSource<Dest>, from: &[u8]) -> Result<(), Error> {
    in_full(dest, from.len(), |dest| write(dest, from))
}

/// Sets the next `len_bytes` bytes to zero, or as many as there are. Returns how many.
///
/// # Errors
/// As [`read`].
#[doc(alias = "iov_iter_zero")]
pub fn zero(dest: &mut impl SegmentSource<Dest>, len_bytes: usize) -> Result<usize, Error> {
    fill(dest, 0, len_bytes)
}

/// Sets the next `len_bytes` bytes to `byte`, or as many as there are. Returns how many.
///
/// # Errors
/// As [`read`].
pub fn fill(
    dest: &mut impl SegmentSource<Dest>,
    byte: u8,
    len_bytes: usize,
) -> Result<usize, Error> {
    Engine::active().fill(dest, byte, len_bytes)
}

/// Copies the next bytes of `source` to the next ones of `dest`: `len_bytes`, or as many as both
/// have. Returns how many. Both cursors move by as much.
///
/// # Errors
/// As [`read`]; and [`Error::Overlap`] before a segment of the source that shares bytes with one of
/// the destination.
pub fn transfer(
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
) -> Result<usize, Error> {
    Engine::active().transfer(source, dest, len_bytes)
}

/// [`transfer`] of all of `len_bytes`, or neither cursor moves.
///
/// # Errors
/// [`Error::TooShort`], or what [`transfer`] returns; memory behind `dest` may have been written.
pub fn transfer_full(
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
) -> Result<(), Error> {
    let (source_bytes, dest_bytes) = (source.remaining(), dest.remaining());
    let available_bytes = source_bytes.min(dest_bytes);
    if available_bytes < len_bytes {
        return Err(Error::TooShort { wanted_bytes: len_bytes, available_bytes });
    }
    let outcome = transfer(source, dest, len_bytes);
    if outcome == Ok(len_bytes) {
        return Ok(());
    }
    source.revert(source_bytes.saturating_sub(source.remaining()))?;
    dest.revert(dest_bytes.saturating_sub(dest.remaining()))?;
    Err(match outcome {
        Ok(available_bytes) => Error::TooShort { wanted_bytes: len_bytes, available_bytes },
        Err(error) => error,
    })
}

/// [`read`], with the bytes taken in by `sink` in the same pass.
///
/// # Errors
/// As [`read`]; `sink` has the bytes that were copied.
#[doc(alias = "csum_and_copy_from_iter_full")]
pub fn read_into(
    source: &mut impl SegmentSource<Source>,
    into: &mut [u8],
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().read_into(source, into, sink)
}

/// [`write()`], with the bytes taken in by `sink` in the same pass: also those that go to a
/// [`Discard`](crate::kinds::Discard).
///
/// # Errors
/// As [`write()`]; `sink` has the bytes that were copied.
#[doc(alias = "csum_and_copy_to_iter")]
#[doc(alias = "hash_and_copy_to_iter")]
pub fn write_into(
    dest: &mut impl SegmentSource<Dest>,
    from: &[u8],
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().write_into(dest, from, sink)
}

/// [`transfer`], with the bytes taken in by `sink` in the same pass. Those that go to a
/// [`Discard`](crate::kinds::Discard) are not looked at.
///
/// # Errors
/// As [`transfer`]; `sink` has the bytes that were copied.
pub fn transfer_into(
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().transfer_into(source, dest, len_bytes, sink)
}

/// Has `sink` take in the next `len_bytes` bytes of `source`, or as many as there are, and copies them
/// nowhere. Returns how many. Of memory that others change, `sink` has what was there; to have the
/// bytes too, take both at once, by [`read_into`].
///
/// # Errors
/// As [`read`]; `sink` has the bytes before the fault.
pub fn walk_into(
    source: &mut impl SegmentSource<Source>,
    len_bytes: usize,
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().walk_into(source, len_bytes, sink)
}

/// Copies `len_bytes` bytes from `offset` of a page to `dest`, or as many as fit. Returns how many.
///
/// # Errors
/// [`Error::OutsidePage`], and as [`read`].
#[doc(alias = "copy_page_to_iter")]
pub fn write_page(
    dest: &mut impl SegmentSource<Dest>,
    page: &Page<'_>,
    offset: usize,
    len_bytes: usize,
) -> Result<usize, Error> {
    let outside = Error::OutsidePage { offset, len_bytes, page_bytes: page.size_bytes() };
    let part = page.view().subslice(offset, len_bytes).map_err(|_| outside)?;
    transfer(&mut crate::Cursor::<Source>::foreign_buf(part), dest, len_bytes)
}

/// Copies bytes from `source` to `len_bytes` bytes from `offset` of a page, as many as there are.
/// Returns how many.
///
/// # Errors
/// [`Error::OutsidePage`], and as [`read`].
#[doc(alias = "copy_page_from_iter")]
pub fn read_page(
    source: &mut impl SegmentSource<Source>,
    page: &mut Page<'_>,
    offset: usize,
    len_bytes: usize,
) -> Result<usize, Error> {
    let outside = Error::OutsidePage { offset, len_bytes, page_bytes: page.size_bytes() };
    let mut whole = page.view_mut();
    let part = whole.subslice_mut(offset, len_bytes).map_err(|_| outside)?;
    transfer(source, &mut crate::Cursor::<Dest>::foreign_buf(part), len_bytes)
}

/// Does `work` on a cursor that has `len_bytes`, and moves the cursor back if not all was done.
fn in_full<D: Direction, S: SegmentSource<D>>(
    cursor: &mut S,
    len_bytes: usize,
    work: impl FnOnce(&mut S) -> Result<usize, Error>,
) -> Result<(), Error> {
    let before = cursor.remaining();
    if before < len_bytes {
        return Err(Error::TooShort { wanted_bytes: len_bytes, available_bytes: before });
    }
    let outcome = work(cursor);
    let walked = before.saturating_sub(cursor.remaining());
    match outcome {
        Ok(done) if done == len_bytes => Ok(()),
        Ok(done) => {
            cursor.revert(walked)?;
            Err(Error::TooShort { wanted_bytes: len_bytes, available_bytes: done })
        }
        Err(error) => {
            cursor.revert(walked)?;
            Err(error)
        }
    }
}
