//! A submission queue with its completion queue (NVM Express Base Specification 2.0, section 3.3).
//!
//! ```text
//!   submit ──► [ submissions ]──► tail doorbell ──► controller
//!                  slots: values kept until they end    │
//!   take  ◄── [ completions ] ◄── phase tag ◄───────────┘
//!                  └── head doorbell: entries up to here are free
//! ```
//!
//! Both rings have one entry more than commands can be in flight, so neither is full when a command is
//! submitted, and the driver does not need the controller's heads. [`Rings::ring`] writes each doorbell
//! once for all entries since the last call.

use std::sync::atomic::{Ordering, fence};

use longshore_domain::{Coherent, Domain};

use crate::command::{COMPLETION_BYTES, Command, CommandInfo, CompletionEntry, SUBMISSION_BYTES};
use crate::error::{Error, SubmitError};
use crate::hardware::Hardware;
use crate::registers::Capabilities;
use crate::status::Status;

/// A submission and a completion queue, which keep a `T` for each command in flight.
pub(crate) struct Rings<'d, T> {
    pub(crate) id: u16,
    submissions: Coherent<'d>,
    completions: Coherent<'d>,
    entries: u16,
    tail: u16,
    rung_tail: u16,
    head: u16,
    rung_head: u16,
    /// The phase tag of new entries in this round.
    phase: bool,
    slots: Box<[Slot<T>]>,
    /// The command identifiers that are not in flight.
    free: Vec<u16>,
    tail_doorbell: usize,
    head_doorbell: usize,
}

struct Slot<T> {
    payload: Option<T>,
    info: CommandInfo,
}

/// A completed command.
pub(crate) struct Ended<T> {
    pub(crate) payload: T,
    pub(crate) info: CommandInfo,
    pub(crate) status: Status,
    /// DW0: the result of the command.
    pub(crate) value: u32,
}

impl<'d, T> Rings<'d, T> {
    /// Allocates rings for `depth` commands in flight.
    pub(crate) fn new(
        domain: &'d Domain,
        capabilities: Capabilities,
        id: u16,
        depth: u16,
    ) -> Result<Self, Error> {
        let entries = depth + 1;
        let coherent = |bytes| domain.alloc_coherent(u64::from(entries) * bytes as u64);
        let nothing = CommandInfo::Flush { namespace: 0 };
        Ok(Self {
            id,
            submissions: coherent(SUBMISSION_BYTES)?,
            completions: coherent(COMPLETION_BYTES)?,
            entries,
            tail: 0,
            rung_tail: 0,
            head: 0,
            rung_head: 0,
            phase: true,
            slots: (0..depth).map(|_| Slot { payload: None, info: nothing }).collect(),
            free: (0..depth).rev().collect(),
            tail_doorbell: capabilities.tail_doorbell(id),
            head_doorbell: capabilities.head_doorbell(id),
        })
    }

    pub(crate) fn entries(&self) -> u16 {
        self.entries
    }

    pub(crate) fn depth(&self) -> u16 {
        self.entries - 1
    }

    pub(crate) fn in_flight(&self) -> u16 {
        self.depth() - self.free.len() as u16
    }

    /// Returns the addresses of the submission and of the completion queue.
    pub(crate) fn iovas(&self) -> [u64; 2] {
        [self.submissions.iova().raw(), self.completions.iova().raw()]
    }

    /// Returns the identifier of the next command.
    #[inline]
    pub(crate) fn next_id(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Adds a command to the ring. The controller sees it after [`Rings::ring`].
    #[inline]
    pub(crate) fn submit(
        &mut self,
        command: &Command,
        info: CommandInfo,
        payload: T,
    ) -> Result<(), SubmitError<T>> {
        let Some(id) = self.free.pop() else {
            return Err(SubmitError { error: Error::QueueFull { depth: self.depth() }, payload });
        };
        let at = usize::from(self.tail) * SUBMISSION_BYTES;
        let written = self.submissions.view_mut().write(at, &command.entry(id));
        written.expect("the ring has as many entries");
        self.slots[usize::from(id)] = Slot { payload: Some(payload), info };
        self.tail = next(self.tail, self.entries);
        Ok(())
    }

    /// Returns the next completed command, if there is one.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Option<Ended<T>>, Error> {
        let at = usize::from(self.head) * COMPLETION_BYTES;
        let ring = self.completions.view();
        // The command identifier and the phase tag are read together, so that they match.
        let completion = CompletionEntry(ring.read_u64_le(at + 8).expect("inside of the ring"));
        if completion.phase() != self.phase {
            return Ok(None);
        }
        // The controller writes the phase tag last, so the rest of the entry is read after it.
        fence(Ordering::Acquire);
        let value = ring.read_u64_le(at).expect("inside of the ring") as u32;
        self.head = next(self.head, self.entries);
        self.phase ^= self.head == 0;
        let id = completion.command_id();
        let slot = self.slots.get_mut(usize::from(id));
        let Some((payload, info)) = slot.and_then(|slot| Some((slot.payload.take()?, slot.info)))
        else {
            return Err(Error::UnexpectedCompletion { queue: self.id, id });
        };
        self.free.push(id);
        Ok(Some(Ended { payload, info, status: completion.status(), value }))
    }

    /// Writes the doorbells if commands were submitted or completions taken since the last call.
    #[inline]
    pub(crate) fn ring(&mut self, hardware: &impl Hardware) {
        if self.head != self.rung_head {
            hardware.write_u32(self.head_doorbell, u32::from(self.head));
            self.rung_head = self.head;
        }
        if self.tail != self.rung_tail {
            before_doorbell();
            hardware.write_u32(self.tail_doorbell, u32::from(self.tail));
            self.rung_tail = self.tail;
        }
    }

    /// Returns one of the commands in flight.
    pub(crate) fn any_in_flight(&self) -> Option<CommandInfo> {
        self.slots.iter().find(|slot| slot.payload.is_some()).map(|slot| slot.info)
    }

    /// Returns the values of commands that will not end.
    pub(crate) fn into_payloads(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(|slot| slot.payload)
    }
}

/// Orders all writes to memory before the write of a doorbell.
#[inline]
fn before_doorbell() {
    // x86 keeps stores in order, also those to a device, so only the compiler must be kept from
    // reordering.
    let order = if cfg!(target_arch = "x86_64") { Ordering::Release } else { Ordering::SeqCst };
    fence(order);
}

#[inline]
fn next(index: u16, entries: u16) -> u16 {
    if index + 1 == entries { 0 } else { index + 1 }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io;

    use longshore_access::Session;
    use longshore_domain::backend::Soft;
    use longshore_mem::Iova;

    use super::*;
    use crate::command::DataPointer;

    /// The controller's end of the rings.
    struct Far {
        session: Session,
        rings: [u64; 2],
        entries: u64,
        head: u64,
        tail: u64,
        phase: bool,
        /// The identifiers of commands that were fetched and have not ended.
        fetched: VecDeque<u16>,
    }

    impl Far {
        fn fetch(&mut self, tail: u64) {
            while self.head != tail {
                let mut entry = [0; 64];
                self.session.read(Iova::new(self.rings[0] + self.head * 64), &mut entry).unwrap();
                self.fetched.push_back(u16::from_le_bytes([entry[2], entry[3]]));
                self.head = (self.head + 1) % self.entries;
            }
        }

        fn end(&mut self, nth: usize, value: u32) {
            let id = self.fetched.remove(nth).unwrap();
            let mut entry = [0; 16];
            entry[..4].copy_from_slice(&value.to_le_bytes());
            entry[12..14].copy_from_slice(&id.to_le_bytes());
            entry[14] = u8::from(self.phase);
            self.session.write(Iova::new(self.rings[1] + self.tail * 16), &entry).unwrap();
            self.tail = (self.tail + 1) % self.entries;
            self.phase ^= self.tail == 0;
        }
    }

    /// Hardware that records the doorbells.
    #[derive(Default)]
    struct Doorbells(RefCell<Vec<(usize, u32)>>);

    impl Hardware for Doorbells {
        fn registers_len(&self) -> usize {
            0x2000
        }

        fn read_u32(&self, _: usize) -> u32 {
            0
        }

        fn read_u64(&self, _: usize) -> u64 {
            0
        }

        fn write_u32(&self, at: usize, value: u32) {
            self.0.borrow_mut().push((at, value));
        }

        fn write_u64(&self, _: usize, _: u64) {}

        fn set_bus_master(&self, _: bool) -> io::Result<()> {
            Ok(())
        }

        fn reset(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn with_rings(depth: u16, work: impl FnOnce(&mut Rings<'_, u32>, &mut Far, &Doorbells)) {
        let soft = Soft::new().unwrap();
        let session = soft.space().session();
        let domain = Domain::builder(soft).build();
        let mut rings = Rings::new(&domain, Capabilities(0), 2, depth).unwrap();
        let far = &mut Far {
            session,
            rings: rings.iovas(),
            entries: u64::from(depth) + 1,
            head: 0,
            tail: 0,
            phase: true,
            fetched: VecDeque::new(),
        };
        work(&mut rings, far, &Doorbells::default());
    }

    fn submit(rings: &mut Rings<'_, u32>, payload: u32) -> Result<(), SubmitError<u32>> {
        let data = DataPointer::None;
        let command = Command { opcode: 0, namespace: 1, data, words: [payload, 0, 0] };
        rings.submit(&command, CommandInfo::Flush { namespace: payload }, payload)
    }

    #[test]
    fn rings_wrap_and_phases_turn() {
        with_rings(3, |rings, far, doorbells| {
            let mut given = 0;
            for round in 0..50 {
                while submit(rings, given).is_ok() {
                    given += 1;
                }
                rings.ring(doorbells);
                let (at, tail) = *doorbells.0.borrow().last().unwrap();
                assert_eq!(at, 0x1000 + 2 * 2 * 4);
                far.fetch(u64::from(tail));
                assert_eq!((rings.in_flight(), far.fetched.len()), (3, 3));
                // Commands end in another order than they were submitted in.
                for nth in [1, 0] {
                    far.end(nth, round * 2 + nth as u32);
                }
                let ended: Vec<_> = std::iter::from_fn(|| rings.take().unwrap()).collect();
                assert_eq!(
                    ended.iter().map(|e| e.value).collect::<Vec<_>>(),
                    [round * 2 + 1, round * 2]
                );
                assert!(
                    ended.iter().all(|e| e.info == CommandInfo::Flush { namespace: e.payload })
                );
                assert_eq!(rings.in_flight(), 1);
            }
            assert_eq!(given, 3 + 49 * 2);
        });
    }

    #[test]
    fn doorbells_are_written_once_for_all_entries() {
        with_rings(8, |rings, far, doorbells| {
            rings.ring(doorbells);
            assert!(doorbells.0.borrow().is_empty());
            (0..5).for_each(|payload| submit(rings, payload).unwrap());
            rings.ring(doorbells);
            rings.ring(doorbells);
            assert_eq!(doorbells.0.take(), [(0x1010, 5)]);
            far.fetch(5);
            (0..4).for_each(|value| far.end(0, value));
            while rings.take().unwrap().is_some() {}
            submit(rings, 9).unwrap();
            rings.ring(doorbells);
            assert_eq!(doorbells.0.take(), [(0x1014, 4), (0x1010, 6)]);
        });
    }

    #[test]
    fn a_full_queue_returns_the_payload() {
        with_rings(1, |rings, _, _| {
            submit(rings, 7).unwrap();
            let refused = submit(rings, 8).unwrap_err();
            assert_eq!(refused.payload, 8);
            assert!(matches!(refused.error, Error::QueueFull { depth: 1 }));
            assert_eq!(rings.any_in_flight(), Some(CommandInfo::Flush { namespace: 7 }));
        });
    }

    #[test]
    fn an_unexpected_completion_is_an_error() {
        with_rings(2, |rings, far, _| {
            far.fetched.extend([1, 77]);
            for id in [1, 77] {
                far.end(0, 0);
                let unasked = rings.take().map(|_| ()).unwrap_err();
                assert!(
                    matches!(unasked, Error::UnexpectedCompletion { queue: 2, id: said } if said == id)
                );
            }
        });
    }

    #[test]
    fn payloads_of_unfinished_commands_are_returned() {
        let soft = Soft::new().unwrap();
        let domain = Domain::builder(soft).build();
        let mut rings = Rings::new(&domain, Capabilities(0), 1, 4).unwrap();
        (10..13).for_each(|payload| submit(&mut rings, payload).unwrap());
        let mut kept: Vec<_> = rings.into_payloads().collect();
        kept.sort_unstable();
        assert_eq!(kept, [10, 11, 12]);
        assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
    }
}
