//! Servers that send false replies. A client uses no memory of such a server.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use longshore_heap::{Heap, Sealing};
use longshore_load::FormatChoice;
use longshore_load::{CancelToken, Progress};
use longshore_serve::protocol::{MESSAGE_BYTES_MAX, Reply, VERSION};
use longshore_serve::{Attachment, Client, Error, Result, Trust, Wanted};
use longshore_sys::memfd::{self, Backing, Seals};
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Watch};

const LEN_BYTES: u64 = 5000;

fn attach(replies: Vec<(Reply, Option<OwnedFd>)>) -> Result<Attachment> {
    attach_file("model", b"model", replies)
}

fn attach_file(
    name: &str,
    content: &[u8],
    replies: Vec<(Reply, Option<OwnedFd>)>,
) -> Result<Attachment> {
    attach_observed((name, content), replies, &CancelToken::new(), &mut |_| {})
}

/// Attaches a file at a server that answers with `replies`.
fn attach_observed(
    (name, content): (&str, &[u8]),
    replies: Vec<(Reply, Option<OwnedFd>)>,
    cancel: &CancelToken,
    observe: &mut dyn FnMut(Progress),
) -> Result<Attachment> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    let header = br#"{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    let shard = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    std::fs::write(dir.path().join("shard"), shard).unwrap();
    let listener = packet_socket::listen(&socket, 0o600, 4).unwrap();
    let server = thread::spawn(move || {
        let ready = |fd: &OwnedFd| {
            let watch = Watch { fd: fd.as_fd(), read: true, write: false };
            let deadline = Instant::now() + Duration::from_secs(60);
            readiness::wait(&[watch], Some(deadline)).unwrap();
        };
        ready(&listener);
        let client = packet_socket::accept(&listener).unwrap();
        let welcome = Reply::Welcome { version: VERSION, pid: 1 };
        packet_socket::send(&client, &welcome.encode(), None).unwrap();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for _ in 0..2 {
            ready(&client);
            packet_socket::receive(&client, &mut bytes).unwrap();
        }
        for (reply, memory) in replies {
            let memory = memory.as_ref().map(AsFd::as_fd);
            // The client may have disconnected.
            let _ = packet_socket::send(&client, &reply.encode(), memory);
        }
    });
    let client = Client::connect(Some(&socket), cancel).unwrap();
    let attached = client.attach(&Wanted::Path(path), FormatChoice::Auto, observe);
    server.join().unwrap();
    attached
}

fn attached(len_bytes: u64, memory: OwnedFd) -> Vec<(Reply, Option<OwnedFd>)> {
    vec![(Reply::Attached { id: 1, len_bytes, files: 0 }, Some(memory))]
}

fn memory(seals: Seals) -> OwnedFd {
    let memory = memfd::create("lying", Backing::Shmem).unwrap();
    memfd::set_len(&memory, LEN_BYTES).unwrap();
    memfd::add_seals(&memory, seals).unwrap();
    memory
}

fn read_only(memory: &OwnedFd) -> OwnedFd {
    longshore_sys::file::reopen_read_only(memory).unwrap()
}

fn untrusted(replies: Vec<(Reply, Option<OwnedFd>)>) -> String {
    match attach(replies) {
        Err(Error::Untrustworthy { fault }) => fault.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sealed_memory_is_accepted() {
    let mut buffer = Heap::Memfd.allocate(LEN_BYTES).unwrap();
    buffer.write().unwrap().fill(7);
    let shared = buffer.share(Sealing::Content).unwrap();
    let fd = shared.memfd().unwrap().try_clone_to_owned().unwrap();
    let attachment = attach(attached(LEN_BYTES, fd)).unwrap();
    assert!(attachment.as_slice() == [7; LEN_BYTES as usize]);
}

#[test]
fn memory_that_can_change_is_refused() {
    let all = Seals { shrink: true, grow: true, write: true, seal: false };
    for seals in [
        Seals::default(),
        Seals { write: false, ..all },
        Seals { shrink: false, ..all },
        Seals { grow: false, ..all },
    ] {
        let what = untrusted(attached(LEN_BYTES, read_only(&memory(seals))));
        assert!(what.contains("not sealed"), "{what}");
    }
    let what = untrusted(attached(LEN_BYTES, memory(all)));
    assert!(what.contains("can write"), "{what}");
}

#[test]
fn memory_of_another_length_or_kind_is_refused() {
    let all = Seals { shrink: true, grow: true, write: true, seal: true };
    for len_bytes in [0, LEN_BYTES - 1, LEN_BYTES + 1, u64::MAX] {
        let what = untrusted(attached(len_bytes, read_only(&memory(all))));
        assert!(what.contains("5000 bytes"), "{what}");
    }
    for path in ["/etc/passwd", "/dev/null", "/"] {
        let what = untrusted(attached(LEN_BYTES, File::open(path).unwrap().into()));
        assert!(what.contains("no memfd"), "{path}: {what}");
    }
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    let all = Seals { shrink: true, grow: true, write: true, seal: true };
    let fd = || Some(read_only(&memory(all)));
    let of = |files| Reply::Attached { id: 1, len_bytes: LEN_BYTES, files };
    let path = Path::new("/m").to_owned();
    let outside = Reply::File { buffer_offset: 4096, len_bytes: 905, path };
    untrusted(vec![(of(0), None)]);
    untrusted(vec![(Reply::End, None)]);
    untrusted(vec![(Reply::Released, fd())]);
    untrusted(vec![(of(1), fd()), (outside, None)]);
    untrusted(vec![(of(u32::MAX), fd())]);
    untrusted(vec![(of(1), fd()), (Reply::End, None)]);
    assert!(matches!(attach(vec![(of(1), fd())]), Err(Error::ServerGone)));
    assert!(matches!(attach(vec![]), Err(Error::ServerGone)));
    // Its message is shown without control characters.
    let message = "\x1b[2Jno".to_owned();
    let refusal = Reply::Refused { reason: longshore_serve::Reason::Other, message };
    let Err(refused) = attach(vec![(refusal, None)]) else { panic!("it refuses") };
    assert!(!refused.to_string().contains('\x1b'), "{refused}");
}

#[test]
fn a_client_sends_no_file_that_is_not_part_of_the_model() {
    let path = Path::new("/etc/passwd").to_owned();
    // The model is not an index.
    assert!(attach(vec![(Reply::Prove { path: path.clone() }, None)]).is_err());
    let index = br#"{"weight_map":{"x":"shard"}}"#;
    let replies = vec![(Reply::Prove { path }, None)];
    let asked = attach_file("m.safetensors.index.json", index, replies);
    let Err(Error::Untrustworthy { fault }) = asked else { panic!("{asked:?}") };
    let what = fault.to_string();
    assert!(what.contains("/etc/passwd, which is no part of it"), "{what}");
}

#[test]
fn a_cancelled_client_does_not_wait_for_a_server_that_keeps_sending() {
    let progress = Reply::Progress { done_bytes: 3, total_bytes: 9, elapsed_ms: 0 };
    let replies = (0..100).map(|_| (progress.clone(), None)).collect();
    let cancel = CancelToken::new();
    let mut heard = 0;
    let mut observe = |_| {
        heard += 1;
        cancel.cancel();
    };
    let given_up = attach_observed(("model", b"model"), replies, &cancel, &mut observe);
    let Err(Error::Cancelled { done_bytes: 3, total_bytes: 9 }) = given_up else {
        panic!("{given_up:?}")
    };
    assert_eq!(heard, 1);
}

#[test]
fn a_cancelled_client_does_not_wait_for_a_server_that_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _silent = packet_socket::listen(&socket, 0o600, 4).unwrap();
    let cancel = CancelToken::new();
    let canceller = cancel.clone();
    let giving_up = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        canceller.cancel();
    });
    let connected = Client::connect(Some(&socket), &cancel);
    assert!(matches!(connected, Err(Error::Cancelled { .. })), "{connected:?}");
    giving_up.join().unwrap();
}

#[test]
fn nothing_is_sent_to_a_server_of_a_user_that_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = packet_socket::listen(&socket, 0o600, 4).unwrap();
    let own = rustix::process::geteuid().as_raw();
    let trust = Trust::only([own + 1]);
    let refused = Client::connect_with(Some(&socket), &trust, &CancelToken::new()).unwrap_err();
    let Error::UntrustedServer { uid, .. } = refused else { panic!("{refused}") };
    assert_eq!(uid, own);
    let words = refused.to_string();
    for word in [&format!("user {own} runs"), "--trust-uid", &*socket.to_string_lossy()] {
        assert!(words.contains(word), "'{word}' in: {words}");
    }
    let accepted = packet_socket::accept(&listener).unwrap();
    let packet = packet_socket::receive(&accepted, &mut [0; MESSAGE_BYTES_MAX]).unwrap();
    assert_eq!(
        (packet.len_bytes, packet.descriptors.len()),
        (0, 0),
        "the client has only closed its end"
    );
}
