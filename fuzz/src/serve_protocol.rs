//! Properties of the model server and its client for any messages from the other side.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_load::CancelToken;
use longshore_serve::protocol::{MESSAGE_BYTES_MAX, Reply, Request, Target, VERSION};
use longshore_serve::{Client, Event, Listener, Options, Server, Stop, Trust};
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Watch};
use tempfile::TempDir;

/// The number of inputs after which another client asks for a list.
const LIST_EVERY: u64 = 16;

thread_local! {
    /// One server for all inputs, because starting one takes longer than answering an input. A client
    /// must not affect the next one in any case.
    static RIG: Rig = Rig::new();
}

/// Reads messages from the input: two bytes of length, whose highest bits choose a descriptor, and that
/// many bytes. Each message is decoded as by both sides; then one client sends all of them to a server.
pub fn serve_protocol(input: &[u8]) {
    RIG.with(|rig| {
        let messages = messages(rig, input);
        for (bytes, _) in &messages {
            decoded(bytes);
        }
        answered(rig, &messages);
    });
}

/// The descriptor that is sent with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Nothing,
    /// The file that the server holds from the start, as number 1.
    Held,
    /// The file that the server loads.
    Shown,
    /// A file that the server does not serve.
    Other,
}

/// Returns valid messages that are useful in any order, so that the fuzzer need not find the magic
/// number.
fn template(rig: &Rig, number: u8) -> Option<Vec<u8>> {
    let attach = |target, format: &str| Request::Attach {
        target,
        format: format.to_owned(),
        align_bytes: 0,
    };
    let request = match number {
        0 => Request::Hello { version: VERSION },
        1 => attach(Target::Path(rig.model.clone()), "raw"),
        2 => attach(Target::Path(rig.model.with_file_name("absent")), "auto"),
        3 => attach(Target::Path("/etc/passwd".into()), "auto"),
        4 => attach(Target::Id(1), "auto"),
        5 => Request::Proof,
        6 => Request::Release,
        7 => Request::List,
        _ => return None,
    };
    Some(request.encode())
}

fn messages(rig: &Rig, mut input: &[u8]) -> Vec<(Vec<u8>, With)> {
    const MESSAGES_MAX: usize = 24;
    let mut messages = Vec::new();
    while let [low, high, rest @ ..] = input
        && messages.len() < MESSAGES_MAX
    {
        let with = match high >> 6 {
            0 => With::Nothing,
            1 => With::Held,
            2 => With::Shown,
            _ => With::Other,
        };
        input = rest;
        if high & 0x20 != 0 {
            messages.extend(template(rig, low % 8).map(|bytes| (bytes, with)));
            continue;
        }
        let len_bytes = usize::from(u16::from_le_bytes([*low, high & 0x1f])).min(rest.len());
        let (bytes, left) = rest.split_at(len_bytes);
        input = left;
        // An empty message would end the connection.
        if !bytes.is_empty() {
            messages.push((bytes.to_vec(), with));
        }
    }
    messages
}

/// Checks that a message that can be decoded is encoded into the same bytes.
fn decoded(bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(request.encode(), bytes, "{request:?}");
    }
    match Reply::decode(bytes) {
        // An unknown reason is decoded as `Other`.
        Ok(refusal @ Reply::Refused { .. }) => {
            assert_eq!(Reply::decode(&refusal.encode()).as_ref(), Ok(&refusal));
        }
        Ok(reply) => assert_eq!(reply.encode(), bytes, "{reply:?}"),
        Err(malformed) => assert!(!malformed.to_string().contains('\u{1b}')),
    }
}

/// A server, which ends when this is dropped.
struct Rig {
    socket: PathBuf,
    held: File,
    shown: File,
    other: File,
    model: PathBuf,
    /// The number of inputs so far.
    inputs: Cell<u64>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let root = dir.path().join("root");
        fs::create_dir(&root).expect("a directory can be made");
        let root = root.canonicalize().expect("it is there");
        let (model, held) = (root.join("model"), root.join("held"));
        let other = dir.path().join("other");
        for (path, len_bytes) in [(&model, 5000), (&held, 300), (&other, 5)] {
            fs::write(path, vec![7; len_bytes]).expect("a file can be written");
        }
        let open = |path| File::open(path).expect("it was written");
        let files = [open(&held), open(&model), open(&other)];
        let socket = dir.path().join("socket");
        let listener = Listener::bind(&socket, 0o600).expect("a socket can be made");
        let stop = Stop::new().expect("descriptors can be had");
        let options = Options::new().root(root).file(held);
        let server = Server::new(listener, options, stop.clone()).expect("the root is there");
        let (ready, is_ready) = mpsc::channel();
        let observe = move |event: &Event| {
            if matches!(event, Event::Ready { .. }) {
                let _ = ready.send(());
            }
        };
        let run = move || server.run(observe).expect("the server does not fail");
        let thread = Some(thread::spawn(run));
        is_ready.recv().expect("the server begins");
        let [held, shown, other] = files;
        let inputs = Cell::new(0);
        Self { socket, held, shown, other, model, inputs, stop, thread, _dir: dir }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|it| it.is_ok()), "the server ends");
    }
}

/// Sends all messages, reads all answers, and checks that another client is served.
fn answered(rig: &Rig, messages: &[(Vec<u8>, With)]) {
    let raw = loop {
        match packet_socket::connect(&rig.socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            connected => break connected.expect("the server listens"),
        }
    };
    let mut has_shown = false;
    for (bytes, with) in messages {
        let file = match with {
            With::Nothing => None,
            With::Held => Some(rig.held.as_fd()),
            With::Shown => Some(rig.shown.as_fd()),
            With::Other => Some(rig.other.as_fd()),
        };
        has_shown |= matches!(with, With::Held | With::Shown);
        // The server may have disconnected by now.
        let sent = packet_socket::send(&raw, bytes, file);
        if sent.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
            break;
        }
        has_shown |= hear(&raw, false, has_shown);
    }
    // An invalid message ends the connection, unless an earlier one did.
    let _ = packet_socket::send(&raw, b"\xff\xffend", None);
    hear(&raw, true, has_shown);
    drop(raw);
    // Trusting only this user avoids reading a file of the machine for each input.
    let trust = Trust::only([longshore_sys::effective_uid()]);
    let mut next = Client::connect_with(Some(&rig.socket), &trust, &CancelToken::new())
        .expect("the next one is served");
    // A list needs another thread of the server.
    let inputs = rig.inputs.get();
    rig.inputs.set(inputs.wrapping_add(1));
    if !inputs.is_multiple_of(LIST_EVERY) {
        return;
    }
    let listing = next.list().expect("the next one is answered");
    assert!(listing.roots.len() == 2);
    assert!(listing.held.iter().any(|held| held.id == 1 && held.is_pinned));
}

/// Receives the server's messages, to the end if `to_the_end`. A model may be given only to a client
/// that has shown its file.
fn hear(raw: &std::os::fd::OwnedFd, to_the_end: bool, has_shown: bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    loop {
        match packet_socket::receive(raw, &mut bytes) {
            Ok(packet) if packet.len_bytes == 0 => return has_shown,
            Ok(packet) => {
                assert!(!packet.is_too_long && !packet.descriptors_lost);
                let reply = Reply::decode(&bytes[..packet.len_bytes]).expect("answers are whole");
                let is_given = matches!(reply, Reply::Attached { .. });
                assert_eq!(packet.descriptors.len(), usize::from(is_given));
                assert!(
                    has_shown || !is_given,
                    "a model was given to a client that has shown no file"
                );
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !to_the_end {
                    return has_shown;
                }
                assert!(Instant::now() < deadline, "the connection does not end");
                let watch = Watch { fd: raw.as_fd(), read: true, write: false };
                readiness::wait(&[watch], Some(deadline)).expect("poll works");
            }
            // The connection was reset because data was left unread. Earlier messages can still be read.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(_) => return has_shown,
        }
    }
}
