//! The bare loop: the least that receives the same ranges over the same connections into the same memory.
#![expect(unsafe_code, reason = "lends ranges of the buffer to its threads")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use longshore_heap::{Heap, Reservation};
use longshore_mem::VolatileSliceMut;
use longshore_sys::stream_socket;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// The length of a range, as in a load.
const PART_BYTES: u64 = 8 << 20;

/// The options of the loop.
#[derive(Args)]
pub(crate) struct Receive {
    /// The port of the server on this machine
    #[arg(long)]
    port: u16,
    /// The path of the file
    #[arg(long)]
    path: String,
    /// The length of the file in bytes
    #[arg(long)]
    bytes: u64,
    /// The number of connections
    #[arg(long)]
    connections: usize,
    /// The certificate of the authority, for TLS
    #[arg(long)]
    authority: Option<PathBuf>,
}

/// Receives the file.
///
/// # Errors
/// Those of the connections.
pub(crate) fn run(options: &Receive) -> Result<()> {
    let config = options.authority.as_ref().map(tls).transpose()?;
    let reservation = Heap::Memfd.reserve(options.bytes)?;
    let filling = reservation.begin_filling()?;
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        let receive = || receive(options, config.as_ref(), &reservation, &next);
        let threads: Vec<_> = (0..options.connections).map(|_| scope.spawn(receive)).collect();
        threads
            .into_iter()
            .try_for_each(|it| it.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    drop(filling);
    drop(reservation.finish()?);
    Ok(())
}

fn tls(authority: &PathBuf) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let mut pem = Vec::new();
    File::open(authority)?.read_to_end(&mut pem)?;
    roots.add(CertificateDer::from_pem_slice(&pem).map_err(|error| anyhow!("{error}"))?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

fn receive(
    options: &Receive,
    config: Option<&Arc<ClientConfig>>,
    reservation: &Reservation,
    next: &AtomicU64,
) -> Result<()> {
    let mut socket = TcpStream::connect(("127.0.0.1", options.port))?;
    socket.set_nodelay(true)?;
    let mut session = match config {
        None => None,
        Some(config) => {
            let name = ServerName::try_from("localhost")?;
            let session = ClientConnection::new(Arc::clone(config), name)?;
            Some(StreamOwned::new(session, socket.try_clone()?))
        }
    };
    loop {
        let start = next.fetch_add(PART_BYTES, Ordering::Relaxed);
        if start >= options.bytes {
            return Ok(());
        }
        let end = (start + PART_BYTES).min(options.bytes);
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: localhost\r\nRange: bytes={start}-{}\r\n\r\n",
            options.path,
            end - 1
        );
        reservation.populate(start..end)?;
        // SAFETY: the counter returns each range once.
        let mut window = unsafe { reservation.window(start..end) }?;
        let mut head = [0; 2048];
        let read = match &mut session {
            None => {
                socket.write_all(request.as_bytes())?;
                socket.read(&mut head)?
            }
            Some(session) => {
                session.write_all(request.as_bytes())?;
                session.read(&mut head)?
            }
        };
        let at =
            head[..read].windows(4).position(|it| it == b"\r\n\r\n").context("a long head")? + 4;
        ensure!(head.starts_with(b"HTTP/1.1 206"), "not a range");
        window.write(0, &head[at..read])?;
        let mut done = read - at;
        let len = window.len();
        while done < len {
            let mut rest = window.subslice_mut(done, len - done)?;
            done += match &mut session {
                None => stream_socket::receive(&socket, &mut rest)?,
                Some(session) => decrypt(session, &mut rest)?,
            };
        }
    }
}

/// Receives some bytes of a session of TLS.
fn decrypt(
    session: &mut StreamOwned<ClientConnection, TcpStream>,
    memory: &mut VolatileSliceMut<'_>,
) -> Result<usize> {
    // SAFETY: the view is valid and writable for its length, and no other thread uses the range.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len()) };
    let read = session.read(bytes)?;
    ensure!(read > 0, "the connection ended");
    Ok(read)
}
