//! Telling a service manager how far the server has come (`sd_notify(3)`).

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the service manager, if there is one. It does not wait for it, and nothing depends on it.
pub(crate) fn notify(state: &str) {
    if let Some(socket) = env::var_os("NOTIFY_SOCKET") {
        // There is nobody else to tell.
        let _ = send(&socket, state);
    }
}

fn send(socket: &OsString, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let datagrams = UnixDatagram::unbound()?;
    datagrams.set_nonblocking(true)?;
    datagrams.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_address_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("longshore-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(&path.into_os_string(), "READY=1").unwrap();
        send(&format!("@{name}").into(), "STOPPING=1").unwrap();
        let mut bytes = [0; 16];
        assert_eq!(by_path.recv(&mut bytes).unwrap(), 7);
        assert_eq!(by_name.recv(&mut bytes).unwrap(), 10);
    }
}
