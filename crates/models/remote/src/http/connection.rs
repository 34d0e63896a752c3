//! One connection to a server.

use std::io::{self, BufRead, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

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
pub struct Patience<'a> {
    /// Returns `true` if the call is to end with [`ErrorKind::Interrupted`].
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// The longest time without any byte, and for a whole head. After it, the call ends with
    /// [`ErrorKind::TimedOut`].
    pub silence_max: Duration,
    /// The time at which the call ends with [`ErrorKind::TimedOut`] in any case.
    pub until: Option<Instant>,
}

impl Patience<'_> {
    /// Returns these limits with an earlier end.
    #[must_use]
    pub fn until(self, end: Instant) -> Self {
        Self { until: Some(self.until.map_or(end, |until| until.min(end))), ..self }
    }

    /// Returns an error if the call is to end.
    pub(crate) fn check(&self) -> io::Result<()> {
        if (self.stop)() {
            return Err(ErrorKind::Interrupted.into());
        }
        if self.is_over() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Returns `true` if the time limit has passed.
    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
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

impl Connection {
    /// Connects to a server, by a proxy if one is given, and begins a session of TLS if there is a configuration. Each address of the
    /// host is tried.
    ///
    /// # Errors
    /// Those of the last address; [`ErrorKind::TimedOut`], [`ErrorKind::Interrupted`].
    pub fn open(
        endpoint: &Endpoint,
        tls: Option<&Tls>,
        proxy: Option<&Proxy>,
        patience: &Patience<'_>,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        // Of all addresses together.
        let limited = patience.until(Instant::now() + patience.silence_max);
        for address in addresses(proxy.map_or(endpoint, |proxy| &proxy.endpoint), patience)? {
            match stream_socket::connect(address, || limited.check().is_ok()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    patience.check()?;
                    last = ErrorKind::TimedOut.into();
                }
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    socket.set_read_timeout(Some(GLANCE))?;
                    socket.set_write_timeout(Some(GLANCE))?;
                    let mut opened = Self { socket, tls: None, received: Vec::new(), used: 0 };
                    if let Some(tls) = tls {
                        if let Some(proxy) = proxy {
                            opened.tunnel(endpoint, proxy, patience)?;
                        }
                        opened.tls = Some(Box::new(tls.connect(&endpoint.host)?));
                        opened.shake_hands(patience)?;
                    }
                    return Ok(opened);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks a proxy for a connection to a server (RFC 9110, section 9.3.6).
    fn tunnel(
        &mut self,
        endpoint: &Endpoint,
        proxy: &Proxy,
        patience: &Patience<'_>,
    ) -> io::Result<()> {
        let host = match endpoint.host.contains(':') {
            true => format!("[{}]:{}", endpoint.host, endpoint.port),
            false => format!("{}:{}", endpoint.host, endpoint.port),
        };
        let mut request = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n");
        if let Some(value) = &proxy.authorization {
            request += &format!("Proxy-Authorization: {value}\r\n");
        }
        self.send(format!("{request}\r\n").as_bytes(), patience)?;
        match self.receive_head(patience)?.status {
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

    /// Makes the handshake of TLS, one system call after the other, because a server may send it byte by byte.
    fn shake_hands(&mut self, patience: &Patience<'_>) -> io::Result<()> {
        let limited = patience.until(Instant::now() + patience.silence_max);
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

    /// Sends what TLS has to send.
    fn flush(&mut self, patience: &Patience<'_>) -> io::Result<()> {
        let Self { socket, tls: Some(tls), .. } = self else { return Ok(()) };
        while tls.wants_write() {
            wait(patience, || tls.write_tls(socket))?;
        }
        Ok(())
    }

    /// Returns `true` if the server has sent nothing since the last response. What it sends between two requests
    /// would be taken for the response to the next one.
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
    pub fn send(&mut self, request: &[u8], patience: &Patience<'_>) -> io::Result<()> {
        let mut rest = request;
        while !rest.is_empty() {
            let sent = match &mut self.tls {
                Some(tls) => tls.writer().write(rest)?,
                None => wait(patience, || self.socket.write(rest))?,
            };
            rest = &rest[sent..];
            self.flush(patience)?;
        }
        Ok(())
    }

    /// Receives the head of a response.
    ///
    /// # Errors
    /// Those of [`Connection::send`]; [`ErrorKind::UnexpectedEof`] if the connection ends;
    /// [`ErrorKind::InvalidData`] with a [`HeadProblem`](super::HeadProblem).
    pub fn receive_head(&mut self, patience: &Patience<'_>) -> io::Result<Head> {
        self.received.drain(..self.used);
        self.used = 0;
        let limited = patience.until(Instant::now() + patience.silence_max);
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
        patience: &Patience<'_>,
    ) -> io::Result<usize> {
        let left = &self.received[self.used..];
        if !left.is_empty() {
            let len = left.len().min(memory.len());
            let mut part = memory.subslice_mut(0, len).map_err(io::Error::other)?;
            part.write(0, &left[..len]).map_err(io::Error::other)?;
            self.used += len;
            return Ok(len);
        }
        from_socket(&mut self.socket, self.tls.as_deref_mut(), memory, patience)
    }
}

/// Receives bytes from the socket into `memory`, and decrypts them if there is a session of TLS.
fn from_socket(
    socket: &mut TcpStream,
    tls: Option<&mut ClientConnection>,
    memory: &mut VolatileSliceMut<'_>,
    patience: &Patience<'_>,
) -> io::Result<usize> {
    let Some(tls) = tls else {
        return wait(patience, || stream_socket::receive(&*socket, memory));
    };
    wait(patience, || {
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
fn addresses(endpoint: &Endpoint, patience: &Patience<'_>) -> io::Result<Vec<SocketAddr>> {
    let (sender, receiver) = mpsc::channel();
    let target = (endpoint.host.clone(), endpoint.port);
    thread::Builder::new().name("longshore-dns".to_owned()).spawn(move || {
        let found = (target.0.as_str(), target.1).to_socket_addrs();
        // The receiver has given up.
        let _ = sender.send(found.map(Vec::from_iter));
    })?;
    let limited = patience.until(Instant::now() + patience.silence_max);
    loop {
        match receiver.recv_timeout(GLANCE) {
            Ok(found) => return found,
            Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::NotFound.into()),
            Err(RecvTimeoutError::Timeout) => limited.check()?,
        }
    }
}

/// Repeats a call that the timeout of the socket ends, until it succeeds or the patience ends.
fn wait<T>(patience: &Patience<'_>, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut limited = None;
    loop {
        match call() {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
        let limited =
            limited.get_or_insert_with(|| patience.until(Instant::now() + patience.silence_max));
        limited.check()?;
    }
}
