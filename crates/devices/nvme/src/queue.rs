//! An I/O queue: commands in flight, and the values that it keeps until they end.

use std::fmt;
use std::mem;

use longshore_domain::Coherent;

use crate::command::{Command, CommandError, CommandInfo, DataPointer, Opcode};
use crate::controller::{Controller, Namespace};
use crate::data::{Describer, LIST_BYTES, Segment};
use crate::error::{Error, SubmitError};
use crate::hardware::Hardware;
use crate::rings::{Ended, Rings};
use crate::waiting::Waiting;

/// Flush (NVM Command Set Specification 1.0, section 3.2.2).
const OPCODE_FLUSH: u8 = 0x00;
/// The largest number of blocks of a command: NLB has 16 bits, and 0 means one block.
const BLOCKS_MAX: u64 = 1 << 16;

/// An I/O queue of a [`Controller`]. It keeps a `T` for each command until the command ends, usually the
/// mapping of the memory that the command reads or writes.
///
/// ```text
///   submit, submit … ──► ring ──► take, take … ──► submit … ──► ring
///                         └── one write of each doorbell for all commands
/// ```
///
/// A queue allocates nothing after it was made. If it is dropped while commands are in flight, it first
/// makes the controller abort them, and then drops the values. If the controller cannot be stopped, the
/// values are leaked, because it may still access their memory.
pub struct Queue<'c, 'd, H: Hardware, T> {
    controller: &'c Controller<'d, H>,
    describer: Describer,
    max_transfer_bytes: u64,
    /// A buffer for a list, which is then copied to the memory that the controller reads.
    scratch: Box<[u8; LIST_BYTES]>,
    id: u16,
    /// `None` after the queue was closed.
    parts: Option<Parts<'d, T>>,
}

/// The parts that the controller can access.
struct Parts<'d, T> {
    rings: Rings<'d, T>,
    /// A PRP or SGL list for each command that can be in flight.
    lists: Coherent<'d>,
}

/// A completed command.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion<T> {
    /// The value that the queue kept. After a read that failed, any part of its memory may have been
    /// written.
    pub payload: T,
    /// The result of the command.
    pub result: Result<(), CommandError>,
}

impl<'d, H: Hardware> Controller<'d, H> {
    /// Creates an I/O queue for `depth` commands in flight. The queue keeps a `T` for each of them.
    ///
    /// # Errors
    /// Returns [`Error::QueueDepth`] if the depth is not possible, [`Error::NoQueue`] if all queues are in
    /// use, [`Error::Command`] if the controller refuses the queue, and [`Error::Domain`] if there is no
    /// memory.
    pub fn queue<T>(&self, depth: u16) -> Result<Queue<'_, 'd, H, T>, Error> {
        if depth == 0 || depth > self.depth_max() {
            return Err(Error::QueueDepth { depth, depth_max: self.depth_max() });
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
    /// Returns the number of commands that can be in flight.
    pub fn depth(&self) -> u16 {
        self.rings().depth()
    }

    /// Returns the number of commands in flight.
    pub fn in_flight(&self) -> u16 {
        self.rings().in_flight()
    }

    /// Returns the controller.
    pub fn controller(&self) -> &'c Controller<'d, H> {
        self.controller
    }

    /// Submits a command that reads blocks from `lba` on into `data`, or writes them from `data`. The
    /// length of `data` is the length of the transfer. The controller sees the command after
    /// [`ring`](Self::ring).
    ///
    /// # Errors
    /// Returns the payload with [`Error::QueueFull`], [`Error::PartialBlock`], [`Error::TooLong`] or
    /// [`Error::DataPointer`].
    #[inline]
    pub fn submit(
        &mut self,
        opcode: Opcode,
        namespace: &Namespace,
        lba: u64,
        data: &[Segment],
        payload: T,
    ) -> Result<(), SubmitError<T>> {
        match self.describe(opcode, namespace, lba, data) {
            Ok((command, info)) => self.rings_mut().submit(&command, info, payload),
            Err(error) => Err(SubmitError { error, payload }),
        }
    }

    /// Submits a Flush, which writes the volatile write cache of the controller to the medium.
    ///
    /// # Errors
    /// Returns the payload with [`Error::QueueFull`].
    pub fn submit_flush(
        &mut self,
        namespace: &Namespace,
        payload: T,
    ) -> Result<(), SubmitError<T>> {
        let command = Command {
            opcode: OPCODE_FLUSH,
            namespace: namespace.id,
            data: DataPointer::None,
            words: [0; 3],
        };
        self.rings_mut().submit(&command, CommandInfo::Flush { namespace: namespace.id }, payload)
    }

    /// Writes the doorbells: the controller sees the commands that were submitted, and the completions
    /// that were taken.
    #[inline]
    pub fn ring(&mut self) {
        let hardware = self.controller.hardware();
        self.rings_mut().ring(hardware);
    }

    /// Returns the next completed command, if there is one.
    ///
    /// # Errors
    /// Returns [`Error::UnexpectedCompletion`] if the controller completes a command that is not in
    /// flight. It must be stopped then.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Completion<T>>, Error> {
        let Some(Ended { payload, info, status, .. }) = self.rings_mut().take()? else {
            return Ok(None);
        };
        let result =
            if status.is_success() { Ok(()) } else { Err(CommandError { command: info, status }) };
        Ok(Some(Completion { payload, result }))
    }

    /// Writes the doorbells and waits for a command to end.
    ///
    /// # Errors
    /// Returns [`Error::Idle`] if no command is in flight, otherwise [`Error::TimedOut`],
    /// [`Error::Fatal`], [`Error::Gone`], [`Error::Stopped`] or [`Error::UnexpectedCompletion`]. The
    /// commands stay in flight then.
    pub fn wait(&mut self) -> Result<Completion<T>, Error> {
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

    /// Deletes the queue and returns the values of the commands in flight. The controller has none of these
    /// commands any more, and any of them may have been executed.
    ///
    /// # Errors
    /// Returns [`Error::Lost`] if the controller cannot be stopped. The values are leaked then.
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
        opcode: Opcode,
        namespace: &Namespace,
        lba: u64,
        data: &[Segment],
    ) -> Result<(Command, CommandInfo), Error> {
        let len_bytes: u64 =
            data.iter().fold(0, |sum, segment| segment.len_bytes.saturating_add(sum));
        let block_bytes = namespace.block_bytes();
        let max_bytes = self.max_transfer_bytes.min(BLOCKS_MAX << namespace.block_log2);
        if len_bytes > max_bytes {
            return Err(Error::TooLong { len_bytes, max_bytes });
        }
        if len_bytes & (block_bytes - 1) != 0 || len_bytes == 0 {
            return Err(Error::PartialBlock { bytes: len_bytes, block_bytes });
        }
        let blocks = (len_bytes >> namespace.block_log2) as u32;
        let Parts { rings, lists } = self.parts.as_mut().expect("it is not closed");
        let id = rings.next_id().ok_or(Error::QueueFull { depth: rings.depth() })?;
        let list_at = usize::from(id) * LIST_BYTES;
        let list_iova = lists.iova().raw() + list_at as u64;
        let described = self.describer.describe(data, list_iova, &mut self.scratch)?;
        if described.list_len_bytes != 0 {
            let list = &self.scratch[..described.list_len_bytes];
            lists.view_mut().write(list_at, list).expect("there is a list for each command");
        }
        let command = Command {
            opcode: opcode.raw(),
            namespace: namespace.id,
            data: described.pointer,
            words: [lba as u32, (lba >> 32) as u32, blocks - 1],
        };
        Ok((command, CommandInfo::Blocks { opcode, blocks, lba, namespace: namespace.id }))
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
        // Values that the controller may still access are leaked. A drop cannot return the error.
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
