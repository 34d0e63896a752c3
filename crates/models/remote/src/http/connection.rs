//! One connection to a server.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_mem::VolatileSliceMut;
use longshore_sys::stream_socket;
use rustls::ClientConnection;

use super::head::{HEAD_LEN_MAX_BYTES, Head};
use super::proxy::Proxy;
use super::tls::Tls;

/// The longest time for which a call is in the kernel, and so until a cancellation is noticed.
const GLANCE: Duration = Duration::from_millis(100);
/// The length of the first read of a head. The rest of the body is received to its place.
const HEAD_READ_BYTES: usize = 4096;

/// A server: its name, its port, and whether it speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The name or the address of the host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// `true` for TLS.
    pub is_tls: bool,
}

/// The limits of a call that waits for a server.
pub struct Patience<'a> {
    /// Returns `true` if the call is to end with [`ErrorKind::Interrupted`].
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// The longest time without any byte. After it, the call ends with [`ErrorKind::TimedOut`].
    pub silence_max: Duration,
}

/// A connection, on which one request is made after the other.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Bytes that were received behind a head.
    received: Vec<u8>,
    /// The number of bytes of `received` that were used.
    used: usize,
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
        for address in addresses(proxy.map_or(endpoint, |proxy| &proxy.endpoint), patience)? {
            let began = Instant::now();
            let goes_on = || !(patience.stop)() && began.elapsed() < patience.silence_max;
            match stream_socket::connect(address, goes_on) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    if (patience.stop)() {
                        return Err(error);
                    }
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

    /// Sends the head of a request.
    ///
    /// # Errors
    /// Those of the socket and of TLS; [`ErrorKind::TimedOut`], [`ErrorKind::Interrupted`].
    pub fn send(&mut self, request: &[u8], patience: &Patience<'_>) -> io::Result<()> {
        let mut rest = request;
        wait(patience, || {
            while !rest.is_empty() {
                let sent = match &mut self.tls {
                    Some(tls) => rustls::Stream::new(&mut **tls, &mut self.socket).write(rest)?,
                    None => self.socket.write(rest)?,
                };
                rest = &rest[sent..];
            }
            match &mut self.tls {
                Some(tls) => rustls::Stream::new(&mut **tls, &mut self.socket).flush(),
                None => Ok(()),
            }
        })
    }

    /// Receives the head of a response.
    ///
    /// # Errors
    /// Those of [`Connection::send`]; [`ErrorKind::UnexpectedEof`] if the connection ends;
    /// [`ErrorKind::InvalidData`] with a [`HeadProblem`](super::HeadProblem).
    pub fn receive_head(&mut self, patience: &Patience<'_>) -> io::Result<Head> {
        self.received.drain(..self.used);
        self.used = 0;
        loop {
            let invalid = |problem| io::Error::new(ErrorKind::InvalidData, problem);
            if let Some((head, len)) = Head::parse(&self.received).map_err(invalid)? {
                self.used = len;
                return Ok(head);
            }
            let before = self.received.len();
            let wanted = HEAD_READ_BYTES.min(HEAD_LEN_MAX_BYTES - before);
            self.received.resize(before + wanted, 0);
            let read = wait(patience, || {
                let place = &mut self.received[before..];
                match &mut self.tls {
                    Some(tls) => rustls::Stream::new(&mut **tls, &mut self.socket).read(place),
                    None => self.socket.read(place),
                }
            });
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
        let Some(tls) = &mut self.tls else {
            return wait(patience, || stream_socket::receive(&self.socket, memory));
        };
        let socket = &mut self.socket;
        wait(patience, || {
            loop {
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
                if tls.read_tls(socket)? == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                tls.process_new_packets().map_err(io::Error::other)?;
            }
        })
    }
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
    let began = Instant::now();
    loop {
        match receiver.recv_timeout(GLANCE) {
            Ok(found) => return found,
            Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::NotFound.into()),
            Err(RecvTimeoutError::Timeout) if (patience.stop)() => {
                return Err(ErrorKind::Interrupted.into());
            }
            Err(RecvTimeoutError::Timeout) if began.elapsed() >= patience.silence_max => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Repeats a call that the timeout of the socket ends, until it succeeds or the patience ends.
fn wait<T>(patience: &Patience<'_>, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let began = Instant::now();
    loop {
        match call() {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
        if (patience.stop)() {
            return Err(ErrorKind::Interrupted.into());
        }
        if began.elapsed() >= patience.silence_max {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}
