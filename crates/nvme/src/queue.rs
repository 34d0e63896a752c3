//! An I/O queue: commands in flight, and what is kept for them until they end.

use std::fmt;
use std::mem;

use longshore_domain::Coherent;

use crate::command::{Command, CommandError, DataPointer, Verb, What};
use crate::controller::{Controller, Namespace};
use crate::data::{Describer, LIST_BYTES, Segment};
use crate::error::{Error, Refused};
use crate::hardware::Hardware;
use crate::rings::{Ended, Rings};
use crate::waiting::Waiting;

/// Flush (NVM Command Set Specification 1.0, section 3.2.2).
const OPCODE_FLUSH: u8 = 0x00;
/// The most blocks of a command: NLB has 16 bits, and 0 is one block.
const BLOCKS_MAX: u64 = 1 << 16;

/// An I/O queue of a [`Controller`]. `T` is what a command needs until it ends: most of all the mapping
/// of the memory it reads or writes.
///
/// ```text
///   submit, submit … ──► ring ──► take, take … ──► submit … ──► ring
///                         └── one write of each doorbell for all that came together
/// ```
///
/// Nothing is allocated between making it and dropping it. Dropped while commands are in flight, it
/// first makes the controller give them up, and drops what it keeps for them then; where that is
/// impossible, it leaks it.
pub struct Queue<'c, 'd, H: Hardware, T> {
    controller: &'c Controller<'d, H>,
    describer: Describer,
    max_transfer_bytes: u64,
    /// What a list is made in, before it is copied to where the controller finds it.
    scratch: Box<[u8; LIST_BYTES]>,
    id: u16,
    /// `None` once it was closed.
    parts: Option<Parts<'d, T>>,
}

/// What the controller can reach, or has.
struct Parts<'d, T> {
    rings: Rings<'d, T>,
    /// A list for each command that can be in flight.
    lists: Coherent<'d>,
}

/// A command that ended.
#[derive(Debug)]
pub struct Done<T> {
    /// What was kept for it. Of a read that failed, any part of the memory may have been written.
    pub payload: T,
    /// How it ended.
    pub result: Result<(), CommandError>,
}

impl<'d, H: Hardware> Controller<'d, H> {
    /// An I/O queue for `depth` commands in flight, each of which keeps a `T` until it ends.
    ///
    /// # Errors
    /// [`Error::NoQueue`]; [`Error`] where the controller refuses it, or there is no memory.
    pub fn queue<T>(&self, depth: u16) -> Result<Queue<'_, 'd, H, T>, Error> {
        if depth == 0 || depth > self.depth_max() {
            let reason = format!("1 to {} are possible", self.depth_max());
            return Err(Error::NoQueue { depth, reason });
        }
        let lists = self.domain().alloc_coherent(u64::from(depth) * LIST_BYTES as u64)?;
        let rings = self.create_queue(depth)?;
        Ok(Queue {
            controller: self,
            describer: self.describer(),
            max_transfer_bytes: self.max_transfer_bytes(),
            scratch: Box::new([0; LIST_BYTES]),
            id: rings.id,
            parts: Some(Parts { rings, lists }),
        })
    }
}

impl<'c, 'd, H: Hardware, T> Queue<'c, 'd, H, T> {
    /// How many commands can be in flight.
    pub fn depth(&self) -> u16 {
        self.rings().depth()
    }

    /// How many are.
    pub fn in_flight(&self) -> u16 {
        self.rings().in_flight()
    }

    /// The controller.
    pub fn controller(&self) -> &'c Controller<'d, H> {
        self.controller
    }

    /// Reads blocks from `lba` on into `data`, as many as that has room for, or writes them from
    /// there. The controller is told when the queue is rung.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::NotBlocks`], [`Error::TooLong`], [`Error::Data`], with the payload.
    #[inline]
    pub fn submit(
        &mut self,
        verb: Verb,
        namespace: &Namespace,
        lba: u64,
        data: &[Segment],
        payload: T,
    ) -> Result<(), Refused<T>> {
        match self.describe(verb, namespace, lba, data) {
            Ok((command, what)) => self.rings_mut().submit(&command, what, payload),
            Err(error) => Err(Refused { error, payload }),
        }
    }

    /// Writes what the controller has in its volatile cache to the medium.
    ///
    /// # Errors
    /// [`Error::Full`], with the payload.
    pub fn submit_flush(&mut self, namespace: &Namespace, payload: T) -> Result<(), Refused<T>> {
        let command = Command {
            opcode: OPCODE_FLUSH,
            namespace: namespace.id,
            data: DataPointer::None,
            words: [0; 3],
        };
        self.rings_mut().submit(&command, What::Flush { namespace: namespace.id }, payload)
    }

    /// Tells the controller of what was submitted, and of what was taken.
    #[inline]
    pub fn ring(&mut self) {
        let hardware = self.controller.hardware();
        self.rings_mut().ring(hardware);
    }

    /// The next command that ended, if there is one.
    ///
    /// # Errors
    /// [`Error::Unasked`]; the controller cannot be relied on then.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Done<T>>, Error> {
        let Some(Ended { payload, what, status, .. }) = self.rings_mut().take()? else {
            return Ok(None);
        };
        let result = if status.is_success() { Ok(()) } else { Err(CommandError { what, status }) };
        Ok(Some(Done { payload, result }))
    }

    /// Rings, and waits for a command to end.
    ///
    /// # Errors
    /// [`Error::Idle`] where nothing is in flight; [`Error::TimedOut`], [`Error::Fatal`],
    /// [`Error::Gone`], [`Error::Stopped`], [`Error::Unasked`]. Commands in flight stay with the
    /// controller.
    pub fn wait(&mut self) -> Result<Done<T>, Error> {
        self.ring();
        let mut waiting = Waiting::new(self.controller.io_timeout());
        loop {
            if let Some(done) = self.take()? {
                return Ok(done);
            }
            let rings = self.rings();
            waiting.spin(|| rings.any_in_flight(), || self.controller.check())?;
        }
    }

    /// Gives up the queue. What was kept for commands in flight comes back: the controller does not
    /// have them any more when this returns, and what they did is unknown.
    ///
    /// # Errors
    /// [`Error::Lost`]; all of it is leaked then.
    pub fn close(mut self) -> Result<impl Iterator<Item = T> + use<'d, H, T>, Error> {
        let parts = self.end()?.expect("it is closed once");
        Ok(parts.rings.into_payloads())
    }

    fn end(&mut self) -> Result<Option<Parts<'d, T>>, Error> {
        let parts = self.parts.take();
        if parts.is_some()
            && let Err(error) = self.controller.give_up(self.id)
        {
            mem::forget(parts);
            return Err(error);
        }
        Ok(parts)
    }

    #[inline]
    fn describe(
        &mut self,
        verb: Verb,
        namespace: &Namespace,
        lba: u64,
        data: &[Segment],
    ) -> Result<(Command, What), Error> {
        let len_bytes: u64 =
            data.iter().fold(0, |sum, segment| segment.len_bytes.saturating_add(sum));
        let block_bytes = namespace.block_bytes();
        let max_bytes = self.max_transfer_bytes.min(BLOCKS_MAX << namespace.block_log2);
        if len_bytes > max_bytes {
            return Err(Error::TooLong { len_bytes, max_bytes });
        }
        if len_bytes & (block_bytes - 1) != 0 || len_bytes == 0 {
            return Err(Error::NotBlocks { bytes: len_bytes, block_bytes });
        }
        let blocks = (len_bytes >> namespace.block_log2) as u32;
        let Parts { rings, lists } = self.parts.as_mut().expect("it is not closed");
        let id = rings.next_id().ok_or(Error::Full { depth: rings.depth() })?;
        let list_at = usize::from(id) * LIST_BYTES;
        let list_iova = lists.iova().raw() + list_at as u64;
        let described = self.describer.describe(data, list_iova, &mut self.scratch)?;
        if described.list_len_bytes != 0 {
            let list = &self.scratch[..described.list_len_bytes];
            lists.view_mut().write(list_at, list).expect("there is a list for each command");
        }
        let command = Command {
            opcode: verb.opcode(),
            namespace: namespace.id,
            data: described.pointer,
            words: [lba as u32, (lba >> 32) as u32, blocks - 1],
        };
        Ok((command, What::Blocks { verb, blocks, lba, namespace: namespace.id }))
    }

    fn rings(&self) -> &Rings<'d, T> {
        &self.parts.as_ref().expect("it is not closed").rings
    }

    #[inline]
    fn rings_mut(&mut self) -> &mut Rings<'d, T> {
        &mut self.parts.as_mut().expect("it is not closed").rings
    }
}

impl<H: Hardware, T> Drop for Queue<'_, '_, H, T> {
    fn drop(&mut self) {
        // What could not be taken back is leaked, and nobody is left who could be told.
        drop(self.end());
    }
}

impl<H: Hardware, T> fmt::Debug for Queue<'_, '_, H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("id", &self.id)
            .field("in_flight", &self.parts.as_ref().map(|parts| parts.rings.in_flight()))
            .finish_non_exhaustive()
    }
}
