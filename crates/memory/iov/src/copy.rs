//! Copies from cursors, to cursors and between cursors.
//!
//! An [`Engine`] copies with one chosen instruction set. The functions here use the best one of the
//! machine, or the one that `LONGSHORE_ISA` names ([`longshore_mem::isa`]).
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

/// Copies, checksums and digests with one instruction set, which is chosen outside of every loop.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    pub(crate) token: IsaToken,
}

impl Engine {
    /// Returns an engine for the best instruction set of the machine, or for the one that
    /// `LONGSHORE_ISA` names.
    #[inline]
    pub fn active() -> Self {
        Self { token: IsaToken::active() }
    }

    /// Returns an engine for `isa`, or `None` if the machine lacks it.
    pub fn with(isa: Isa) -> Option<Self> {
        isa.token().map(|token| Self { token })
    }

    /// Returns an engine for each instruction set of the machine, from the least to the best.
    pub fn all() -> impl Iterator<Item = Self> {
        IsaToken::all().map(|token| Self { token })
    }

    /// Returns the instruction set.
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

    /// Updates `sink` with `bytes`, which are private memory.
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

/// Copies the next bytes of `source` to `into`. Returns the number of bytes copied, which is less
/// than `into.len()` only if the source ended.
///
/// # Errors
/// [`Error::Fault`] if an access to foreign memory faults while a
/// [`FaultGuard`](longshore_mem::fault::FaultGuard) lives; the cursor stands at the byte that
/// faulted.
#[doc(alias = "copy_from_iter")]
pub fn read(source: &mut impl SegmentSource<Source>, into: &mut [u8]) -> Result<usize, Error> {
    Engine::active().read(source, into)
}

/// Fills all of `into`, as [`read`] does, or leaves the cursor where it was.
///
/// # Errors
/// [`Error::TooShort`] if `source` has fewer bytes, or an error of [`read`]; `into` may have been
/// written to.
#[doc(alias = "copy_from_iter_full")]
pub fn read_full(source: &mut impl SegmentSource<Source>, into: &mut [u8]) -> Result<(), Error> {
    in_full(source, into.len(), |source| read(source, into))
}

/// Copies `from` to the next bytes of `dest`. Returns the number of bytes copied, which is less
/// than `from.len()` only if the destination ended.
///
/// # Errors
/// As [`read`].
#[doc(alias = "copy_to_iter")]
pub fn write(dest: &mut impl SegmentSource<Dest>, from: &[u8]) -> Result<usize, Error> {
    Engine::active().write(dest, from)
}

/// Copies all of `from`, as [`write()`] does, or leaves the cursor where it was.
///
/// # Errors
/// [`Error::TooShort`] if `dest` has less room, or an error of [`write()`]; memory behind the
/// cursor may have been written to.
#[doc(alias = "copy_to_iter_full")]
pub fn write_full(dest: &mut impl SegmentSource<Dest>, from: &[u8]) -> Result<(), Error> {
    in_full(dest, from.len(), |dest| write(dest, from))
}

/// Sets the next `len_bytes` bytes to zero, or as many as there are. Returns their number.
///
/// # Errors
/// As [`read`].
#[doc(alias = "iov_iter_zero")]
pub fn zero(dest: &mut impl SegmentSource<Dest>, len_bytes: usize) -> Result<usize, Error> {
    fill(dest, 0, len_bytes)
}

/// Sets the next `len_bytes` bytes to `byte`, or as many as there are. Returns their number.
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

/// Copies the next `len_bytes` bytes of `source` to the next bytes of `dest`, or as many as both
/// have. Returns the number of bytes copied, by which both cursors move.
///
/// # Errors
/// As [`read`]. [`Error::Overlap`] if a segment of the source shares bytes with a segment of the
/// destination; the bytes before it are copied.
pub fn transfer(
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
) -> Result<usize, Error> {
    Engine::active().transfer(source, dest, len_bytes)
}

/// Copies all of `len_bytes`, as [`transfer`] does, or leaves both cursors where they were.
///
/// # Errors
/// [`Error::TooShort`] if a cursor has fewer bytes, or an error of [`transfer`]; memory behind
/// `dest` may have been written to.
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

/// Copies as [`read`] does, and updates `sink` with the bytes in the same pass.
///
/// # Errors
/// As [`read`]; `sink` was updated with the bytes that were copied.
#[doc(alias = "csum_and_copy_from_iter_full")]
pub fn read_into(
    source: &mut impl SegmentSource<Source>,
    into: &mut [u8],
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().read_into(source, into, sink)
}

/// Copies as [`write()`] does, and updates `sink` with the bytes in the same pass, also with those
/// that go to a [`Discard`](crate::kinds::Discard).
///
/// # Errors
/// As [`write()`]; `sink` was updated with the bytes that were copied.
#[doc(alias = "csum_and_copy_to_iter")]
#[doc(alias = "hash_and_copy_to_iter")]
pub fn write_into(
    dest: &mut impl SegmentSource<Dest>,
    from: &[u8],
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().write_into(dest, from, sink)
}

/// Copies as [`transfer`] does, and updates `sink` with the bytes in the same pass, but not with
/// those that go to a [`Discard`](crate::kinds::Discard).
///
/// # Errors
/// As [`transfer`]; `sink` was updated with the bytes that were copied.
pub fn transfer_into(
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().transfer_into(source, dest, len_bytes, sink)
}

/// Updates `sink` with the next `len_bytes` bytes of `source`, or as many as there are, without
/// copying them. Returns their number. Foreign memory may have changed when you read it again: if
/// you need the bytes, too, use [`read_into`].
///
/// # Errors
/// As [`read`]; `sink` was updated with the bytes before the fault.
pub fn walk_into(
    source: &mut impl SegmentSource<Source>,
    len_bytes: usize,
    sink: &mut impl Sink,
) -> Result<usize, Error> {
    Engine::active().walk_into(source, len_bytes, sink)
}

/// Copies `len_bytes` bytes at `offset` of a page to `dest`, or as many as fit. Returns their
/// number.
///
/// # Errors
/// [`Error::OutsidePage`] if the range reaches past the page, and as [`read`].
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

/// Copies bytes from `source` to the `len_bytes` bytes at `offset` of a page, or as many as there
/// are. Returns their number.
///
/// # Errors
/// [`Error::OutsidePage`] if the range reaches past the page, and as [`read`].
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

/// Runs `work` on a cursor that has `len_bytes`, and moves the cursor back if `work` did less.
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
