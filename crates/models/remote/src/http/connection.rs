//! One connection to a server.

use std::io::{self, BufRead, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_load::ReadControl;
use longshore_mem::VolatileSliceMut;
use longshore_sys::stream_socket;
use rustls::ClientConnection;

use super::endpoint::Endpoint;
use super::head::{HEAD_LEN_MAX_BYTES, Head};
use super::proxy::Proxy;
use super::tls::Tls;

/// The longest time for which a call is in the kernel, and so until a cancellation is noticed.
const GLANCE: Duration = Duration::from_millis(100);
/// The length of the first read of a head. The rest of the body is received to its place.
const HEAD_READ_BYTES: usize = 4096;

/// The limits of a call that waits for a server.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// The control of the caller. A call that it stops ends with [`ErrorKind::Interrupted`].
    pub control: &'a dyn ReadControl,
    /// The longest time without any byte, and for a whole head. After it, the call ends with
    /// [`ErrorKind::TimedOut`].
    pub idle_timeout: Duration,
    /// The time at which the call ends with [`ErrorKind::TimedOut`] in any case.
    pub deadline: Option<Instant>,
}

impl Limits<'_> {
    /// Returns these limits with a deadline, unless there is an earlier one.
    #[must_use]
    pub fn with_deadline(self, end: Instant) -> Self {
        Self { deadline: Some(self.deadline.map_or(end, |deadline| deadline.min(end))), ..self }
    }

    /// Returns an error if the call is to end.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.control.should_stop() {
            return Err(ErrorKind::Interrupted.into());
        }
        if self.has_passed() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Returns `true` if the deadline has passed.
    pub(super) fn has_passed(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// A connection, on which one request is made after the other.
pub struct Connection {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Bytes that were received behind a head.
    received: Vec<u8>,
    /// The number of bytes of `received` that were used.
    used: usize,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// The error for a server to which no connection can be made. Its cause keeps the number of the system's error.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {peer}")]
struct NotConnected {
    peer: String,
    source: io::Error,
}

impl Connection {
    /// Connects to a server, through a proxy if one is given, and performs the TLS handshake if there is a TLS
    /// configuration. Each address of the host is tried.
    ///
    /// # Errors
    /// Those of the last address; [`ErrorKind::TimedOut`], [`ErrorKind::Interrupted`].
    pub fn open(
        endpoint: &Endpoint,
        tls: Option<&Tls>,
        proxy: Option<&Proxy>,
        limits: &Limits<'_>,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        // Of all addresses together.
        let limited = limits.with_deadline(Instant::now() + limits.idle_timeout);
        let peer = proxy.map_or(endpoint, |proxy| &proxy.endpoint);
        for address in addresses(peer, limits)? {
            match stream_socket::connect(address, || limited.check().is_ok()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    limits.check()?;
                    last = ErrorKind::TimedOut.into();
                }
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    socket.set_read_timeout(Some(GLANCE))?;
                    socket.set_write_timeout(Some(GLANCE))?;
                    let mut opened = Self { socket, tls: None, received: Vec::new(), used: 0 };
                    if let Some(tls) = tls {
                        if let Some(proxy) = proxy {
                            opened.tunnel(endpoint, proxy, limits)?;
                        }
                        opened.tls = Some(Box::new(tls.connect(&endpoint.host)?));
                        opened.shake_hands(limits)?;
                    }
                    return Ok(opened);
                }
                Err(error) => last = error,
            }
        }
        let Endpoint { host, port, .. } = peer;
        let peer =
            format!("{}{host}, port {port}", if proxy.is_some() { "the proxy " } else { "" });
        Err(io::Error::new(last.kind(), NotConnected { peer, source: last }))
    }

    /// Asks a proxy for a connection to a server (RFC 9110, section 9.3.6).
    fn tunnel(
        &mut self,
        endpoint: &Endpoint,
        proxy: &Proxy,
        limits: &Limits<'_>,
    ) -> io::Result<()> {
        let host = match endpoint.host.contains(':') {
            true => format!("[{}]:{}", endpoint.host, endpoint.port),
            false => format!("{}:{}", endpoint.host, endpoint.port),
        };
        let mut request = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n");
        if let Some(value) = &proxy.authorization {
            request += &format!("Proxy-Authorization: {value}\r\n");
        }
        self.send(format!("{request}\r\n").as_bytes(), limits)?;
        match self.receive_head(limits)?.status {
            200..=299 if self.is_idle() => Ok(()),
            status => {
                let message = format!("the proxy refuses a connection to {host} (status {status})");
                Err(io::Error::new(ErrorKind::PermissionDenied, message))
            }
        }
    }

    /// Returns `true` if no byte was received that has not been used.
    pub fn is_idle(&self) -> bool {
        self.used == self.received.len()
            && self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    /// Performs the TLS handshake. The limits are checked after each system call, because a server may send its
    /// messages byte by byte.
    fn shake_hands(&mut self, limits: &Limits<'_>) -> io::Result<()> {
        let limited = limits.with_deadline(Instant::now() + limits.idle_timeout);
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.flush(&limited)?;
            let Self { socket, tls: Some(tls), .. } = self else { return Ok(()) };
            if !tls.is_handshaking() {
                break;
            }
            wait(&limited, || receive_tls(tls, socket))?;
            limited.check()?;
        }
        self.flush(&limited)
    }

    /// Sends the pending TLS records.
    fn flush(&mut self, limits: &Limits<'_>) -> io::Result<()> {
        let Self { socket, tls: Some(tls), .. } = self else { return Ok(()) };
        while tls.wants_write() {
            wait(limits, || tls.write_tls(socket))?;
        }
        Ok(())
    }

    /// Returns `true` if the server has sent nothing since the last response. Bytes between two requests would be
    /// taken for the response to the next one.
    pub(super) fn is_quiet(&mut self) -> bool {
        let Self { socket, tls, .. } = self;
        // Messages of TLS itself, such as a ticket, may have arrived.
        for _ in 0..8 {
            if stream_socket::is_quiet(&*socket) {
                let has_text = |tls: &mut Box<ClientConnection>| !matches!(tls.reader().fill_buf(), Err(error) if error.kind() == ErrorKind::WouldBlock);
                return !tls.as_mut().is_some_and(has_text);
            }
            let Some(tls) = tls else { return false };
            if receive_tls(tls, socket).is_err() {
                return false;
            }
        }
        false
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Those of the socket and of TLS; [`ErrorKind::TimedOut`], [`ErrorKind::Interrupted`].
    pub fn send(&mut self, request: &[u8], limits: &Limits<'_>) -> io::Result<()> {
        let mut rest = request;
        while !rest.is_empty() {
            let sent = match &mut self.tls {
                Some(tls) => tls.writer().write(rest)?,
                None => wait(limits, || self.socket.write(rest))?,
            };
            rest = &rest[sent..];
            self.flush(limits)?;
        }
        Ok(())
    }

    /// Receives the head of a response.
    ///
    /// # Errors
    /// Those of [`Connection::send`]; [`ErrorKind::UnexpectedEof`] if the connection ends;
    /// [`ErrorKind::InvalidData`] with a [`HeadProblem`](super::HeadProblem).
    pub fn receive_head(&mut self, limits: &Limits<'_>) -> io::Result<Head> {
        self.received.drain(..self.used);
        self.used = 0;
        let limited = limits.with_deadline(Instant::now() + limits.idle_timeout);
        loop {
            let invalid = |problem| io::Error::new(ErrorKind::InvalidData, problem);
            if let Some((head, len)) = Head::parse(&self.received).map_err(invalid)? {
                // An interim response, before that to the request (RFC 9110, section 15.2).
                if matches!(head.status, 100..200) {
                    self.received.drain(..len);
                    limited.check()?;
                    continue;
                }
                self.used = len;
                return Ok(head);
            }
            limited.check()?;
            let before = self.received.len();
            let wanted = HEAD_READ_BYTES.min(HEAD_LEN_MAX_BYTES - before);
            self.received.resize(before + wanted, 0);
            let mut place = VolatileSliceMut::from(&mut self.received[before..]);
            let read = from_socket(&mut self.socket, self.tls.as_deref_mut(), &mut place, &limited);
            self.received.truncate(before + read.as_ref().map_or(0, |read| *read));
            if read? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Receives the next bytes of a body into `memory`, as many as one system call gives. Returns the
    /// number of bytes; 0 if the connection has ended.
    ///
    /// # Errors
    /// Those of [`Connection::send`].
    pub fn receive(
        &mut self,
        memory: &mut VolatileSliceMut<'_>,
        limits: &Limits<'_>,
    ) -> io::Result<usize> {
        let left = &self.received[self.used..];
        if !left.is_empty() {
            let len = left.len().min(memory.len());
            let mut part = memory.subslice_mut(0, len).map_err(io::Error::other)?;
            part.write(0, &left[..len]).map_err(io::Error::other)?;
            self.used += len;
            return Ok(len);
        }
        from_socket(&mut self.socket, self.tls.as_deref_mut(), memory, limits)
    }
}

/// Receives bytes from the socket into `memory`, and decrypts them if there is a session of TLS.
fn from_socket(
    socket: &mut TcpStream,
    tls: Option<&mut ClientConnection>,
    memory: &mut VolatileSliceMut<'_>,
    limits: &Limits<'_>,
) -> io::Result<usize> {
    let Some(tls) = tls else {
        return wait(limits, || stream_socket::receive(&*socket, memory));
    };
    wait(limits, || {
        match tls.reader().fill_buf() {
            Ok(bytes) => {
                let len = bytes.len().min(memory.len());
                memory.write(0, &bytes[..len]).map_err(io::Error::other)?;
                tls.reader().consume(len);
                return Ok(len);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        receive_tls(tls, socket)?;
        Err(ErrorKind::WouldBlock.into())
    })
}

/// Receives a part of a record of TLS.
fn receive_tls(tls: &mut ClientConnection, socket: &mut TcpStream) -> io::Result<()> {
    if tls.read_tls(socket)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let is_handshaking = tls.is_handshaking();
    let processed = tls.process_new_packets();
    if processed.is_err() {
        // The alert, which tells the server the reason.
        let _ = tls.write_tls(socket);
    }
    processed.map(drop).map_err(|error| match is_handshaking {
        // Another try would have the same result.
        true => io::Error::new(ErrorKind::InvalidData, error),
        false => io::Error::other(error),
    })
}

/// Looks up the addresses of a host, on a thread of its own, because the C library cannot be interrupted.
fn addresses(endpoint: &Endpoint, limits: &Limits<'_>) -> io::Result<Vec<SocketAddr>> {
    let (sender, receiver) = mpsc::channel();
    let target = (endpoint.host.clone(), endpoint.port);
    thread::Builder::new().name("longshore-dns".to_owned()).spawn(move || {
        let found = (target.0.as_str(), target.1).to_socket_addrs();
        // The receiver has given up.
        let _ = sender.send(found.map(Vec::from_iter));
    })?;
    let limited = limits.with_deadline(Instant::now() + limits.idle_timeout);
    loop {
        match receiver.recv_timeout(GLANCE) {
            Ok(found) => return found,
            Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::NotFound.into()),
            Err(RecvTimeoutError::Timeout) => limited.check()?,
        }
    }
}

/// Repeats a call that the timeout of the socket ends, until it succeeds or a limit is reached.
fn wait<T>(limits: &Limits<'_>, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut limited = None;
    loop {
        match call() {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
        let limited = limited
            .get_or_insert_with(|| limits.with_deadline(Instant::now() + limits.idle_timeout));
        limited.check()?;
    }
}
