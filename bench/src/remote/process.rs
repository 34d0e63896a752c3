//! The process of a server: its port, its start and its end.

use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

/// Waits until a server listens.
pub(super) fn await_port(port: u16, server: &str) -> Result<()> {
    let listens = (0..200).any(|_| {
        thread::sleep(Duration::from_millis(50));
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    if listens { Ok(()) } else { Err(anyhow!("{server} does not listen")) }
}

/// Ends a server by the signal TERM.
pub(super) fn end(process: &mut Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(process.id().cast_signed()) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let _ = process.wait();
}

/// Returns a port on which nothing listens.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
