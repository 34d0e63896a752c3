//! A proxy between client and server, which delays or stalls connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// The number of bytes after which a connection stalls.
const STALLS_AFTER: u64 = 20 << 20;
/// The number of a connection that stalls, while others are at work.
const STALLED: usize = 5;

/// The effect on the answers of the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    None,
    /// One of each 16 connections sends nothing any more after some parts.
    Stall,
    /// Each connection has a limit, and each answer a delay.
    Slow {
        bytes_per_second: u64,
        delay: Duration,
    },
}

/// A proxy, which listens until the bench ends.
pub(super) struct Proxy {
    port: u16,
}

impl Proxy {
    /// Starts a proxy to a port of this machine.
    pub(super) fn start(to: u16, fault: Fault) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let count = Arc::new(AtomicUsize::new(0));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
                thread::spawn(move || relay(client, server, number, fault));
            }
        });
        Ok(Self { port })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

/// Passes on the bytes of a connection until one side ends.
fn relay(client: TcpStream, server: TcpStream, number: usize, fault: Fault) {
    let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let delay = match fault {
        Fault::Slow { delay, .. } => delay,
        Fault::None | Fault::Stall => Duration::ZERO,
    };
    thread::spawn(move || {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut bytes) {
            thread::sleep(delay);
            if to_server.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The other direction may have ended it.
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    let (mut bytes, mut passed, began) = (vec![0; 256 << 10], 0, Instant::now());
    while let Ok(count @ 1..) = from_server.read(&mut bytes) {
        if to_client.write_all(&bytes[..count]).is_err() {
            break;
        }
        passed += count as u64;
        match fault {
            Fault::None => {}
            Fault::Stall if number % 16 == STALLED && passed >= STALLS_AFTER => {
                // Until the client gives up.
                let _ = to_client.read(&mut bytes);
                thread::sleep(Duration::from_secs(3600));
            }
            Fault::Stall => {}
            Fault::Slow { bytes_per_second, .. } => {
                let due = Duration::from_secs_f64(passed as f64 / bytes_per_second as f64);
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
        }
    }
    let _ = to_client.shutdown(Shutdown::Both);
}
