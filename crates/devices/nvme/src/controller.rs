//! The controller: enabling it, admin commands, and stopping it even after errors.
//!
//! ```text
//!   start:   EN = 0, wait ──► admin rings ──► EN = 1, wait ──► Identify, Number of Queues
//!   drop:    SHN = normal, wait ──► EN = 0, wait ──► no bus master ──► memory is freed
//!   error:   EN = 0, wait ──► else no bus master and a reset by the bus ──► else memory is leaked
//! ```

use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_domain::{Coherent, Domain};

use crate::command::{Command, CommandError, CommandInfo, DataPointer};
use crate::data::{DataPointerFormat, Describer, PRPS_MAX};
use crate::error::{Error, NamespaceError, Unsupported};
use crate::hardware::{Hardware, PciDevice};
use crate::identify::{IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, namespace_list};
use crate::registers::{
    ACQ, AQA, ASQ, CAP, CC, CSTS, Capabilities, Configuration, ControllerStatus, VS, Version,
};
use crate::rings::Rings;
use crate::waiting::Waiting;

/// Opcodes of the admin command set (Base Specification 2.0, section 5).
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
/// CDW11.PC of the commands that create queues: the ring is physically contiguous.
const PHYSICALLY_CONTIGUOUS: u32 = 1;
/// The admin queue has one command in flight at a time.
const ADMIN_DEPTH: u16 = 3;
/// The interval between two reads of CSTS while the controller changes its state.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The time limit of a shutdown if the controller reports none or a shorter one.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);
/// The longest time limit of a shutdown.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(120);

/// The options of a [`Controller`].
///
/// ```
/// use std::time::Duration;
///
/// let options = longshore_nvme::Options::default().queues(2).io_timeout(Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    queues: u16,
    format: DataPointerFormat,
    admin_timeout: Duration,
    io_timeout: Duration,
}

impl Options {
    /// Sets the number of I/O queues that the driver requests. The controller may grant fewer.
    #[must_use]
    pub fn queues(self, queues: u16) -> Self {
        Self { queues, ..self }
    }

    /// Sets the format in which commands describe the place of their data.
    #[must_use]
    pub fn format(self, format: DataPointerFormat) -> Self {
        Self { format, ..self }
    }

    /// Sets the time limit of admin commands.
    #[must_use]
    pub fn admin_timeout(self, admin_timeout: Duration) -> Self {
        Self { admin_timeout, ..self }
    }

    /// Sets the time limit of commands of I/O queues: the longest time in which no command may end.
    #[must_use]
    pub fn io_timeout(self, io_timeout: Duration) -> Self {
        Self { io_timeout, ..self }
    }
}

/// The default: eight queues, the shortest description of data, and time limits of 60 seconds for admin
/// commands and 30 seconds for others.
impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 8,
            format: DataPointerFormat::Shortest,
            admin_timeout: Duration::from_secs(60),
            io_timeout: Duration::from_secs(30),
        }
    }
}

/// An NVMe controller that this process drives.
///
/// Dropping it shuts the controller down and stops it before its memory is freed.
pub struct Controller<'d, H: Hardware = PciDevice> {
    domain: &'d Domain,
    hardware: H,
    options: Options,
    capabilities: Capabilities,
    /// CC.MPS, as the binary logarithm of the page size in bytes.
    page_log2: u32,
    state: AtomicU8,
    /// `None` before the first start, and after a leak.
    admin: Mutex<Option<Admin<'d>>>,
    data: IdentifyController,
}

struct Admin<'d> {
    rings: Rings<'d, ()>,
    /// The data structure that Identify returns.
    page: Coherent<'d>,
    /// The identifiers of I/O queues that are not in use.
    free_queues: Vec<u16>,
}

/// The controller accepts commands.
const RUNNING: u8 = 0;
/// The controller was stopped, and accesses no memory.
const STOPPED: u8 = 1;
/// The controller could not be stopped, and may still access memory.
const LOST: u8 = 2;

/// A namespace: a number of logical blocks that can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Namespace {
    /// The namespace identifier (NSID).
    pub id: u32,
    /// The number of logical blocks (NSZE).
    pub blocks: u64,
    /// The binary logarithm of the block size, in bytes (LBADS).
    pub block_log2: u32,
}

impl Namespace {
    /// Returns the block size, in bytes.
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_log2
    }

    /// Returns the length of the namespace, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a namespace has blocks")]
    pub fn len(&self) -> u64 {
        self.blocks << self.block_log2
    }
}

impl<'d, H: Hardware> Controller<'d, H> {
    /// Resets and enables a controller. Its queues are in memory of `domain`, to which the device
    /// must belong.
    ///
    /// # Errors
    /// Returns an [`Error`] if the controller cannot be used, does not answer, or refuses a command. It
    /// does no DMA then.
    pub fn new(domain: &'d Domain, hardware: H, options: Options) -> Result<Self, Error> {
        let status = ControllerStatus(hardware.read_u32(CSTS));
        if status.is_gone() {
            return Err(Error::Gone);
        }
        let capabilities = Capabilities(hardware.read_u64(CAP));
        let page_log2 = page_log2(capabilities, domain)?;
        let (end, registers_bytes) = (capabilities.head_doorbell(0) + 4, hardware.registers_len());
        if end > registers_bytes {
            return Err(Unsupported::Doorbells { end, registers_bytes }.into());
        }
        if !capabilities.has_nvm_commands() {
            return Err(Unsupported::CommandSet.into());
        }
        let mut controller = Self {
            domain,
            hardware,
            options,
            capabilities,
            page_log2,
            state: AtomicU8::new(STOPPED),
            admin: Mutex::new(None),
            data: IdentifyController::decode(&[0; IDENTIFY_BYTES]),
        };
        controller.restart()?;
        Ok(controller)
    }

    /// Stops the controller if it runs, and enables it again. No queue exists at that time.
    ///
    /// # Errors
    /// Returns an [`Error`] as [`new`](Self::new) does. The controller does no DMA then.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        // Commands that the device had when it was opened end here, before it may do DMA.
        self.enable(false)?;
        let rings = Rings::new(self.domain, self.capabilities, 0, ADMIN_DEPTH)?;
        let page = self.domain.alloc_coherent(IDENTIFY_BYTES as u64)?;
        let entries = u32::from(rings.entries()) - 1;
        let [submissions, completions] = rings.iovas();
        self.hardware.write_u32(AQA, entries | entries << 16);
        self.hardware.write_u64(ASQ, submissions);
        self.hardware.write_u64(ACQ, completions);
        *self.lock() = Some(Admin { rings, page, free_queues: Vec::new() });
        self.hardware.set_bus_master(true).map_err(Error::device("letting the device do DMA"))?;
        self.state.store(RUNNING, Ordering::Release);
        let started = self.enable(true).and_then(|()| self.introduce());
        if started.is_err() {
            self.stop()?;
        }
        started
    }

    /// Reads the properties of the controller, and requests I/O queues.
    fn introduce(&mut self) -> Result<(), Error> {
        self.data = self.identify_page(1, 0, IdentifyController::decode)?;
        let wanted = u32::from(self.options.queues.max(1) - 1);
        let info =
            CommandInfo::Admin { name: "Set Features, Number of Queues", word: NUMBER_OF_QUEUES };
        let command = Command {
            opcode: admin_opcode::SET_FEATURES,
            namespace: 0,
            data: DataPointer::None,
            words: [NUMBER_OF_QUEUES, wanted | wanted << 16, 0],
        };
        let mut admin = self.lock();
        let admin = self.running(&mut admin)?;
        let granted = self.execute(admin, command, info)?;
        let queues = (granted & 0xffff).min(granted >> 16).min(wanted) as u16 + 1;
        let registers_bytes = self.hardware.registers_len();
        let fits = |id: &u16| self.capabilities.head_doorbell(*id) + 4 <= registers_bytes;
        admin.free_queues = (1..=queues).filter(fits).rev().collect();
        Ok(())
    }

    /// Returns the Identify Controller data structure.
    pub fn identify(&self) -> &IdentifyController {
        &self.data
    }

    /// Returns the value of the register CAP.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns the version of the specification that the controller follows.
    pub fn version(&self) -> Version {
        Version(self.hardware.read_u32(VS))
    }

    /// Returns the device.
    pub fn hardware(&self) -> &H {
        &self.hardware
    }

    /// Returns the domain of the device.
    pub fn domain(&self) -> &'d Domain {
        self.domain
    }

    pub(crate) fn describer(&self) -> Describer {
        Describer {
            page_bytes: 1 << self.page_log2,
            sgl: self.data.sgl,
            format: self.options.format,
        }
    }

    /// Returns the largest transfer of a command at any address, in bytes: the limit of the controller
    /// (MDTS), or of the lists that this driver makes.
    pub fn max_transfer_bytes(&self) -> u64 {
        let by_lists = (PRPS_MAX as u64) << self.page_log2;
        let log2 = u32::from(self.data.max_transfer_log2_pages);
        if log2 == 0 {
            return by_lists;
        }
        by_lists
            .min(1_u64.checked_shl(self.capabilities.page_log2_min() + log2).unwrap_or(u64::MAX))
    }

    /// Returns the largest possible depth of a queue.
    pub fn depth_max(&self) -> u16 {
        (self.capabilities.queue_entries_max() - 1).min(u32::from(u16::MAX) - 1) as u16
    }

    /// Returns the number of queues that can still be created.
    pub fn queues_left(&self) -> usize {
        self.lock().as_ref().map_or(0, |admin| admin.free_queues.len())
    }

    /// Returns the identifiers of the first 1024 active namespaces.
    ///
    /// # Errors
    /// Returns [`Error::Command`] if the controller refuses Identify, and other errors if it does not
    /// work any more.
    pub fn namespace_ids(&self) -> Result<Vec<u32>, Error> {
        self.identify_page(2, 0, |page| namespace_list(page).collect())
    }

    /// Returns a namespace by its identifier. The first identifier is 1.
    ///
    /// # Errors
    /// Returns [`Error::Namespace`] if the namespace is not active or has blocks with metadata, and
    /// [`Error::Command`] if the controller refuses Identify.
    pub fn namespace(&self, id: u32) -> Result<Namespace, Error> {
        let refused = |reason| Err(Error::Namespace { id, reason });
        let IdentifyNamespace { blocks, block_log2, metadata_bytes } =
            self.identify_page(0, id, IdentifyNamespace::decode)?;
        if blocks == 0 {
            return refused(NamespaceError::Inactive);
        }
        if metadata_bytes != 0 {
            return refused(NamespaceError::Metadata { bytes: metadata_bytes });
        }
        if !(9..32).contains(&block_log2) || blocks.leading_zeros() < u32::from(block_log2) {
            return refused(NamespaceError::Size { blocks, block_log2 });
        }
        let block_log2 = u32::from(block_log2);
        Ok(Namespace { id, blocks, block_log2 })
    }

    /// Creates an I/O queue for `depth` commands in flight, and returns its rings.
    pub(crate) fn create_queue<T>(&self, depth: u16) -> Result<Rings<'d, T>, Error> {
        let mut admin = self.lock();
        let admin = self.running(&mut admin)?;
        let id = admin.free_queues.pop().ok_or(Error::NoQueue)?;
        let rings = Rings::new(self.domain, self.capabilities, id, depth);
        let created = rings.and_then(|rings| match self.create(admin, &rings) {
            Ok(()) => Ok(rings),
            Err(error) => {
                if matches!(error, Error::Lost(_)) {
                    mem::forget(rings);
                }
                Err(error)
            }
        });
        if created.is_err() {
            admin.free_queues.push(id);
        }
        created
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
        self.execute(admin, command, CommandInfo::Admin { name, word: size })?;
        let (name, opcode) = ("Create I/O Submission Queue", admin_opcode::CREATE_SUBMISSION_QUEUE);
        let eleven = PHYSICALLY_CONTIGUOUS | u32::from(rings.id) << 16;
        let command = create(opcode, submissions, eleven);
        let created = self.execute(admin, command, CommandInfo::Admin { name, word: size });
        if let Err(error) = created {
            self.delete_completion_queue(admin, rings.id)?;
            return Err(error);
        }
        Ok(())
    }

    /// Deletes an I/O queue. When this returns `Ok`, the controller has none of its commands and
    /// accesses none of its memory.
    pub(crate) fn give_up(&self, id: u16) -> Result<(), Error> {
        let mut guard = self.lock();
        match self.state.load(Ordering::Acquire) {
            STOPPED => return Ok(()),
            RUNNING => {}
            _ => return Err(Error::Lost(Box::new(Error::Stopped))),
        }
        let Some(admin) = guard.as_mut() else { return Err(Error::Stopped) };
        // Deleting the submission queue aborts the commands that have not ended (5.6).
        let name = "Delete I/O Submission Queue";
        let opcode = admin_opcode::DELETE_SUBMISSION_QUEUE;
        let deleted = self
            .execute(admin, delete(opcode, id), CommandInfo::Admin { name, word: u32::from(id) })
            .and_then(|_| self.delete_completion_queue(admin, id));
        match deleted {
            Ok(()) => {
                admin.free_queues.push(id);
                Ok(())
            }
            // Only a stopped controller has given the commands up for certain.
            Err(_) => self.stop_locked(),
        }
    }

    fn delete_completion_queue(&self, admin: &mut Admin<'d>, id: u16) -> Result<(), Error> {
        let name = "Delete I/O Completion Queue";
        let opcode = admin_opcode::DELETE_COMPLETION_QUEUE;
        self.execute(admin, delete(opcode, id), CommandInfo::Admin { name, word: u32::from(id) })
            .map(drop)
    }

    /// Stops the controller. When this returns `Ok`, it has no command and accesses no memory. Each
    /// queue still returns the values of its commands in flight
    /// ([`Queue::close`](crate::Queue::close)).
    ///
    /// # Errors
    /// Returns [`Error::Lost`] if the controller does not stop. Its memory is never freed then.
    pub fn stop(&self) -> Result<(), Error> {
        let _admin = self.lock();
        self.stop_locked()
    }

    /// Stops the controller. The caller holds the lock of the admin queue.
    fn stop_locked(&self) -> Result<(), Error> {
        match self.state.load(Ordering::Acquire) {
            STOPPED => return Ok(()),
            LOST => return Err(Error::Lost(Box::new(Error::Stopped))),
            _ => {}
        }
        let stopped = self.enable(false);
        let is_quiet = match &stopped {
            Ok(()) => true,
            // The controller does not stop, so the bus resets it.
            Err(_) => self.hardware.set_bus_master(false).is_ok() && self.hardware.reset().is_ok(),
        };
        if is_quiet {
            self.state.store(STOPPED, Ordering::Release);
            return Ok(());
        }
        self.state.store(LOST, Ordering::Release);
        stopped.map_err(|error| Error::Lost(Box::new(error)))
    }

    /// Returns `true` if the controller accepts commands.
    pub fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    /// Returns an error if the controller was stopped or reports an error in the register CSTS.
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

    /// Sets CC.EN, and waits until CSTS.RDY has the same value.
    fn enable(&self, is_enabled: bool) -> Result<(), Error> {
        let configuration =
            Configuration { is_enabled, is_shutting_down: false, page_log2: self.page_log2 };
        let raw = if is_enabled { configuration.raw() } else { self.hardware.read_u32(CC) & !1 };
        self.hardware.write_u32(CC, raw);
        let wanted = if is_enabled { "become ready" } else { "stop" };
        self.wait_for(wanted, self.capabilities.ready_timeout(), |status| {
            // Stopping the controller clears a fatal error.
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
            // The clock is read first, because this thread may have been suspended.
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
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn identify_page<R>(
        &self,
        structure: u32,
        namespace: u32,
        decode: impl FnOnce(&[u8; IDENTIFY_BYTES]) -> R,
    ) -> Result<R, Error> {
        let mut admin = self.lock();
        let admin = self.running(&mut admin)?;
        let data = DataPointer::Prp(admin.page.iova().raw(), 0);
        let words = [structure, 0, 0];
        let command = Command { opcode: admin_opcode::IDENTIFY, namespace, data, words };
        self.execute(admin, command, CommandInfo::Admin { name: "Identify", word: structure })?;
        let mut page = [0; IDENTIFY_BYTES];
        admin.page.view().read(0, &mut page).expect("the page is as long");
        Ok(decode(&page))
    }

    /// Executes a command and returns its result. Stops the controller if the command does not end.
    fn execute(
        &self,
        admin: &mut Admin<'d>,
        command: Command,
        info: CommandInfo,
    ) -> Result<u32, Error> {
        admin.rings.submit(&command, info, ())?;
        admin.rings.ring(&self.hardware);
        let mut waiting = Waiting::new(self.options.admin_timeout);
        let ended = loop {
            match admin.rings.take() {
                Ok(Some(ended)) => break Ok(ended),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = waiting.spin(|| Some(info), || self.check()) {
                break Err(error);
            }
        };
        // The next admin command may come much later.
        admin.rings.ring(&self.hardware);
        match ended {
            Ok(ended) if ended.status.is_success() => Ok(ended.value),
            Ok(ended) => Err(CommandError { command: info, status: ended.status }.into()),
            Err(error) => {
                self.stop_locked()?;
                Err(error)
            }
        }
    }

    /// Shuts the controller down, so that it writes its volatile data to the medium.
    fn shut_down(&self) {
        let configuration =
            Configuration { is_enabled: true, is_shutting_down: true, page_log2: self.page_log2 };
        self.hardware.write_u32(CC, configuration.raw());
        let time = self.data.shutdown_time.clamp(SHUTDOWN_TIME, SHUTDOWN_TIME_MAX);
        // The caller stops the controller next in any case.
        let _ = self
            .wait_for("shut down", time, |status| Ok(status.is_shut_down() || status.is_fatal()));
    }
}

impl<H: Hardware> Drop for Controller<'_, H> {
    fn drop(&mut self) {
        if self.is_running() {
            self.shut_down();
        }
        // A drop cannot return the error.
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

/// Returns the largest page size that the controller supports and that memory of the domain is aligned
/// to, as a binary logarithm.
fn page_log2(capabilities: Capabilities, domain: &Domain) -> Result<u32, Unsupported> {
    let granule_log2 = u32::from(domain.limits().granule.log2());
    let page_log2_min = capabilities.page_log2_min();
    if granule_log2 < page_log2_min {
        return Err(Unsupported::PageSize { page_log2_min, granule_log2 });
    }
    Ok(granule_log2.min(capabilities.page_log2_max()))
}
