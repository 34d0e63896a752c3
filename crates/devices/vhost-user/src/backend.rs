//! The effect of each message: negotiation, memory, and queues that start and stop.
//!
//! A queue runs while it has addresses, a kick descriptor and a size, and is enabled. Each change of one
//! of them stops the queue first: stopping is cheap, and a request that was not completed is started
//! again.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use longshore_access::Space;
use longshore_access::client::Stop;
use longshore_mem::GuestPhys;
use longshore_pagetable::Prot;
use longshore_sys::account::Permit;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::event_fd::{self, SharedEvent};
use longshore_sys::kept_descriptors;

use crate::device::{ACCESS_PLATFORM, Device, Event};
use crate::error::RequestError;
use crate::memory::{MemoryError, SpaceMemory, TableRegion, Translation, UserAddr};
use crate::misses::MissChannel;
use crate::queue::{Queue, QueueLayout, RunningQueue, UsedLog, signal};
use crate::wire::{
    CONFIG_LEN_BYTES, IotlbMessage, RegionClaim, Request, RingAddresses, feature, protocol,
};

const PROTOCOL_FEATURES: u64 = protocol::MQ
    | protocol::LOG_SHMFD
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG;

/// The reply to a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Success, which is reported only if the front-end wants an acknowledgement.
    Done,
    /// This payload, with or without a request for an acknowledgement.
    Payload(Vec<u8>),
}

/// The device, with the state that one front-end has set up.
pub(crate) struct Backend<'d, D: Device> {
    memory: SpaceMemory,
    device: &'d D,
    is_log_left_out: bool,
    features: u64,
    protocol_features: u64,
    misses: Option<Arc<MissChannel>>,
    rings: Vec<RingState>,
    /// The user for whom descriptors are counted.
    user: User,
}

#[derive(Default)]
struct RingState {
    entries: u16,
    addresses: Option<RingAddresses>,
    next: u16,
    kick: Option<Kept>,
    call: Option<Kept>,
    error: Option<Kept>,
    is_enabled: bool,
    /// `true` until the front-end sets the queue up again.
    is_broken: bool,
    running: Option<Running>,
}

/// A queue that the device serves.
struct Running {
    queue: Box<dyn RunningQueue>,
    stop: Stop,
}

/// An eventfd of the front-end, with the permit that counts it for its user.
#[derive(Debug)]
struct Kept {
    event: SharedEvent,
    _permit: Permit,
}

impl RingState {
    /// Stops the queue. When this returns, the device accesses no memory for the queue any more.
    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop.stop();
            let stopped = running.queue.stop();
            self.next = stopped.next;
            self.is_broken |= stopped.is_broken;
        }
    }
}

impl<'d, D: Device> Backend<'d, D> {
    /// Makes a back-end. If `is_log_left_out`, no writes are marked in the dirty log. Memory,
    /// descriptors and threads are counted for `user`.
    pub(crate) fn new(device: &'d D, space: Space, is_log_left_out: bool, user: User) -> Self {
        Self {
            memory: SpaceMemory::new(space).with_uid(user.uid()),
            device,
            is_log_left_out,
            features: 0,
            protocol_features: 0,
            misses: None,
            rings: (0..device.queues_count()).map(|_| RingState::default()).collect(),
            user,
        }
    }

    /// Returns `true` if any message can be acknowledged.
    pub(crate) fn acknowledges(&self) -> bool {
        self.protocol_features & protocol::REPLY_ACK != 0
    }

    /// Executes a message, and starts the queues that can run after it.
    pub(crate) fn handle(
        &mut self,
        request: Request,
        descriptors: Vec<Disposable<OwnedFd>>,
        sockets: Vec<Disposable<UnixStream>>,
    ) -> Result<Answer, RequestError> {
        let answer = self.change_by(request, descriptors, sockets);
        self.device.event(&Event::TableBytes(self.memory.space().table_bytes()));
        self.start_all();
        answer
    }

    fn change_by(
        &mut self,
        request: Request,
        mut descriptors: Vec<Disposable<OwnedFd>>,
        mut sockets: Vec<Disposable<UnixStream>>,
    ) -> Result<Answer, RequestError> {
        let (wanted, count) = (wanted_descriptors(&request), descriptors.len() + sockets.len());
        if count != wanted {
            return Err(RequestError::Descriptors { descriptors: count, wanted });
        }
        if sockets.is_empty() == matches!(request, Request::SetBackendReqFd) {
            return Err(RequestError::DescriptorKind);
        }
        let number = |value: u64| Ok(Answer::Payload(value.to_ne_bytes().to_vec()));
        match request {
            Request::GetFeatures => return number(self.offered()),
            Request::GetProtocolFeatures => return number(PROTOCOL_FEATURES),
            Request::GetQueueNum => return number(self.rings.len() as u64),
            Request::GetConfig { offset, len_bytes, flags } => {
                return Ok(self.config(offset, len_bytes, flags));
            }
            Request::GetVringBase { index } => return self.ring_base(index),
            Request::SetLogBase { len_bytes, offset } => {
                self.set_log(&one(&mut descriptors)?, offset, len_bytes)?;
                // The reply is empty, even if an acknowledgement is requested.
                return Ok(Answer::Payload(Vec::new()));
            }
            Request::SetConfig { .. } => return Err(RequestError::ReadOnlyConfig),
            Request::SetOwner => {}
            // The eventfd is not needed: the front-end reads the bits of the log.
            Request::SetLogFd => {}
            Request::ResetOwner => self.stop_all(),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::SetProtocolFeatures(features) => {
                if features & !PROTOCOL_FEATURES != 0 {
                    return Err(RequestError::Features { features });
                }
                self.protocol_features = features;
            }
            Request::SetMemTable(claims) => self.set_table(&claims, &descriptors)?,
            Request::SetVringNum { index, num } => {
                let entries = u16::try_from(num).ok().filter(|it| it.is_power_of_two());
                let max = self.device.queue_entries_max();
                let entries = entries.filter(|entries| *entries <= max);
                let entries = entries.ok_or(RequestError::RingSize { num, max })?;
                self.change(index, |ring| ring.entries = entries)?;
            }
            Request::SetVringAddr { index, addresses } => self.place(index, addresses)?,
            Request::SetVringBase { index, num } => {
                let next = u16::try_from(num).map_err(|_| RequestError::RingIndex { num })?;
                self.change(index, |ring| ring.next = next)?;
            }
            Request::SetVringKick { index, has_descriptor } => {
                if !has_descriptor {
                    return Err(RequestError::NoKick);
                }
                let event = self.keep(one(&mut descriptors)?)?;
                self.change(index, |ring| ring.kick = Some(event))?;
            }
            Request::SetVringCall { index, has_descriptor } => {
                let event = match has_descriptor {
                    true => Some(self.keep(one(&mut descriptors)?)?),
                    false => None,
                };
                self.change(index, |ring| ring.call = event)?;
            }
            Request::SetVringErr { index, has_descriptor } => {
                let event = match has_descriptor {
                    true => Some(self.keep(one(&mut descriptors)?)?),
                    false => None,
                };
                self.change(index, |ring| ring.error = event)?;
            }
            Request::SetVringEnable { index, is_enabled } => {
                self.change(index, |ring| ring.is_enabled = is_enabled)?;
            }
            Request::SetBackendReqFd => {
                let socket = sockets.pop().ok_or(RequestError::DescriptorKind)?;
                // The front-end's end of a connection to this process would keep that connection open.
                if !socket.peer_addr().is_ok_and(|address| address.is_unnamed()) {
                    return Err(RequestError::NamedChannel);
                }
                self.stop_all();
                // Drop the former channel first, which ends its thread.
                self.misses = None;
                let io = |source| RequestError::Io { what: "the back-end channel", source };
                self.misses = Some(Arc::new(MissChannel::new(socket).map_err(io)?));
            }
            // Queues are not stopped: one of them may be waiting for this update.
            Request::Iotlb(message) => self.iotlb(message)?,
        }
        Ok(Answer::Done)
    }

    fn offered(&self) -> u64 {
        self.device.features() | feature::LOG_ALL | feature::PROTOCOL_FEATURES
    }

    fn config(&self, offset: u32, len_bytes: u32, flags: u32) -> Answer {
        let mut space = self.device.config();
        // The offset and length were checked against this length. The rest of a shorter space reads as
        // zeros.
        space.resize(CONFIG_LEN_BYTES, 0);
        let bytes = space.get(offset as usize..).and_then(|from| from.get(..len_bytes as usize));
        let bytes = bytes.unwrap_or_default();
        let mut payload = Vec::with_capacity(12 + bytes.len());
        payload.extend([offset, len_bytes, flags].map(u32::to_ne_bytes).as_flattened());
        payload.extend_from_slice(bytes);
        Answer::Payload(payload)
    }

    fn set_features(&mut self, features: u64) -> Result<(), RequestError> {
        // A front-end need not repeat the bit of the protocol features.
        if features & !self.offered() != 0 {
            return Err(RequestError::Features { features });
        }
        let translation = if features & ACCESS_PLATFORM != 0 {
            Translation::Iotlb
        } else {
            Translation::Identity
        };
        let logs = features & feature::LOG_ALL != 0;
        // While queues run, only the log can be switched on and off.
        if (features ^ self.features) & !feature::LOG_ALL != 0 {
            self.stop_all();
        }
        if !self.is_log_left_out {
            self.memory.log_writes(logs)?;
        }
        self.device.event(&Event::Logging(logs));
        self.memory.set_translation(translation)?;
        self.features = features;
        Ok(())
    }

    fn set_log(
        &mut self,
        file: impl AsFd,
        offset: longshore_mem::FileOffset,
        len_bytes: u64,
    ) -> Result<(), RequestError> {
        self.memory.set_log(file, offset, len_bytes)?;
        // Used rings are logged with a log of their own, which a queue gets when it starts.
        let has_own = |ring: &RingState| ring.addresses.is_some_and(|at| at.is_logged);
        for ring in self.rings.iter_mut().filter(|ring| has_own(ring)) {
            ring.stop();
        }
        Ok(())
    }

    fn set_table(
        &mut self,
        claims: &[RegionClaim],
        files: &[Disposable<OwnedFd>],
    ) -> Result<(), RequestError> {
        self.stop_all();
        let regions: Vec<_> = claims
            .iter()
            .zip(files)
            .map(|(claim, file)| TableRegion {
                guest_phys: claim.guest_phys,
                len_bytes: claim.len_bytes,
                user: claim.user,
                file: file.as_fd(),
                offset: claim.offset,
            })
            .collect();
        self.memory.set_table(&regions)?;
        self.device.event(&Event::TableSet);
        Ok(())
    }

    fn iotlb(&mut self, message: IotlbMessage) -> Result<(), RequestError> {
        match message {
            IotlbMessage::Update { iova, len_bytes, user, is_readable, is_writable } => {
                let prot = match (is_readable, is_writable) {
                    (true, true) => Prot::READ_WRITE,
                    (true, false) => Prot::READ,
                    (false, true) => Prot::WRITE,
                    (false, false) => Prot::NONE,
                };
                self.memory.iotlb_update(iova, len_bytes, user, prot)?;
                self.device.event(&Event::IotlbUpdated);
            }
            IotlbMessage::Invalidate { iova, len_bytes } => {
                self.memory.iotlb_invalidate(iova, len_bytes)?;
                self.device.event(&Event::IotlbInvalidated);
            }
        }
        Ok(())
    }

    fn ring_base(&mut self, index: u32) -> Result<Answer, RequestError> {
        let ring = self.ring(index)?;
        ring.stop();
        // The queue starts again when it gets a new kick descriptor.
        ring.kick = None;
        ring.is_broken = false;
        let state = [index, ring.next.into()].map(u32::to_ne_bytes);
        Ok(Answer::Payload(state.as_flattened().to_vec()))
    }

    fn place(&mut self, index: u32, addresses: RingAddresses) -> Result<(), RequestError> {
        let entries = self.ring(index)?.entries.max(1);
        // Refuse addresses now that would fail later.
        if !self.layout(entries, &addresses)?.is_valid(self.device.queue_entries_max()) {
            return Err(RequestError::RingPlacement { index });
        }
        self.change(index, |ring| {
            ring.addresses = Some(addresses);
            ring.is_broken = false;
        })
    }

    /// Returns the addresses at which the device finds a queue.
    fn layout(&self, entries: u16, at: &RingAddresses) -> Result<QueueLayout, MemoryError> {
        let [descriptors_bytes, available_bytes, used_bytes] = QueueLayout::lens(entries);
        let find = |at: u64, len_bytes| match self.memory.translation() {
            Translation::Iotlb => Ok(at),
            Translation::Identity => {
                self.memory.guest_phys_of(UserAddr::new(at), len_bytes).map(GuestPhys::raw)
            }
        };
        Ok(QueueLayout {
            entries,
            descriptors: find(at.descriptors, descriptors_bytes)?,
            available: find(at.available, available_bytes)?,
            used: find(at.used, used_bytes)?,
        })
    }

    fn ring(&mut self, index: u32) -> Result<&mut RingState, RequestError> {
        let count = self.rings.len();
        self.rings.get_mut(index as usize).ok_or(RequestError::NoRing { index, count })
    }

    /// Keeps an eventfd of the front-end, and counts it.
    fn keep(&self, descriptor: Disposable<OwnedFd>) -> Result<Kept, RequestError> {
        let event = SharedEvent::new(event(descriptor)?);
        let permit = kept_descriptors::keep(self.user, 1);
        let permit = permit.map_err(|error| RequestError::DescriptorLimit(error.into()))?;
        Ok(Kept { event, _permit: permit })
    }

    /// Stops a queue and changes it.
    fn change(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut RingState),
    ) -> Result<(), RequestError> {
        let ring = self.ring(index)?;
        ring.stop();
        change(ring);
        Ok(())
    }

    fn stop_all(&mut self) {
        self.rings.iter_mut().for_each(RingState::stop);
    }

    /// Starts the queues that are complete. A queue that cannot be started is broken.
    fn start_all(&mut self) {
        let starts_enabled = self.features & feature::PROTOCOL_FEATURES == 0;
        for index in 0..self.rings.len() {
            let ring = &self.rings[index];
            let is_ready = ring.running.is_none()
                && !ring.is_broken
                && ring.entries != 0
                && (ring.is_enabled || starts_enabled);
            let (Some(at), Some(kick), true) = (ring.addresses, &ring.kick, is_ready) else {
                continue;
            };
            let started = self.start(index, &at, kick.event.clone());
            let ring = &mut self.rings[index];
            match started {
                Ok(running) => ring.running = Some(running),
                Err(refusal) => {
                    ring.is_broken = true;
                    self.device.event(&Event::QueueBroken { index, reason: &refusal });
                    signal(ring.error.as_ref().map(|kept| &kept.event));
                }
            }
        }
    }

    fn start(
        &self,
        index: usize,
        at: &RingAddresses,
        kick: SharedEvent,
    ) -> Result<Running, RequestError> {
        let ring = &self.rings[index];
        let layout = self.layout(ring.entries, at)?;
        if !layout.is_valid(self.device.queue_entries_max()) {
            return Err(RequestError::RingPlacement { index: index as u32 });
        }
        // Behind an IOMMU the log address is an IOVA, and writes to the used ring are logged by the
        // guest-physical address of their memory, like all other writes.
        let is_translated = self.memory.translation() == Translation::Iotlb;
        let log = self.memory.log().filter(|_| at.is_logged && !is_translated);
        let log = log.filter(|_| !self.is_log_left_out);
        let used_log = log.map(|log| UsedLog { log: Arc::clone(log), at: at.log_at });
        let io = |what| move |source| RequestError::Io { what, source };
        let stop = Stop::new().map_err(io("a queue's eventfd"))?;
        let queue = Queue {
            index,
            layout,
            next: ring.next,
            space: self.memory.space().clone(),
            misses: self.misses.clone().filter(|_| is_translated),
            used_log,
            kick,
            call: ring.call.as_ref().map(|kept| kept.event.clone()),
            error: ring.error.as_ref().map(|kept| kept.event.clone()),
            stop: stop.clone(),
        };
        let queue = self.device.start(queue).map_err(io("the device did not start the queue"))?;
        Ok(Running { queue, stop })
    }
}

impl<D: Device> Drop for Backend<'_, D> {
    fn drop(&mut self) {
        // Queues must stop before their memory is unmapped.
        self.stop_all();
        let rings = self.rings.iter_mut();
        let events = rings.flat_map(|ring| [&mut ring.kick, &mut ring.call, &mut ring.error]);
        SharedEvent::close_all(events.filter_map(Option::take).map(|kept| kept.event).collect());
        self.device.event(&Event::Logging(false));
    }
}

fn wanted_descriptors(request: &Request) -> usize {
    match request {
        Request::SetMemTable(claims) => claims.len(),
        Request::SetLogBase { .. } | Request::SetLogFd | Request::SetBackendReqFd => 1,
        Request::SetVringKick { has_descriptor, .. }
        | Request::SetVringCall { has_descriptor, .. }
        | Request::SetVringErr { has_descriptor, .. } => usize::from(*has_descriptor),
        _ => 0,
    }
}

/// Returns the only descriptor.
fn one(descriptors: &mut Vec<Disposable<OwnedFd>>) -> Result<Disposable<OwnedFd>, RequestError> {
    descriptors.pop().ok_or(RequestError::Descriptors { descriptors: 0, wanted: 1 })
}

/// Checks that a descriptor of the front-end is an eventfd. The front-end may clear its `O_NONBLOCK` at
/// any time, so it is signalled by [`SharedEvent`] and drained by [`event_fd::drain`], which do not
/// block.
fn event(descriptor: Disposable<OwnedFd>) -> Result<Disposable<OwnedFd>, RequestError> {
    let io = |what| move |source| RequestError::Io { what, source };
    if !event_fd::is_one(&descriptor).map_err(io("identifying a descriptor"))? {
        return Err(RequestError::NoEventFd);
    }
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use std::io;

    use longshore_sys::descriptors;

    use super::*;

    struct OneQueue;

    impl Device for OneQueue {
        fn queues_count(&self) -> u16 {
            1
        }

        fn features(&self) -> u64 {
            0
        }

        fn config(&self) -> Vec<u8> {
            Vec::new()
        }

        fn start(&self, _: Queue) -> io::Result<Box<dyn RunningQueue>> {
            unreachable!("it has no addresses")
        }
    }

    #[test]
    fn eventfds_beyond_the_limit_of_their_user_are_refused() {
        let user = User::from_uid(4_000_000_011);
        let mut backend = Backend::new(&OneQueue, Space::new().unwrap(), false, user);
        let mut set_all = || {
            let (index, has_descriptor) = (0, true);
            for request in [
                Request::SetVringKick { index, has_descriptor },
                Request::SetVringCall { index, has_descriptor },
                Request::SetVringErr { index, has_descriptor },
            ] {
                let event = Disposable::of_user(event_fd::create().unwrap(), user);
                backend.handle(request, vec![event], Vec::new())?;
            }
            Ok::<_, RequestError>(())
        };
        let others = kept_descriptors::keep_anyway(user, descriptors::limit() / 4);
        let refused = set_all().unwrap_err();
        assert!(matches!(refused, RequestError::DescriptorLimit(_)), "{refused}");
        drop(others);
        set_all().unwrap();
    }
}
