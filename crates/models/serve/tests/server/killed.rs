//! Servers that are killed while the kernel keeps their descriptors. The next server replaces them.
#![expect(unsafe_code, reason = "shares the descriptors of a process with another one")]

use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use longshore_load::{CancelToken, FormatChoice};
use longshore_serve::{Client, Error, Event, Listener, Options, Server, Stop, Wanted};
use longshore_sys::packet_socket;

use crate::closing::sockets::without_sockets;
use crate::fuse::{Mounted, mount_hung};
use crate::rig::Raw;

/// The directory of a server that a test has started in a process of its own.
const DIRECTORY: &str = "LONGSHORE_TEST_KILLED_DIRECTORY";
/// A path whose look-up hangs. Without one, another process shares the descriptors.
const HUNG: &str = "LONGSHORE_TEST_KILLED_HUNG";
/// A limit that is reached only by an event that never happens.
const PATIENCE: Duration = Duration::from_secs(60);

fn server(dir: &Path) -> Result<(Server, Stop), Error> {
    let stop = Stop::new()?;
    let options = Options::new().root(dir.join("root"));
    let listener = Listener::bind(&dir.join("socket"), 0o600)?;
    Ok((Server::new(listener, options, stop.clone())?, stop))
}

/// Starts a process that shares the descriptors of this one, and ends when its standard input does.
fn share_descriptors() {
    // SAFETY: as after a fork the new process has a copy of this one's memory, and it calls only
    // functions that are safe to call then.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
    assert!(pid >= 0, "{}", io::Error::last_os_error());
    if pid == 0 {
        let mut byte = 0u8;
        // SAFETY: there is room for one byte.
        while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } > 0 {}
        // SAFETY: it ends this process, which has nothing to clean up.
        unsafe { libc::_exit(0) };
    }
}

/// Serves in a process that the test kills.
fn serve_in_child(dir: &Path) {
    let (server, _stop) = server(dir).unwrap();
    match std::env::var_os(HUNG) {
        Some(hung) => _ = thread::spawn(move || fs::metadata(hung)),
        None => share_descriptors(),
    }
    // If the test fails, this process ends with it.
    if std::env::var_os(HUNG).is_some() {
        thread::spawn(|| {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            process::exit(1);
        });
    }
    let say = |event: &Event| {
        if matches!(event, Event::Ready { .. }) {
            println!("\nserves");
        }
    };
    server.run(say).unwrap();
}

/// A process with a server.
struct Killed {
    child: Child,
    /// Closing it ends the process that shares the server's descriptors.
    stdin: Option<ChildStdin>,
    /// The file system in which a thread of the server hangs.
    hung: Option<(Mounted, File)>,
    dir: tempfile::TempDir,
}

impl Killed {
    /// Starts the server in a process that runs the test `name`.
    fn start(name: &str, dir: tempfile::TempDir, hung: Option<&Path>) -> Self {
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("root/model"), b"content").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("killed::{name}"), "--nocapture"]);
        command.env(DIRECTORY, dir.path()).envs(hung.map(|hung| (HUNG, hung)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = without_sockets(|| command.spawn()).unwrap();
        let mut lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "serves"), "the server starts");
        Self { stdin: child.stdin.take(), child, hung: None, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        drop((self.stdin.take(), self.hung.take()));
        let _ = self.child.wait();
    }
}

fn attach(socket: &Path, path: &Path) -> Vec<u8> {
    let client = Client::connect(Some(socket), &CancelToken::new()).unwrap();
    let wanted = Wanted::Path(path.to_owned());
    let attachment = client.attach(&wanted, FormatChoice::Auto, &mut |_| {}).unwrap();
    attachment.as_slice().to_vec()
}

/// Starts the next server while the kernel keeps the descriptors of the killed one, and checks that it
/// serves.
fn expect_replaced(killed: &Killed) {
    let (socket, model) = (killed.socket(), killed.dir.path().join("root/model"));
    let dead = fs::symlink_metadata(&socket).unwrap();
    // Two servers start at the same time.
    let begin = Barrier::new(2);
    let start = || {
        begin.wait();
        server(killed.dir.path())
    };
    let deadline = Instant::now() + PATIENCE;
    let (server, stop) = loop {
        let both = thread::scope(|scope| {
            let both = [scope.spawn(start), scope.spawn(start)];
            both.map(|thread| thread.join().unwrap())
        });
        let [first, second] = both;
        match (first, second) {
            (Ok(server), Err(Error::AlreadyServed { .. }))
            | (Err(Error::AlreadyServed { .. }), Ok(server)) => break server,
            (Err(Error::AlreadyServed { .. }), Err(Error::AlreadyServed { .. })) => {
                assert!(Instant::now() < deadline, "the killed server still counts as alive");
                thread::yield_now();
            }
            other => panic!("{other:?}"),
        }
    };
    let there = fs::symlink_metadata(&socket).unwrap();
    assert_ne!((dead.ino(), dead.mtime_nsec()), (there.ino(), there.mtime_nsec()));
    thread::scope(|scope| {
        let server = scope.spawn(move || server.run(|_| {}));
        assert_eq!(attach(&socket, &model), b"content");
        let second = Listener::bind(&socket, 0o600).unwrap_err();
        assert!(matches!(second, Error::AlreadyServed { .. }), "{second}");
        assert_eq!(attach(&socket, &model), b"content", "the first server still serves");
        stop.stop();
        server.join().unwrap().unwrap();
    });
    assert_eq!(
        fs::read_dir(killed.dir.path()).unwrap().count(),
        1,
        "the socket or the lock is left"
    );
}

#[test]
fn a_killed_server_whose_descriptors_another_process_keeps_is_replaced() {
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        return serve_in_child(Path::new(&dir));
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let name = "a_killed_server_whose_descriptors_another_process_keeps_is_replaced";
    let mut killed = Killed::start(name, dir, None);
    let (socket, model) = (killed.socket(), killed.dir.path().join("root/model"));
    let client = Client::connect(Some(&socket), &CancelToken::new()).unwrap();
    let attachment = client.attach(&Wanted::Path(model), FormatChoice::Auto, &mut |_| {}).unwrap();
    assert!(Listener::bind(&socket, 0o600).is_err(), "the server is alive");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let late = Raw(packet_socket::connect(&socket).expect("the socket outlives the server"));
    expect_replaced(&killed);
    // The server's clients keep their memory, and cannot detect yet that the server is dead.
    assert!(attachment.as_slice() == b"content" && attachment.is_server_alive());
    drop(killed.stdin.take());
    assert_eq!(late.receive(), None, "a client in the old queue finds no server");
    let deadline = Instant::now() + PATIENCE;
    while attachment.is_server_alive() {
        assert!(Instant::now() < deadline, "the connection ends");
        thread::yield_now();
    }
    assert_eq!(attachment.as_slice(), b"content");
}

#[test]
fn a_killed_server_with_a_thread_that_hangs_in_a_file_system_is_replaced() {
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        return serve_in_child(Path::new(&dir));
    }
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: only root can mount a file system that hangs");
    }
    let mount_point = tempfile::tempdir_in("/var/tmp").unwrap();
    let Some((mounted, device)) = mount_hung(mount_point.path()) else { return };
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let name = "a_killed_server_with_a_thread_that_hangs_in_a_file_system_is_replaced";
    let mut killed = Killed::start(name, dir, Some(&mount_point.path().join("x")));
    let (_, device) = killed.hung.insert((mounted, device));
    // A request that was read and is not answered cannot be interrupted.
    assert!(device.read(&mut [0; 1 << 16]).unwrap() > 0);
    killed.child.kill().unwrap();
    expect_replaced(&killed);
    assert!(killed.child.try_wait().unwrap().is_none(), "the thread still hangs");
}
