//! `longshore serve` with a file system that hangs.

mod command;
#[path = "../../crates/models/serve/tests/server/fuse.rs"]
mod fuse;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use command::LONGSHORE;
use fuse::{Mounted, mount_hung};
use longshore::serve::protocol::{Request, Target, VERSION};
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Watch};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server, and the daemon of the file system in which it hangs.
struct Hanging {
    child: Child,
    /// The server's process can end once this is closed.
    hung: Option<(Mounted, File)>,
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        self.hung.take();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_with_a_look_up_that_hangs_stops_at_sigterm() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: only root can mount a file system that hangs");
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let [root, socket, own] = ["root", "socket", "own"].map(|name| dir.path().join(name));
    fs::create_dir(&root).unwrap();
    let Some(hung) = mount_hung(&root) else { return };
    let mut command = Command::new(LONGSHORE);
    command.args(["serve", "--json", "--root"]).arg(&root).arg("--socket").arg(&socket);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Hanging { child, hung: Some(hung) };
    let stdout = BufReader::new(server.child.stdout.take().unwrap());
    let (tell, lines) = mpsc::channel();
    thread::spawn(move || stdout.lines().try_for_each(|line| tell.send(line.unwrap())));
    let wait = |name: &str| loop {
        let line = lines.recv_timeout(PATIENCE);
        let line = line.unwrap_or_else(|_| panic!("no event {name} comes"));
        if serde_json::from_str::<Value>(&line).unwrap()["event"] == name {
            break;
        }
    };
    wait("ready");
    // A client cannot open a file there either, so it shows another one.
    let client = packet_socket::connect(&socket).unwrap();
    let target = Target::Path(root.join("model.bin"));
    let attach = Request::Attach { target, format: "auto".to_owned(), align_bytes: 0 };
    fs::write(&own, b"own").unwrap();
    let own = File::open(own).unwrap();
    for (request, file) in
        [(Request::Hello { version: VERSION }, None), (attach, Some(own.as_fd()))]
    {
        packet_socket::send(&client, &request.encode(), file).unwrap();
    }
    // A request that was read and is not answered cannot be interrupted.
    let (_, device) = server.hung.as_mut().unwrap();
    let watch = Watch { fd: device.as_fd(), read: true, write: false };
    let ready = readiness::wait(&[watch], Some(Instant::now() + PATIENCE)).unwrap();
    assert!(ready[0].read, "the server looks for the file");
    assert!(device.read(&mut [0; 1 << 16]).unwrap() > 0);
    command::signal(&server.child, "TERM");
    wait("stopping");
    wait_until(|| !socket.exists());
    assert_eq!(server.child.try_wait().unwrap(), None, "the look-up hangs");
    drop(server.hung.take());
    wait_until(|| server.child.try_wait().unwrap().is_some());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

fn wait_until(mut is_it: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_it() {
        assert!(Instant::now() < deadline, "it does not come to that");
        thread::sleep(Duration::from_millis(10));
    }
}
