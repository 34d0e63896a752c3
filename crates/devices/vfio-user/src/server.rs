//! A server on a Unix socket.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use longshore_access::client::{Listener, Stop};
use longshore_sys::closing::Disposable;
use longshore_sys::descriptors;
use longshore_sys::disposal;
use longshore_sys::event_fd;
use longshore_sys::unix_socket::{self, DESCRIPTORS_MAX, Interest};

use crate::Errno;
use crate::device::Device;
use crate::dma::DmaTarget;
use crate::link::{DisconnectReason, Link, REPLY_TIMEOUT_DEFAULT};
use crate::negotiation::Capabilities;
use crate::receiver::Receiver;
use crate::responder::{RefusedMessage, Responder};
use crate::wire::HEADER_LEN_BYTES;

/// The longest payload of a message, beside its data: the longest list of capabilities and any prefix.
const PAYLOAD_OVERHEAD_BYTES: u32 = (64 << 10) + 64;

/// A server of one device, for one client after the other.
#[derive(Debug)]
pub struct Server<D, M> {
    responder: Responder<D, M>,
    limits: Capabilities,
    reply_timeout: Duration,
    stop: Stop,
}

/// The result of serving a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionSummary {
    /// The reason why the connection ended.
    pub ended: DisconnectReason,
    /// The number of messages that were answered, or executed without a reply.
    pub messages_count: u64,
    /// The number of messages that were refused.
    pub refused_count: u64,
    /// The last message that was refused since the server was made.
    pub last_refused: Option<RefusedMessage>,
    /// The number of replies that matched no request of the server; they were dropped.
    pub stray_replies_count: u64,
    /// The number of maps that could not be unmapped after the client had disconnected. If there are
    /// any, [`Server::serve`] fails from then on.
    pub maps_left_count: usize,
}

impl<D: Device, M: DmaTarget> Server<D, M> {
    /// Makes a server of `device`, which keeps the client's memory in `dma`.
    ///
    /// This raises the soft limit of descriptors of this process (`RLIMIT_NOFILE`) to the hard limit:
    /// clients of one user can have a quarter of them, and those of all users a half. Eventfds that a
    /// client attaches beyond that are refused with [`Errno::ENOSPC`]. Code of this process that uses
    /// `select(2)` must not be given descriptors of 1,024 or more.
    ///
    /// # Errors
    /// Descriptors exhausted; `TimedOut` if another user holds the lock of this process's directory in
    /// `/proc`.
    pub fn new(device: D, dma: M) -> io::Result<Self> {
        Self::with_capabilities(device, dma, Capabilities::DEFAULT)
    }

    /// Makes a server like [`new`](Self::new), with other limits than [`Capabilities::DEFAULT`].
    ///
    /// # Errors
    /// Those of [`new`](Self::new); `InvalidInput` for pages below 4 KiB, or more descriptors in a message
    /// than one `recvmsg` can receive ([`DESCRIPTORS_MAX`]).
    pub fn with_capabilities(device: D, dma: M, limits: Capabilities) -> io::Result<Self> {
        let takes_all = limits.message_fds_max as usize <= DESCRIPTORS_MAX;
        if limits.page_sizes == 0 || limits.page_bytes() < 4096 || !takes_all {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // If this fails, clients share the limit as it is.
        let _ = descriptors::raise_limit();
        // Before the first descriptor of a client arrives.
        disposal::prepare()?;
        event_fd::prepare();
        Ok(Self {
            responder: Responder::new(device, dma, limits),
            limits,
            reply_timeout: REPLY_TIMEOUT_DEFAULT,
            stop: Stop::new()?,
        })
    }

    /// Sets how long to wait for a client to answer all messages of an access, or to receive a message,
    /// instead of [`REPLY_TIMEOUT_DEFAULT`].
    #[must_use]
    pub fn reply_timeout(mut self, reply_timeout: Duration) -> Self {
        self.reply_timeout = reply_timeout;
        self
    }

    /// Returns a handle that stops this server from another thread.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves a client until it disconnects or the server is stopped. Then its memory is unmapped and
    /// its eventfds are closed; the state of the device stays for the next client.
    ///
    /// # Errors
    /// Only if serving cannot begin: descriptors exhausted; errors of [`Device::mappable`];
    /// `InvalidInput` if that returns a file that clients must not be given; `ResourceBusy` while memory
    /// of an earlier client is still mapped, for example because the device has a pin or a lease of it
    /// on this thread. The device could access that memory while it serves the next client.
    pub fn serve(&mut self, stream: UnixStream) -> io::Result<ConnectionSummary> {
        let stream = Disposable::new(stream);
        let left = self.responder.unmap_all();
        if left > 0 {
            let reason = format!(
                "{left} maps of an earlier client could not be taken back: drop the pins and leases \
                 that the device has of its memory, or serve other clients by another process"
            );
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
        }
        self.responder.begin(stream.user())?;
        let Capabilities { transfer_bytes_max, message_fds_max, .. } = self.limits;
        let payload_bytes_max = transfer_bytes_max.saturating_add(PAYLOAD_OVERHEAD_BYTES);
        let link = Link::new(
            stream,
            Receiver::new(payload_bytes_max, message_fds_max),
            payload_bytes_max as usize + HEADER_LEN_BYTES,
            self.reply_timeout,
            self.stop.clone(),
            self.responder.interrupts().clone(),
        )?;
        let refused_before = self.responder.refused().0;
        let mut messages_count = 0;
        let ended = loop {
            match self.serve_one(&link) {
                Ok(()) => messages_count += 1,
                Err(ended) => break ended,
            }
        };
        // Release threads that wait for the client before its memory is unmapped.
        link.end(ended.clone());
        let maps_left_count = self.responder.disconnect();
        let (refused, last_refused) = self.responder.refused();
        Ok(ConnectionSummary {
            ended,
            messages_count,
            refused_count: refused - refused_before,
            last_refused,
            stray_replies_count: link.stray_replies_count(),
            maps_left_count,
        })
    }

    fn serve_one(&mut self, link: &Link) -> Result<(), DisconnectReason> {
        let message = link.next_request()?;
        let was_settled = self.responder.client_capabilities().is_some();
        let header = message.header;
        let reply = match message.is_too_long {
            true => self.responder.refuse(&header, Errno::EMSGSIZE),
            false => self.responder.respond_to(&header, &message.payload, message.files),
        };
        if let Some(reply) = reply {
            let is_sent = match reply.fd() {
                Some(file) => link.send_with(&reply.bytes, file)?,
                None => link.send(&reply.bytes).map(|()| true)?,
            };
            if !is_sent && let Some(refusal) = self.responder.refuse(&header, Errno::ENOSPC) {
                link.send(&refusal.bytes)?;
            }
        }
        if let (false, Some(client)) = (was_settled, self.responder.client_capabilities()) {
            link.negotiate(&client, &self.limits);
            self.responder.connected(link);
        }
        Ok(())
    }

    /// Serves clients of `listener`, one after the other, until the server is stopped, and calls
    /// `served` with the summary of each. While the process has no descriptors left, clients wait. A
    /// waiting client that sends descriptors before it is served is disconnected
    /// ([`Listener::serve_each`]).
    ///
    /// Serve users who do not trust each other from a process each: one of them can keep all others
    /// waiting.
    ///
    /// # Errors
    /// Those of `accept(2)`, of starting a thread, and of [`serve`](Self::serve).
    pub fn serve_all(
        &mut self,
        listener: &Listener,
        mut served: impl FnMut(&ConnectionSummary),
    ) -> io::Result<()> {
        let stop = self.stop.clone();
        listener.serve_each(&stop, |stream| match self.serve(stream) {
            Ok(ended) => {
                served(&ended);
                Ok(())
            }
            Err(error) if unix_socket::is_for_now(&error) => {
                let later = Instant::now() + Duration::from_millis(100);
                unix_socket::wait(stop.as_fd(), Interest::Receive, &[], Some(later)).map(drop)
            }
            Err(error) => Err(error),
        })
    }

    /// Returns the device with the protocol around it.
    pub fn responder(&mut self) -> &mut Responder<D, M> {
        &mut self.responder
    }
}
