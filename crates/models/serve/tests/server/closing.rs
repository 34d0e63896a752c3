//! Descriptors whose close takes long. Neither the server nor other users wait for the close.

use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::iter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use longshore_serve::protocol::{Reply, Request};
use longshore_serve::{Event, Options, Reason};
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Watch};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::others::{
    ALICE, MALLORY, as_user, attach, attach_by, private, shared, shared_and_observed,
};
use crate::rig::{PATIENCE, Raw, Rig};
use sockets::{Socket, lingering, many, nested, without_sockets};

#[path = "../../../../memory/sys/src/disposal/lingering.rs"]
pub(crate) mod sockets;

/// Sends descriptors with a malformed message.
fn send(client: &Raw, descriptors: &[BorrowedFd<'_>]) {
    sockets::send(&client.0, b"no message", descriptors);
}

/// A server that [`exceed`] pauses, and the sender that lets it continue.
struct HeldBack {
    rig: Rig,
    is_held: Mutex<Receiver<()>>,
    go_on: Sender<()>,
}

/// Starts a server with two connections per user. Its thread reports the first refusal and waits.
fn held_back() -> Option<HeldBack> {
    let (go_on, may_go_on) = mpsc::channel();
    let (held, is_held) = mpsc::channel();
    let mut was_held = false;
    let observe = move |event: &Event, _: &Path| {
        if matches!(event, Event::Refused { .. }) && !was_held {
            was_held = true;
            let _ = held.send(());
            // The test has failed if there is no sender.
            let _ = may_go_on.recv();
        }
    };
    let options = Options::new().clients_per_user(2);
    let rig = shared_and_observed(options, observe, |_| {})?;
    Some(HeldBack { rig, is_held: Mutex::new(is_held), go_on })
}

/// Makes the server refuse a connection and wait.
fn exceed(HeldBack { rig, is_held, .. }: &HeldBack) -> Vec<Raw> {
    let clients = vec![rig.raw().greeted(), rig.raw().greeted(), rig.raw()];
    assert_eq!(clients[2].receive_refusal().0, Reason::TooMany);
    is_held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
    clients
}

/// Checks that the server still serves another user.
fn serves_alice(rig: &Rig) {
    let path = rig.path("alice").canonicalize().unwrap().join("model.bin");
    as_user(ALICE, || {
        let file = private(&path, b"of alice");
        assert_eq!(attach(rig, &path, file).1.unwrap(), b"of alice");
    });
}

/// Makes connections that are not accepted yet, each with a descriptor that takes long to close.
fn queue_lingering(rig: &Rig) -> Vec<(Raw, OwnedFd)> {
    let queue = |_| {
        let (client, (socket, peer)) = (rig.raw(), lingering());
        send(&client, &[socket.as_fd()]);
        (client, peer)
    };
    (0..5).map(queue).collect()
}

#[test]
fn descriptors_queued_on_refused_connections_do_not_block_the_server() {
    let Some(mut server) = held_back() else { return };
    let refused = as_user(MALLORY, || (exceed(&server), queue_lingering(&server.rig)));
    server.go_on.send(()).unwrap();
    for (client, _) in &refused.1 {
        assert_eq!(client.receive_refusal().0, Reason::TooMany);
    }
    serves_alice(&server.rig);
    server.rig.stop();
}

#[test]
fn descriptors_queued_on_connections_that_are_not_accepted_do_not_block_the_end() {
    let Some(mut server) = held_back() else { return };
    let _waiting = as_user(MALLORY, || (exceed(&server), queue_lingering(&server.rig)));
    server.rig.ask_to_stop();
    server.go_on.send(()).unwrap();
    server.rig.stop();
    assert!(!server.rig.socket.exists());
}

#[test]
fn descriptors_queued_on_a_connection_take_no_descriptors_of_the_server() {
    /// The number of descriptors in a message. A user may have as many in flight as a process may have open:
    /// often 1024.
    const COUNT: usize = 60;
    let Some(server) = held_back() else { return };
    let marker_path = server.rig.dir.path().canonicalize().unwrap().join("marker");
    let marker = File::create(&marker_path).unwrap();
    let is_marker =
        |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|link| link == marker_path);
    let open_markers =
        || fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_marker).count();
    let _peers = as_user(MALLORY, || {
        let clients = exceed(&server);
        // The first message is received, and ends the connection because it is malformed.
        let pairs = [lingering(), lingering()];
        for (socket, _) in &pairs {
            let mut descriptors = [marker.as_fd(); COUNT];
            descriptors[0] = socket.as_fd();
            send(&clients[0], &descriptors);
        }
        (0..5).for_each(|_| send(&clients[0], &[marker.as_fd(); COUNT]));
        pairs.map(|(_, peer)| peer)
    });
    server.go_on.send(()).unwrap();
    server.rig.wait_disconnected();
    serves_alice(&server.rig);
    let open = open_markers();
    assert!(
        open <= 2,
        "{open} descriptors are open: the server keeps more than the first of a message"
    );
}

#[test]
fn descriptors_queued_behind_unread_memory_do_not_block_the_server() {
    let Some(mut server) = held_back() else { return };
    let path = server.rig.path("mallory").canonicalize().unwrap().join("model.bin");
    let _peers = as_user(MALLORY, || {
        let client = server.rig.raw().greeted();
        client.attach(&path, private(&path, b"of mallory"));
        let watch = Watch { fd: client.0.as_fd(), read: true, write: false };
        readiness::wait(&[watch], Some(Instant::now() + PATIENCE)).unwrap();
        let _others = (server.rig.raw().greeted(), server.rig.raw());
        server.is_held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        // The first message ends the connection, whose memory was not read.
        send(&client, &[]);
        let (sockets, peers) = many();
        let sockets: Vec<_> = sockets.into_iter().map(OwnedFd::from).collect();
        send(&client, &sockets.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        peers
    });
    server.go_on.send(()).unwrap();
    serves_alice(&server.rig);
    server.rig.stop();
}

/// The variable that marks the process that a test has started.
const IS_CHILD: &str = "LONGSHORE_TEST_CHILD";

/// Returns a command that runs only the test `name`, because other tests need descriptors, too.
fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("closing::{name}"), "--nocapture"]).env(IS_CHILD, "1");
    command
}

pub(crate) fn is_child() -> bool {
    std::env::var_os(IS_CHILD).is_some()
}

/// Serves for the next tests, in a process that can have 1024 descriptors.
fn serve_with_few_descriptors() {
    let few = Rlimit { current: Some(1024), maximum: Some(1024) };
    setrlimit(Resource::Nofile, few).unwrap();
    let Some(mut rig) = shared(Options::default(), |_| {}) else { return };
    println!("\nserves {}", rig.dir.path().display());
    // Until the test closes its end.
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    rig.stop();
}

/// A server in a process that can have 1024 descriptors.
struct Confined {
    child: Child,
    lines: Option<Lines>,
    dir: PathBuf,
}

type Lines = io::Lines<io::BufReader<ChildStdout>>;

impl Confined {
    /// Starts the server in a process that runs the test `name`, or returns `None` if that test is skipped.
    fn start(name: &str) -> Option<Self> {
        let mut child = child(name);
        child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = without_sockets(|| child.spawn()).unwrap();
        let mut lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
        let output = lines.by_ref().map(Result::unwrap);
        let mut output = output.take_while(|line| !line.starts_with("SKIPPED"));
        let Some(dir) = output.find_map(|line| line.strip_prefix("serves ").map(PathBuf::from))
        else {
            assert!(child.wait().unwrap().success());
            println!("SKIPPED: only root can act as other users");
            return None;
        };
        Some(Self { child, lines: Some(lines), dir })
    }

    fn connect(&self) -> Raw {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match packet_socket::connect(&self.dir.join("socket")) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(Instant::now() < deadline, "the server accepts no connection");
                    std::thread::yield_now();
                }
                connected => return Raw(connected.unwrap()),
            }
        }
    }

    /// Returns the directory of a user.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join("root").join(name).canonicalize().unwrap()
    }

    fn serves_alice(&self) {
        let path = self.path("alice").join("model.bin");
        as_user(ALICE, || {
            let file = private(&path, b"of alice");
            let answer = attach_by(self.connect().greeted(), &path, file).1;
            assert_eq!(answer.unwrap(), b"of alice");
        });
    }

    fn stop(mut self) {
        drop(self.child.stdin.take());
        self.lines.take().into_iter().flatten().for_each(drop);
        assert!(self.child.wait().unwrap().success());
    }
}

/// Ends the process, also after a failure.
impl Drop for Confined {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hundreds_of_lingering_sockets_delay_no_other_user() {
    const COUNT: usize = 150;
    if is_child() {
        return serve_with_few_descriptors();
    }
    let name = "hundreds_of_lingering_sockets_delay_no_other_user";
    let Some(server) = Confined::start(name) else { return };
    let connect = || server.connect();
    let attack = |make: fn() -> (Socket, OwnedFd), is_queued: bool| {
        let begin = |_| {
            let (client, (socket, peer)) = (connect(), make());
            // The server may have refused the connection already.
            let send = |with| _ = packet_socket::send(&client.0, b"no message", with);
            if is_queued {
                // This message ends the connection.
                send(None);
            }
            send(Some(socket.as_fd()));
            peer
        };
        as_user(MALLORY, || (0..COUNT).map(begin).collect::<Vec<_>>())
    };
    let mut peers = attack(lingering, false);
    server.serves_alice();
    peers.extend(attack(nested, false));
    server.serves_alice();
    peers.extend(attack(lingering, true));
    server.serves_alice();
    server.stop();
}

#[test]
fn models_of_one_user_do_not_take_all_descriptors() {
    if is_child() {
        return serve_with_few_descriptors();
    }
    let Some(server) = Confined::start("models_of_one_user_do_not_take_all_descriptors") else {
        return;
    };
    let folder = server.path("mallory");
    let mut clients = Vec::new();
    let refused = as_user(MALLORY, || {
        for number in 0..240 {
            let path = folder.join(format!("m{number}"));
            let (client, answer) =
                attach_by(server.connect().greeted(), &path, private(&path, b"model"));
            match answer {
                Ok(_) => clients.push(client),
                Err(refused) => return refused,
            }
            // The server keeps the memory of a deleted file, but not its inode.
            fs::remove_file(&path).unwrap();
            if number % 20 == 0 {
                let lister = server.connect().greeted();
                lister.send(&Request::List, None);
                while lister.receive().expect("the list ends") != Reply::End {}
            }
        }
        panic!("{} models are attached", clients.len())
    });
    assert!(refused.contains("user 2002 may have 128 for models"), "{refused}");
    assert!(refused.contains("'ulimit -n' (LimitNOFILE= in its unit)"), "{refused}");
    server.serves_alice();
    server.stop();
}

#[test]
fn a_client_gets_an_error_if_no_descriptors_are_left() {
    if !is_child() {
        let mut child = child("a_client_gets_an_error_if_no_descriptors_are_left");
        let child = without_sockets(|| child.output()).unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && output.contains("1 passed"), "{output}{errors}");
        return;
    }
    // Uses all numbers below the limit, so that the server can open no descriptor.
    const LIMIT: u64 = 100;
    let held = || File::open("/dev/null").unwrap();
    let _held: Vec<File> =
        iter::repeat_with(held).take_while(|file| (file.as_raw_fd() as u64) < LIMIT).collect();
    let rig = Rig::new(Options::default());
    let path = rig.file("model.bin", b"model").canonicalize().unwrap();
    let file = File::open(&path).unwrap();
    let client = rig.raw().greeted();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..before }).unwrap();
    client.attach(&path, &file);
    let (reason, message) = client.receive_refusal();
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(reason, Reason::TooMany, "{message}");
    assert!(message.contains("no descriptors left"), "{message}");
    assert_eq!(client.receive(), None, "the server closes the connection");
}

#[test]
fn an_index_that_is_too_long_is_not_read() {
    let Some(rig) = shared(Options::default(), |_| {}) else { return };
    let folder = rig.path("mallory").canonicalize().unwrap();
    let index = folder.join("m.safetensors.index.json");
    let refused = as_user(MALLORY, || {
        let file = private(&index, b"{");
        file.set_len((32 << 20) + 1).unwrap();
        attach(&rig, &index, file).1.unwrap_err()
    });
    assert!(refused.contains("33.55 MB or more"), "{refused}");
    assert!(refused.contains("a server reads at most 33.55 MB"), "{refused}");
}
