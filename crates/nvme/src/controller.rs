//! The controller: bringing it up, admin commands, and stopping it whatever happens.
//!
//! ```text
//!   start:   EN = 0, wait ──► admin rings ──► EN = 1, wait ──► Identify, Number of Queues
//!   close:   SHN = normal, wait ──► EN = 0, wait ──► no bus master ──► memory goes back
//!   trouble: EN = 0, wait ──► else no bus master and a reset by the bus ──► else memory is leaked
//! ```

use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_domain::{Coherent, Domain};

use crate::command::{Command, CommandError, DataPointer, What};
use crate::data::{Describer, Format, PRPS_MAX};
use crate::error::Error;
use crate::hardware::{Hardware, Passed};
use crate::identify::{ControllerData, IDENTIFY_BYTES, NamespaceData, namespace_list};
use crate::registers::{
    ACQ, AQA, ASQ, CAP, CC, CSTS, Capabilities, Configuration, ControllerStatus, VS, Version,
};
use crate::rings::Rings;
use crate::waiting::Waiting;

/// Commands of the admin command set (Base Specification 2.0, section 5).
mod admin_opcode {
    pub(super) const DELETE_SUBMISSION_QUEUE: u8 = 0x00;
    pub(super) const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    pub(super) const DELETE_COMPLETION_QUEUE: u8 = 0x04;
    pub(super) const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    pub(super) const IDENTIFY: u8 = 0x06;
    pub(super) const SET_FEATURES: u8 = 0x09;
}

/// Feature Identifier of Number of Queues (5.27.1.5).
const NUMBER_OF_QUEUES: u32 = 0x07;
/// In CDW11 of those that create queues: the ring is in one piece.
const PHYSICALLY_CONTIGUOUS: u32 = 1;
/// One command at a time is in the admin queue.
const ADMIN_DEPTH: u16 = 3;
/// How often a register is looked at while the controller becomes what it is to become.
const LOOK: Duration = Duration::from_micros(100);
/// How long a shutdown may take where the controller does not say how long it takes.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);
/// How long it may take, whatever the controller says.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(120);

/// How a controller is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many I/O queues are asked for. The controller may have fewer.
    pub queues: u16,
    /// How data is described.
    pub format: Format,
    /// How long nothing may end while admin commands are in flight.
    pub admin_timeout: Duration,
    /// The same of commands of I/O queues.
    pub io_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 8,
            format: Format::Shortest,
            admin_timeout: Duration::from_secs(60),
            io_timeout: Duration::from_secs(30),
        }
    }
}

/// An NVMe controller that this process drives.
///
/// Dropped, it is shut down, so that it no longer runs when its memory goes back.
pub struct Controller<'d, H: Hardware = Passed> {
    domain: &'d Domain,
    hardware: H,
    options: Options,
    capabilities: Capabilities,
    /// CAP.MPS in use.
    page_log2: u32,
    state: AtomicU8,
    /// `None` only where it was leaked.
    admin: Mutex<Option<Admin<'d>>>,
    data: ControllerData,
}

struct Admin<'d> {
    rings: Rings<'d, ()>,
    /// What Identify returns.
    page: Coherent<'d>,
    /// Numbers of I/O queues that nobody has.
    free_queues: Vec<u16>,
}

/// It runs.
const RUNNING: u8 = 0;
/// It was stopped, and reaches no memory.
const STOPPED: u8 = 1;
/// It was to be stopped, and may reach memory still.
const LOST: u8 = 2;

/// A namespace: blocks that can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub id: u32,
    /// How many blocks it has.
    pub blocks: u64,
    /// The binary logarithm of a block's bytes.
    pub block_log2: u32,
}

impl Namespace {
    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_log2
    }

    /// How many bytes it has.
    pub fn len_bytes(&self) -> u64 {
        self.blocks << self.block_log2
    }
}

impl<'d, H: Hardware> Controller<'d, H> {
    /// Brings it up; its queues and lists are memory of `domain`, in which the device must be.
    ///
    /// # Errors
    /// [`Error`]. It does no DMA then.
    pub fn new(domain: &'d Domain, hardware: H, options: Options) -> Result<Self, Error> {
        let status = ControllerStatus(hardware.read_u32(CSTS));
        if status.is_gone() {
            return Err(Error::Gone);
        }
        let capabilities = Capabilities(hardware.read_u64(CAP));
        let page_log2 = page_log2(capabilities, domain)?;
        let (end, there_are) = (capabilities.head_doorbell(0) + 4, hardware.registers_len_bytes());
        if end > there_are {
            let what = format!(
                "the doorbells of its admin queue end at byte {end:#x} (CAP.DSTRD), but it has \
                 {there_are:#x} bytes of registers"
            );
            return Err(unsupported(what));
        }
        if !capabilities.has_nvm_commands() {
            return Err(unsupported("it does not have the NVM command set (CAP.CSS)"));
        }
        let mut controller = Self {
            domain,
            hardware,
            options,
            capabilities,
            page_log2,
            state: AtomicU8::new(STOPPED),
            admin: Mutex::new(None),
            data: ControllerData::decode(&[0; IDENTIFY_BYTES]),
        };
        controller.restart()?;
        Ok(controller)
    }

    /// Stops it if it runs, and brings it up anew. There is no queue then.
    ///
    /// # Errors
    /// [`Error`]. It does no DMA then.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        // What the device was doing when it was opened ends here, before it may do DMA.
        self.enable(false)?;
        let rings = Rings::new(self.domain, self.capabilities, 0, ADMIN_DEPTH)?;
        let page = self.domain.alloc_coherent(IDENTIFY_BYTES as u64)?;
        let entries = u32::from(rings.entries()) - 1;
        let [submissions, completions] = rings.iovas();
        self.hardware.write_u32(AQA, entries | entries << 16);
        self.hardware.write_u64(ASQ, submissions);
        self.hardware.write_u64(ACQ, completions);
        *self.lock() = Some(Admin { rings, page, free_queues: Vec::new() });
        self.hardware.set_bus_master(true).map_err(Error::io("letting the device do DMA"))?;
        self.state.store(RUNNING, Ordering::Release);
        let brought_up = self.enable(true).and_then(|()| self.introduce());
        if brought_up.is_err() {
            self.stop()?;
        }
        brought_up
    }

    /// What can be done once it answers.
    fn introduce(&mut self) -> Result<(), Error> {
        let data = self.identify(1, 0, |page| Ok(ControllerData::decode(page)))?;
        self.data = data;
        let wanted = u32::from(self.options.queues.max(1) - 1);
        let what = What::Admin { name: "Set Features, Number of Queues", word: NUMBER_OF_QUEUES };
        let command = Command {
            opcode: admin_opcode::SET_FEATURES,
            namespace: 0,
            data: DataPointer::None,
            words: [NUMBER_OF_QUEUES, wanted | wanted << 16, 0],
        };
        let mut admin = self.lock();
        let admin = self.running(&mut admin)?;
        let granted = self.execute(admin, command, what)?;
        let queues = (granted & 0xffff).min(granted >> 16).min(wanted) as u16 + 1;
        let there_are = self.hardware.registers_len_bytes();
        let fits = |id: &u16| self.capabilities.head_doorbell(*id) + 4 <= there_are;
        admin.free_queues = (1..=queues).filter(fits).rev().collect();
        Ok(())
    }

    /// What it says of itself.
    pub fn data(&self) -> &ControllerData {
        &self.data
    }

    /// What its registers say it can do.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Which version of the specification it follows.
    pub fn version(&self) -> Version {
        Version(self.hardware.read_u32(VS))
    }

    /// The device.
    pub fn hardware(&self) -> &H {
        &self.hardware
    }

    /// The domain it is in.
    pub fn domain(&self) -> &'d Domain {
        self.domain
    }

    /// How data is described to it.
    pub(crate) fn describer(&self) -> Describer {
        Describer {
            page_bytes: 1 << self.page_log2,
            sgl: self.data.sgl,
            format: self.options.format,
        }
    }

    /// The most bytes that a command may transfer, at any address: its own limit (MDTS), or that of
    /// the lists that this driver makes.
    pub fn max_transfer_bytes(&self) -> u64 {
        let by_lists = (PRPS_MAX as u64) << self.page_log2;
        let log2 = u32::from(self.data.max_transfer_log2_pages);
        if log2 == 0 {
            return by_lists;
        }
        by_lists
            .min(1_u64.checked_shl(self.capabilities.page_log2_min() + log2).unwrap_or(u64::MAX))
    }

    /// The most commands that can be in flight in a queue.
    pub fn depth_max(&self) -> u16 {
        (self.capabilities.queue_entries_max() - 1).min(u32::from(u16::MAX) - 1) as u16
    }

    /// How many more queues there can be.
    pub fn queues_left(&self) -> usize {
        self.lock().as_ref().map_or(0, |admin| admin.free_queues.len())
    }

    /// The numbers of its active namespaces, the first 1024 of them.
    ///
    /// # Errors
    /// [`Error`].
    pub fn namespace_ids(&self) -> Result<Vec<u32>, Error> {
        self.identify(2, 0, |page| Ok(namespace_list(page).collect()))
    }

    /// A namespace by its number; the first is 1.
    ///
    /// # Errors
    /// [`Error::Namespace`] where it has none of this number, or blocks with metadata;
    /// [`Error::Command`].
    pub fn namespace(&self, id: u32) -> Result<Namespace, Error> {
        let refused = |reason: String| Error::Namespace { id, reason };
        let NamespaceData { blocks, block_log2, metadata_bytes } =
            self.identify(0, id, |page| Ok(NamespaceData::decode(page)))?;
        if blocks == 0 {
            return Err(refused("the controller has none of this number".to_owned()));
        }
        if metadata_bytes != 0 {
            return Err(refused(format!(
                "its blocks have {metadata_bytes} bytes of metadata each, which this driver does not \
                 transfer: format it without"
            )));
        }
        let block_log2 = u32::from(block_log2);
        if !(9..32).contains(&block_log2) || blocks.leading_zeros() < block_log2 {
            let bytes = format!("{blocks:#x} blocks of 2^{block_log2} bytes");
            return Err(refused(format!("it says that it has {bytes}")));
        }
        Ok(Namespace { id, blocks, block_log2 })
    }

    /// Creates an I/O queue for `depth` commands in flight, and returns its rings.
    pub(crate) fn create_queue<T>(&self, depth: u16) -> Result<Rings<'d, T>, Error> {
        let mut admin = self.lock();
        let admin = self.running(&mut admin)?;
        let id = admin.free_queues.pop().ok_or_else(|| {
            let reason = "all queues are in use".to_owned();
            Error::NoQueue { depth, reason }
        })?;
        let rings = Rings::new(self.domain, self.capabilities, id, depth)
            .and_then(|rings| self.create(admin, &rings).map(|()| rings));
        if rings.is_err() {
            admin.free_queues.push(id);
        }
        rings
    }

    fn create<T>(&self, admin: &mut Admin<'d>, rings: &Rings<'d, T>) -> Result<(), Error> {
        let [submissions, completions] = rings.iovas();
        let size = u32::from(rings.entries() - 1) << 16 | u32::from(rings.id);
        let create = |opcode, iova, eleven| Command {
            opcode,
            namespace: 0,
            data: DataPointer::Prp(iova, 0),
            words: [size, eleven, 0],
        };
        let (name, opcode) = ("Create I/O Completion Queue", admin_opcode::CREATE_COMPLETION_QUEUE);
        let command = create(opcode, completions, PHYSICALLY_CONTIGUOUS);
        self.execute(admin, command, What::Admin { name, word: size })?;
        let (name, opcode) = ("Create I/O Submission Queue", admin_opcode::CREATE_SUBMISSION_QUEUE);
        let eleven = PHYSICALLY_CONTIGUOUS | u32::from(rings.id) << 16;
        let command = create(opcode, submissions, eleven);
        let created = self.execute(admin, command, What::Admin { name, word: size });
        if let Err(error) = created {
            self.delete_completion_queue(admin, rings.id)?;
            return Err(error);
        }
        Ok(())
    }

    /// Makes the controller give up a queue: when this returns `Ok`, it does not have any of its
    /// commands, and reaches none of its memory.
    pub(crate) fn give_up(&self, id: u16) -> Result<(), Error> {
        let mut guard = self.lock();
        match self.state.load(Ordering::Acquire) {
            STOPPED => return Ok(()),
            RUNNING => {}
            _ => return Err(Error::Lost(Box::new(Error::Stopped))),
        }
        let Some(admin) = guard.as_mut() else { return Err(Error::Stopped) };
        // Deleting the one ends its commands: those that did not end before are aborted (5.6).
        let name = "Delete I/O Submission Queue";
        let opcode = admin_opcode::DELETE_SUBMISSION_QUEUE;
        let deleted = self
            .execute(admin, delete(opcode, id), What::Admin { name, word: u32::from(id) })
            .and_then(|_| self.delete_completion_queue(admin, id));
        match deleted {
            Ok(()) => {
                admin.free_queues.push(id);
                Ok(())
            }
            // Then everything is stopped.
            Err(_) => self.stop_locked(),
        }
    }

    fn delete_completion_queue(&self, admin: &mut Admin<'d>, id: u16) -> Result<(), Error> {
        let name = "Delete I/O Completion Queue";
        let opcode = admin_opcode::DELETE_COMPLETION_QUEUE;
        self.execute(admin, delete(opcode, id), What::Admin { name, word: u32::from(id) }).map(drop)
    }

    /// Stops it: when this returns `Ok`, it does not have any command, and reaches no memory. What
    /// queues keep for commands in flight can be had back ([`Queue::close`](crate::queue::Queue::close)).
    ///
    /// # Errors
    /// [`Error::Lost`]: nothing that it was given is freed any more.
    pub fn stop(&self) -> Result<(), Error> {
        let _admin = self.lock();
        self.stop_locked()
    }

    /// By whoever has the admin queue.
    fn stop_locked(&self) -> Result<(), Error> {
        match self.state.load(Ordering::Acquire) {
            STOPPED => return Ok(()),
            LOST => return Err(Error::Lost(Box::new(Error::Stopped))),
            _ => {}
        }
        let stopped = self.enable(false);
        let is_quiet = match &stopped {
            Ok(()) => true,
            // It does not stop by itself: then the bus does it.
            Err(_) => self.hardware.set_bus_master(false).is_ok() && self.hardware.reset().is_ok(),
        };
        if is_quiet {
            self.state.store(STOPPED, Ordering::Release);
            return Ok(());
        }
        self.state.store(LOST, Ordering::Release);
        stopped.map_err(|error| Error::Lost(Box::new(error)))
    }

    /// Whether commands can be given to it.
    pub fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    /// What the register CSTS says, and whether that is an error.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.is_running() {
            return Err(Error::Stopped);
        }
        let status = ControllerStatus(self.hardware.read_u32(CSTS));
        match () {
            () if status.is_gone() => Err(Error::Gone),
            () if status.is_fatal() => Err(Error::Fatal { status }),
            () => Ok(()),
        }
    }

    pub(crate) fn io_timeout(&self) -> Duration {
        self.options.io_timeout
    }

    fn lock(&self) -> MutexGuard<'_, Option<Admin<'d>>> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running<'a>(&self, admin: &'a mut Option<Admin<'d>>) -> Result<&'a mut Admin<'d>, Error> {
        if !self.is_running() {
            return Err(Error::Stopped);
        }
        admin.as_mut().ok_or(Error::Stopped)
    }

    /// Sets CC.EN, and waits until CSTS.RDY is the same.
    fn enable(&self, is_enabled: bool) -> Result<(), Error> {
        let configuration =
            Configuration { is_enabled, is_shutting_down: false, page_log2: self.page_log2 };
        let raw = if is_enabled { configuration.raw() } else { self.hardware.read_u32(CC) & !1 };
        self.hardware.write_u32(CC, raw);
        let wanted = if is_enabled { "become ready" } else { "stop" };
        self.wait_for(wanted, self.capabilities.ready_timeout(), |status| {
            // While it stops, a fatal error is what is to be ended.
            if is_enabled && status.is_fatal() {
                return Err(Error::Fatal { status });
            }
            Ok(status.is_ready() == is_enabled)
        })
    }

    fn wait_for(
        &self,
        wanted: &'static str,
        time: Duration,
        is_so: impl Fn(ControllerStatus) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            // Time first: it may be this thread that had to wait.
            let is_late = started.elapsed() > time;
            let status = ControllerStatus(self.hardware.read_u32(CSTS));
            if status.is_gone() {
                return Err(Error::Gone);
            }
            if is_so(status)? {
                return Ok(());
            }
            if is_late {
                return Err(Error::NotReady { wanted, waited: time, status });
            }
            thread::sleep(LOOK);
        }
    }

    fn identify<R>(
        &self,
        structure: u32,
        namespace: u32,
        decode: impl FnOnce(&[u8; IDENTIFY_BYTES]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut admin = self.lock();
        let admin = self.running(&mut admin)?;
        let data = DataPointer::Prp(admin.page.iova().raw(), 0);
        let words = [structure, 0, 0];
        let command = Command { opcode: admin_opcode::IDENTIFY, namespace, data, words };
        self.execute(admin, command, What::Admin { name: "Identify", word: structure })?;
        let mut page = [0; IDENTIFY_BYTES];
        admin.page.view().read(0, &mut page).expect("the page is as long");
        decode(&page)
    }

    /// One command, and what it returns. Where it does not end, the controller is stopped.
    fn execute(&self, admin: &mut Admin<'d>, command: Command, what: What) -> Result<u32, Error> {
        admin.rings.submit(&command, what, ())?;
        admin.rings.ring(&self.hardware);
        let mut waiting = Waiting::new(self.options.admin_timeout);
        let ended = loop {
            match admin.rings.take() {
                Ok(Some(ended)) => break Ok(ended),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = waiting.spin(|| Some(what), || self.check()) {
                break Err(error);
            }
        };
        // Told at once: nobody else may come for long.
        admin.rings.ring(&self.hardware);
        match ended {
            Ok(ended) if ended.status.is_success() => Ok(ended.value),
            Ok(ended) => Err(CommandError { what, status: ended.status }.into()),
            Err(error) => {
                self.stop_locked()?;
                Err(error)
            }
        }
    }

    /// Tells it that power may go, and waits until it has written what it must.
    fn shut_down(&self) {
        let configuration =
            Configuration { is_enabled: true, is_shutting_down: true, page_log2: self.page_log2 };
        self.hardware.write_u32(CC, configuration.raw());
        let time = self.data.shutdown_time.clamp(SHUTDOWN_TIME, SHUTDOWN_TIME_MAX);
        // Whether or not it did, it is stopped next.
        let _ = self
            .wait_for("shut down", time, |status| Ok(status.is_shut_down() || status.is_fatal()));
    }
}

impl<H: Hardware> Drop for Controller<'_, H> {
    fn drop(&mut self) {
        if self.is_running() {
            self.shut_down();
        }
        // Nobody is left who could be told.
        if self.stop().is_err() {
            mem::forget(self.lock().take());
        }
        let _ = self.hardware.set_bus_master(false);
    }
}

impl<H: Hardware> std::fmt::Debug for Controller<'_, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("capabilities", &self.capabilities)
            .field("is_running", &self.is_running())
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

fn delete(opcode: u8, id: u16) -> Command {
    Command { opcode, namespace: 0, data: DataPointer::None, words: [u32::from(id), 0, 0] }
}

fn unsupported(what: impl Into<String>) -> Error {
    Error::Unsupported { what: what.into() }
}

/// The largest page that the controller can be set to and that the domain's memory is aligned to.
fn page_log2(capabilities: Capabilities, domain: &Domain) -> Result<u32, Error> {
    let granule_log2 = u32::from(domain.limits().granule.log2());
    if granule_log2 < capabilities.page_log2_min() {
        return Err(unsupported(format!(
            "its memory pages are 2^{} bytes at least (CAP.MPSMIN), and memory is mapped for it in \
             2^{granule_log2}",
            capabilities.page_log2_min()
        )));
    }
    Ok(granule_log2.min(capabilities.page_log2_max()))
}
