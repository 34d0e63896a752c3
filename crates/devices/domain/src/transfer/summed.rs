//! Checksums of the bytes that a device reads or has written, computed in the pass that copies them.
#![expect(unsafe_code, reason = "views memory and slots of a mapping")]

use std::iter;
use std::panic::Location;
use std::ptr::NonNull;

use longshore_iov::checksum::Checksum;
use longshore_iov::crc32c::Crc32c;
use longshore_iov::{Cursor, Dest, Source, copy};
use longshore_mem::copy::CopyFault;
use longshore_mem::{DmaMemory, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};

use super::bounce;
use super::mapping::Mapping;
use super::place::check;
use crate::counters::Event;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::{Error, Failed};
use crate::handle::Handle;
use crate::local::Local;
use crate::pool::chunk::Slot;

/// A running checksum: [`Checksum`] (RFC 1071) or [`Crc32c`].
pub trait Sum: sealed::Sum {}

impl<S: sealed::Sum> Sum for S {}

mod sealed {
    use longshore_mem::{VolatileSlice, VolatileSliceMut};

    /// The operations of a sum.
    pub trait Sum {
        fn transfer(
            &mut self,
            from: VolatileSlice<'_>,
            to: VolatileSliceMut<'_>,
        ) -> Result<usize, longshore_iov::Error>;
        fn walk(&mut self, from: VolatileSlice<'_>) -> Result<usize, longshore_iov::Error>;
    }
}

macro_rules! sum {
    ($sum:ty) => {
        impl sealed::Sum for $sum {
            fn transfer(
                &mut self,
                from: VolatileSlice<'_>,
                to: VolatileSliceMut<'_>,
            ) -> Result<usize, longshore_iov::Error> {
                let len_bytes = from.len();
                let mut from = Cursor::<Source>::foreign_buf(from);
                let mut to = Cursor::<Dest>::foreign_buf(to);
                copy::transfer_into(&mut from, &mut to, len_bytes, self)
            }

            fn walk(&mut self, from: VolatileSlice<'_>) -> Result<usize, longshore_iov::Error> {
                let len_bytes = from.len();
                copy::walk_into(&mut Cursor::<Source>::foreign_buf(from), len_bytes, self)
            }
        }
    };
}

sum!(Checksum);
sum!(Crc32c);

/// Returns a view of the bytes from `start + at` on.
///
/// # Safety
/// They must be mapped, and no reference to them may exist, as long as the view is used.
unsafe fn view<'v>(start: NonNull<u8>, at: u64, len_bytes: u64) -> VolatileSlice<'v> {
    // SAFETY: within the bytes, by the caller's promise.
    let start = unsafe { start.add(at as usize) };
    // SAFETY: the caller's promise.
    unsafe { VolatileSlice::from_raw_parts(start, len_bytes as usize) }
}

/// Returns a writable view of the bytes from `start + at` on.
///
/// # Safety
/// As [`view`], and no other code may write to them.
unsafe fn view_mut<'v>(start: NonNull<u8>, at: u64, len_bytes: u64) -> VolatileSliceMut<'v> {
    // SAFETY: within the bytes, by the caller's promise.
    let start = unsafe { start.add(at as usize) };
    // SAFETY: the caller's promise.
    unsafe { VolatileSliceMut::from_raw_parts(start, len_bytes as usize) }
}

fn failed(iova: Iova, error: longshore_iov::Error) -> Box<Error> {
    let longshore_iov::Error::Fault { done_bytes, fault } = error else {
        unreachable!("a slot and memory are whole, and do not overlap: {error}")
    };
    Error::Copy { iova, source: CopyFault { done_bytes, fault } }.into()
}

impl<'d, B: DmaMemory + 'static, D: Handle> Mapping<'d, B, D> {
    #[track_caller]
    fn summed(
        handle: &'d D,
        memory: B,
        direction: Direction,
        sum: &mut impl Sum,
    ) -> Result<Self, Failed<B>> {
        if let Err(error) = check(&memory, direction) {
            return Err(Failed { error, value: memory });
        }
        let host = memory.host();
        let (start, len_bytes) = (host.cast::<u8>(), host.len() as u64);
        let copy = |slot: &mut Slot| {
            let offset = handle.state().policy.slot_offset(start.addr().get() as u64);
            let iova = Iova::new(slot.iova().raw() + offset);
            let range = offset..offset + len_bytes;
            // SAFETY: the slot was taken for the length and the offset.
            unsafe { bounce::prepare(slot, iter::once(range)) }
                .map_err(|source| Error::Copy { iova, source })?;
            // SAFETY: the caller owns the memory.
            let from = unsafe { view(start, 0, len_bytes) };
            // SAFETY: the slot has this many bytes from `offset` on, and belongs to this transfer.
            let to = unsafe { view_mut(slot.host(), offset, len_bytes) };
            sum.transfer(from, to).map_err(|error| failed(iova, error))?;
            handle.add(Event::Copied, len_bytes);
            Ok(())
        };
        match Self::slotted(handle, memory, direction, copy)? {
            Ok(mapping) => Ok(mapping),
            Err(memory) => {
                // SAFETY: the caller owns the memory.
                let walked = sum.walk(unsafe { view(start, 0, len_bytes) });
                match walked {
                    Ok(_) => Self::new(handle, memory, direction, false),
                    Err(error) => {
                        let error = failed(Iova::new(0), error);
                        Err(Failed { error, value: memory })
                    }
                }
            }
        }
    }

    /// Unmaps as [`complete`](Self::complete), and adds the bytes that the device has written to `sum`.
    /// Bytes from a bounce buffer are added in the pass that copies them, so the sum is that of the
    /// bytes in the memory, even if the device writes again.
    ///
    /// ```
    /// # use longshore_domain::{Bounce, Domain, backend::Soft};
    /// # use longshore_heap::Heap;
    /// use longshore_iov::crc32c::Crc32c;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let soft = Soft::new()?;
    /// # let device = soft.space().session();
    /// # let domain = Domain::builder(soft).bounce(Bounce::Always).build();
    /// let mapping = domain.map_reported(Heap::Memfd.allocate(4096)?)?;
    /// device.write(mapping.iova(), b"123456789")?;
    /// let mut crc = Crc32c::new();
    /// let buffer = mapping.complete_summed(9, &mut crc).map_err(|failed| failed.error)?;
    /// assert_eq!(crc.finish(), 0xe306_9283);
    /// # drop(buffer);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`complete`](Self::complete); `sum` must not be used then.
    #[track_caller]
    pub fn complete_summed(
        self,
        written_bytes: u64,
        sum: &mut impl Sum,
    ) -> Result<B, Failed<Self>> {
        let at = Location::caller();
        self.finish(written_bytes, at, |mapping| mapping.copy_back_summed(written_bytes, sum))
    }

    fn copy_back_summed(&self, written_bytes: u64, sum: &mut impl Sum) -> Result<(), Box<Error>> {
        let start = self.host();
        let mut at = 0;
        let mut copied = 0;
        for part in self.elsewhere().into_iter().flatten() {
            let end = written_bytes.min(part.at + part.len_bytes);
            let Some(len_bytes) = end.checked_sub(part.at).filter(|len| *len != 0) else { break };
            // SAFETY: the memory before the part belongs to this mapping; the device cannot reach it.
            let before = unsafe { view(start, at, part.at - at) };
            // SAFETY: these are the part's bytes. The view is volatile, as a device may still write.
            let from = unsafe { view(part.host, 0, len_bytes) };
            let summed = sum.walk(before).and_then(|_| {
                if self.direction() == Direction::ToDevice {
                    // SAFETY: within the memory, which belongs to this mapping.
                    return sum.walk(unsafe { view(start, part.at, len_bytes) });
                }
                // SAFETY: the memory belongs to this mapping, there is no reference to it, and it is
                // writable, because the direction is not `ToDevice`.
                let to = unsafe { view_mut(start, part.at, len_bytes) };
                copied += len_bytes;
                sum.transfer(from, to)
            });
            summed.map_err(|error| failed(self.iova(), error))?;
            at = end;
        }
        // SAFETY: the rest of the memory, as before the parts.
        let rest = unsafe { view(start, at, written_bytes - at) };
        sum.walk(rest).map_err(|error| failed(self.iova(), error))?;
        self.handle().add(Event::Copied, copied);
        Ok(())
    }
}

macro_rules! summed {
    ($handle:ty) => {
        impl $handle {
            /// Maps memory as [`map`](Self::map), and adds its bytes to `sum`. Bytes that go to a bounce
            /// buffer are added in the pass that copies them.
            ///
            /// # Errors
            /// As [`map`](Self::map); `sum` must not be used then.
            #[track_caller]
            pub fn map_summed<B: DmaMemory + 'static>(
                &self,
                memory: B,
                direction: Direction,
                sum: &mut impl Sum,
            ) -> Result<Mapping<'_, B, Self>, Failed<B>> {
                Mapping::summed(self, memory, direction, sum)
            }
        }
    };
}

summed!(Domain);
summed!(Local<'_>);
