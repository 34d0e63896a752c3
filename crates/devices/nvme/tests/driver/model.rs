//! A model of an NVMe controller, which accesses memory by IOVA through a session of the soft backend's
//! space. It executes commands when a doorbell is written, and can misbehave.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;

use longshore_access::Session;
use longshore_mem::Iova;
use longshore_nvme::Hardware;
use longshore_nvme::registers::{ACQ, AQA, ASQ, CAP, CC, CSTS, DOORBELLS, VS};

const PAGE: u64 = 4096;
const ENTRIES_MAX: u64 = 256;

/// The properties of the controller.
pub(crate) struct Traits {
    pub(crate) stride_log2: u32,
    pub(crate) block_log2: u32,
    pub(crate) max_transfer_log2_pages: u8,
    /// SGLS.
    pub(crate) sgl: u8,
    /// CAP.TO, in units of 500 ms.
    pub(crate) ready_timeout: u64,
}

impl Default for Traits {
    fn default() -> Self {
        Self { stride_log2: 0, block_log2: 9, max_transfer_log2_pages: 3, sgl: 1, ready_timeout: 1 }
    }
}

/// The ways in which the controller misbehaves.
#[derive(Default)]
pub(crate) struct Faulty {
    /// Commands of I/O queues do not end.
    pub(crate) holds_io: Cell<bool>,
    /// Commands of the admin queue do not end.
    pub(crate) holds_admin: Cell<bool>,
    /// Clearing CC.EN does not stop the controller.
    pub(crate) does_not_stop: Cell<bool>,
    /// A reset by the bus fails.
    pub(crate) does_not_reset: Cell<bool>,
    /// CSTS.CFS is set.
    pub(crate) is_fatal: Cell<bool>,
    /// Registers read as ones.
    pub(crate) is_gone: Cell<bool>,
}

pub(crate) struct Model {
    session: Session,
    traits: Traits,
    pub(crate) faulty: Faulty,
    is_master: Cell<bool>,
    registers: RefCell<BTreeMap<usize, u64>>,
    queues: RefCell<BTreeMap<u16, Queue>>,
    disk: RefCell<Vec<u8>>,
    /// The number of accesses that failed.
    strays: Cell<u32>,
    doorbells: Cell<u32>,
    flushes: Cell<u32>,
    was_shut_down: Cell<bool>,
}

struct Queue {
    submissions: u64,
    entries: u64,
    head: u64,
    tail: u64,
    completions: u64,
    completion_tail: u64,
    completion_head: u64,
    phase: bool,
    held: VecDeque<[u8; 64]>,
}

type Status = u16;
const SUCCESS: Status = 0;
const INVALID_OPCODE: Status = 0x01;
const INVALID_FIELD: Status = 0x02;
const TRANSFER_ERROR: Status = 0x04;
const LBA_OUT_OF_RANGE: Status = 0x80;

impl Model {
    pub(crate) fn new(session: Session, traits: Traits, disk: Vec<u8>) -> Self {
        Self {
            session,
            traits,
            faulty: Faulty::default(),
            is_master: Cell::new(false),
            registers: RefCell::default(),
            queues: RefCell::default(),
            disk: RefCell::new(disk),
            strays: Cell::new(0),
            doorbells: Cell::new(0),
            flushes: Cell::new(0),
            was_shut_down: Cell::new(false),
        }
    }

    pub(crate) fn strays(&self) -> u32 {
        self.strays.get()
    }

    /// Returns the number of writes to doorbells of I/O queues since the last call.
    pub(crate) fn doorbells(&self) -> u32 {
        self.doorbells.replace(0)
    }

    pub(crate) fn flushes(&self) -> u32 {
        self.flushes.get()
    }

    pub(crate) fn was_shut_down(&self) -> bool {
        self.was_shut_down.get()
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.register(CC) & 1 != 0
    }

    pub(crate) fn disk(&self) -> Vec<u8> {
        self.disk.borrow().clone()
    }

    /// Executes the commands that were held back, and returns their number.
    pub(crate) fn go_on(&self) -> usize {
        self.faulty.holds_io.set(false);
        let mut queues = self.queues.borrow_mut();
        let mut done = 0;
        for (_, queue) in queues.iter_mut().filter(|(id, _)| **id != 0) {
            while let Some(entry) = queue.held.pop_front() {
                let status = self.io(&entry);
                self.complete(queue, &entry, status, 0);
                done += 1;
            }
        }
        done
    }

    fn register(&self, at: usize) -> u64 {
        self.registers.borrow().get(&at).copied().unwrap_or(0)
    }

    fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), Status> {
        self.access(self.session.read(Iova::new(iova), into).is_ok())
    }

    fn write(&self, iova: u64, from: &[u8]) -> Result<(), Status> {
        self.access(self.session.write(Iova::new(iova), from).is_ok())
    }

    fn access(&self, was_done: bool) -> Result<(), Status> {
        if was_done && self.is_master.get() {
            return Ok(());
        }
        self.strays.set(self.strays.get() + 1);
        Err(TRANSFER_ERROR)
    }

    fn enable(&self, raw: u64) {
        let before = self.register(CC);
        self.registers.borrow_mut().insert(CC, raw);
        if raw >> 14 & 3 == 1 {
            self.was_shut_down.set(true);
        }
        match (before & 1, raw & 1) {
            (0, 1) => {
                let entries = (self.register(AQA) & 0xfff) + 1;
                let admin = Queue::new(self.register(ASQ), self.register(ACQ), entries);
                self.queues.borrow_mut().insert(0, admin);
            }
            (1, 0) if self.faulty.does_not_stop.get() => {}
            (_, 0) => self.queues.borrow_mut().clear(),
            _ => {}
        }
    }

    fn ring(&self, at: usize, value: u64) {
        let stride = 4 << self.traits.stride_log2;
        let index = (at - DOORBELLS) / stride;
        assert_eq!(at, DOORBELLS + index * stride, "between doorbells");
        let mut queues = self.queues.borrow_mut();
        let Some(mut queue) = queues.remove(&((index / 2) as u16)) else { return };
        drop(queues);
        assert!(value < queue.entries, "beyond the queue");
        let id = (index / 2) as u16;
        if id != 0 {
            self.doorbells.set(self.doorbells.get() + 1);
        }
        if index % 2 == 1 {
            queue.completion_head = value;
        } else {
            queue.tail = value;
            while queue.head != queue.tail {
                let mut entry = [0; 64];
                let fetched = self.read(queue.submissions + queue.head * 64, &mut entry);
                queue.head = (queue.head + 1) % queue.entries;
                if fetched.is_err() {
                    continue;
                }
                let holds = if id == 0 { &self.faulty.holds_admin } else { &self.faulty.holds_io };
                if holds.get() {
                    queue.held.push_back(entry);
                    continue;
                }
                let (status, value) =
                    if id == 0 { self.admin(&entry) } else { (self.io(&entry), 0) };
                self.complete(&mut queue, &entry, status, value);
            }
        }
        self.queues.borrow_mut().insert(id, queue);
    }

    fn complete(&self, queue: &mut Queue, entry: &[u8; 64], status: Status, value: u32) {
        let next = (queue.completion_tail + 1) % queue.entries;
        assert_ne!(next, queue.completion_head, "the completion queue is full");
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&value.to_le_bytes());
        bytes[12..14].copy_from_slice(&entry[2..4]);
        let field = u16::from(queue.phase) | status << 1;
        bytes[14..].copy_from_slice(&field.to_le_bytes());
        let at = queue.completions + queue.completion_tail * 16;
        // The phase tag is written last.
        let _ = self.write(at, &bytes[..8]).and_then(|()| self.write(at + 8, &bytes[8..]));
        queue.completion_tail = next;
        queue.phase ^= next == 0;
    }

    fn admin(&self, entry: &[u8; 64]) -> (Status, u32) {
        let (ten, eleven) = (word(entry, 40), word(entry, 44));
        let (id, entries) = (ten as u16, u64::from(ten >> 16) + 1);
        let pointer = long(entry, 24);
        let mut queues = self.queues.borrow_mut();
        let status = match entry[0] {
            0x06 => self.identify(ten, word(entry, 4), pointer),
            0x09 if ten == 7 => return (SUCCESS, eleven.min(0x0001_0001)),
            0x05 if queues.contains_key(&id) || entries > ENTRIES_MAX || eleven & 1 == 0 => {
                INVALID_FIELD
            }
            0x05 => {
                queues.insert(id, Queue::new(0, pointer, entries));
                SUCCESS
            }
            0x01 => match queues.get_mut(&id) {
                Some(queue) if eleven >> 16 == u32::from(id) && queue.entries == entries => {
                    queue.submissions = pointer;
                    SUCCESS
                }
                _ => INVALID_FIELD,
            },
            0x00 => match queues.get_mut(&id) {
                Some(queue) => {
                    queue.held.clear();
                    SUCCESS
                }
                None => INVALID_FIELD,
            },
            0x04 => queues.remove(&id).map_or(INVALID_FIELD, |_| SUCCESS),
            _ => INVALID_OPCODE,
        };
        (status, 0)
    }

    fn identify(&self, structure: u32, namespace: u32, pointer: u64) -> Status {
        let mut page = [0; 4096];
        match (structure, namespace) {
            (1, 0) => {
                page[4..24].copy_from_slice(b"model of a serial   ");
                page[24..64].fill(b' ');
                page[77] = self.traits.max_transfer_log2_pages;
                page[525] = 1;
                page[536] = self.traits.sgl;
            }
            (2, 0) => page[0] = 1,
            (0, 1) => {
                let blocks = self.disk.borrow().len() as u64 >> self.traits.block_log2;
                page[..8].copy_from_slice(&blocks.to_le_bytes());
                page[130] = self.traits.block_log2 as u8;
            }
            (0, 2) => {}
            _ => return INVALID_FIELD,
        }
        self.write(pointer, &page).err().unwrap_or(SUCCESS)
    }

    fn io(&self, entry: &[u8; 64]) -> Status {
        if entry[0] == 0 {
            self.flushes.set(self.flushes.get() + 1);
            return SUCCESS;
        }
        let lba = long(entry, 40);
        let len = (u64::from(word(entry, 48) & 0xffff) + 1) << self.traits.block_log2;
        let start = lba << self.traits.block_log2;
        let mut disk = self.disk.borrow_mut();
        let Some(bytes) = disk.get_mut(start as usize..(start + len) as usize) else {
            return LBA_OUT_OF_RANGE;
        };
        if self.traits.max_transfer_log2_pages != 0
            && len > PAGE << self.traits.max_transfer_log2_pages
        {
            return INVALID_FIELD;
        }
        self.transfer(entry, bytes).err().unwrap_or(SUCCESS)
    }

    fn transfer(&self, entry: &[u8; 64], bytes: &mut [u8]) -> Result<(), Status> {
        let pieces = match entry[1] >> 6 {
            0 => self.prps(long(entry, 24), long(entry, 32), bytes.len() as u64)?,
            1 if self.traits.sgl != 0 => self.sgls(long(entry, 24), long(entry, 32))?,
            _ => return Err(INVALID_FIELD),
        };
        let mut rest = bytes;
        for (iova, len) in pieces {
            let (piece, behind) = rest.split_at_mut_checked(len as usize).ok_or(0x0f_u16)?;
            match entry[0] {
                1 => self.read(iova, piece)?,
                2 => self.write(iova, piece)?,
                _ => return Err(INVALID_OPCODE),
            }
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(0x0f) }
    }

    fn prps(&self, first: u64, second: u64, len: u64) -> Result<Vec<(u64, u64)>, Status> {
        let head = len.min(PAGE - first % PAGE);
        let mut pieces = vec![(first, head)];
        let mut rest = len - head;
        let mut list = second;
        while rest != 0 {
            let page = if len - head <= PAGE {
                second
            } else {
                let mut entry = [0; 8];
                self.read(list, &mut entry)?;
                list += 8;
                u64::from_le_bytes(entry)
            };
            if page % PAGE != 0 {
                return Err(0x13);
            }
            pieces.push((page, rest.min(PAGE)));
            rest -= rest.min(PAGE);
        }
        Ok(pieces)
    }

    fn sgls(&self, address: u64, rest: u64) -> Result<Vec<(u64, u64)>, Status> {
        let len = rest & u64::from(u32::MAX);
        match rest >> 56 {
            0x00 => Ok(vec![(address, len)]),
            0x30 => {
                let mut list = vec![0; len as usize];
                self.read(address, &mut list)?;
                let blocks = list.chunks_exact(16);
                Ok(blocks.map(|block| (long(block, 0), u64::from(word(block, 8)))).collect())
            }
            _ => Err(0x11),
        }
    }
}

impl Queue {
    fn new(submissions: u64, completions: u64, entries: u64) -> Self {
        Self {
            submissions,
            entries,
            head: 0,
            tail: 0,
            completions,
            completion_tail: 0,
            completion_head: 0,
            phase: true,
            held: VecDeque::new(),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Hardware for &Model {
    fn registers_len(&self) -> usize {
        0x4000
    }

    fn read_u32(&self, at: usize) -> u32 {
        if self.faulty.is_gone.get() {
            return u32::MAX;
        }
        match at {
            CSTS => {
                let is_ready = !self.queues.borrow().is_empty();
                let ended = if self.register(CC) >> 14 & 3 == 1 { 2 << 2 } else { 0 };
                u32::from(is_ready) | u32::from(self.faulty.is_fatal.get()) << 1 | ended
            }
            VS => 0x0002_0000,
            _ => self.register(at) as u32,
        }
    }

    fn read_u64(&self, at: usize) -> u64 {
        assert_eq!(at, CAP);
        let stride = u64::from(self.traits.stride_log2) << 32;
        (ENTRIES_MAX - 1) | 1 << 16 | self.traits.ready_timeout << 24 | stride | 1 << 37
    }

    fn write_u32(&self, at: usize, value: u32) {
        match at {
            CC => self.enable(u64::from(value)),
            DOORBELLS.. => self.ring(at, u64::from(value)),
            _ => drop(self.registers.borrow_mut().insert(at, u64::from(value))),
        }
    }

    fn write_u64(&self, at: usize, value: u64) {
        self.registers.borrow_mut().insert(at, value);
    }

    fn set_bus_master(&self, may: bool) -> io::Result<()> {
        self.is_master.set(may);
        Ok(())
    }

    fn reset(&self) -> io::Result<()> {
        if self.faulty.does_not_reset.get() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.queues.borrow_mut().clear();
        Ok(())
    }
}
