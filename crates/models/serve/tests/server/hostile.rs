//! Hostile clients. They get no file that they may not read, and do not disturb other clients.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::time::Instant;

use longshore_serve::protocol::{MESSAGE_BYTES_MAX, Reply, Request, Target, VERSION};
use longshore_serve::{Event, Options, Reason};
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Watch};

use crate::rig::{PATIENCE, Raw, Rig, content};

/// Checks that another client is served.
fn serves(rig: &Rig) {
    let path = rig.file("served", b"served");
    let attachment = rig.attach_path(&path).unwrap();
    assert_eq!(attachment.as_slice(), b"served");
    attachment.release().unwrap();
}

#[test]
fn paths_outside_a_root_are_refused_alike_if_a_file_exists_or_not() {
    let rig = Rig::new(Options::default());
    let root = rig.dir.path().canonicalize().unwrap().join("root");
    let secret = rig.dir.path().canonicalize().unwrap().join("secret");
    fs::write(&secret, b"secret").unwrap();
    fs::create_dir(root.join("sub")).unwrap();
    symlink("../secret", root.join("out")).unwrap();
    symlink(&secret, root.join("absolute")).unwrap();
    symlink("..", root.join("up")).unwrap();
    rig.file("model.bin", b"model");
    let client = rig.raw().greeted();
    let mut messages = Vec::new();
    for name in [
        "../secret",
        "sub/../../secret",
        "out",
        "absolute",
        "up/secret",
        "../absent",
        "absent",
        "sub/../absent",
        "/etc/passwd",
        "/etc/absent",
    ] {
        let path = root.join(name);
        // The file itself if it exists, because the client may read it.
        let file = File::open(&path).or_else(|_| File::open(&secret)).unwrap();
        client.attach(&path, file);
        let (reason, message) = client.receive_refusal();
        assert_eq!(reason, Reason::NotServed, "{name}");
        messages.push(message.replace(&*path.to_string_lossy(), ""));
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "the messages differ: {messages:?}");
    serves(&rig);
}

#[test]
fn only_a_descriptor_that_can_read_the_file_gives_access() {
    let rig = Rig::new(Options::default());
    let root = rig.dir.path().canonicalize().unwrap().join("root");
    rig.file("model.bin", b"model");
    rig.file("other.bin", b"other");
    let path = root.join("model.bin");
    let open = |name: &str, flags: i32| {
        OpenOptions::new().read(true).custom_flags(flags).open(root.join(name)).unwrap()
    };
    let write_only = OpenOptions::new().write(true).open(&path).unwrap();
    let client = rig.raw().greeted();
    let pipe = std::io::pipe().unwrap().0;
    let shown: [(&str, OwnedFd); 6] = [
        ("another file", open("other.bin", 0).into()),
        ("a file that was opened with O_PATH", open("model.bin", libc::O_PATH).into()),
        ("a file that can only be written", write_only.into()),
        ("a directory", open(".", libc::O_DIRECTORY).into()),
        ("a pipe", pipe.into()),
        ("a socket", packet_socket::pair().unwrap().0),
    ];
    for (what, file) in shown {
        client.attach(&path, file);
        assert_eq!(client.receive_refusal().0, Reason::NotServed, "{what}");
    }
    // The message is the same as for a file that does not exist.
    let of = |name: &str| {
        client.attach(&root.join(name), open("other.bin", 0));
        client.receive_refusal().1.replace(name, "")
    };
    assert_eq!(of("model.bin"), of("absent.bin"));
    // Also if the format needs the content of the file.
    for (name, format, align_bytes) in
        [("model.bin", "raw", 64), ("model.bin", "safetensors", 0), ("model.bin", "gguf", 4096)]
    {
        let of = |name: &str| {
            let target = Target::Path(root.join(name));
            let request = Request::Attach { target, format: format.to_owned(), align_bytes };
            client.send(&request, Some(open("other.bin", 0).as_fd()));
            client.receive_refusal().1.replace(name, "")
        };
        assert_eq!(of(name), of("absent.bin"), "{format}, {align_bytes}");
    }
    client.attach(&path, open("model.bin", 0));
    let (reply, memory) = client.receive_result().unwrap();
    assert!(matches!(reply, Reply::Attached { len_bytes: 5, files: 1, .. }) && memory.is_some());
}

#[test]
fn each_shard_must_be_shown() {
    let rig = Rig::new(Options::default());
    let root = rig.dir.path().canonicalize().unwrap().join("root");
    let shard = |name: &str| {
        let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    };
    rig.file("a", &shard("x"));
    rig.file("b", &shard("y"));
    rig.file("m.safetensors.index.json", br#"{"weight_map":{"x":"a","y":"b"}}"#);
    let index = root.join("m.safetensors.index.json");
    let client = rig.raw().greeted();
    client.attach(&index, File::open(&index).unwrap());
    for name in ["a", "b"] {
        assert_eq!(client.receive(), Some(Reply::Prove { path: root.join(name) }));
    }
    let a = File::open(root.join("a")).unwrap();
    client.send(&Request::Proof, Some(a.as_fd()));
    client.send(&Request::Proof, Some(a.as_fd()));
    let (reason, message) = client.receive_refusal();
    assert_eq!(reason, Reason::NotServed);
    assert!(message.contains("/b is not served"), "{message}");
    // Again, with a proof for each shard.
    client.attach(&index, File::open(&index).unwrap());
    for name in ["a", "b"] {
        assert!(matches!(client.receive(), Some(Reply::Prove { .. })));
        client.send(&Request::Proof, Some(File::open(root.join(name)).unwrap().as_fd()));
    }
    assert!(matches!(client.receive_result(), Some((Reply::Attached { files: 2, .. }, Some(_)))));
}

#[test]
fn a_malformed_message_ends_only_its_connection() {
    let rig = Rig::new(Options::default());
    let root = rig.dir.path().canonicalize().unwrap().join("root");
    let path = root.join("served");
    rig.file("served", b"served");
    let hello = Request::Hello { version: VERSION }.encode();
    let attach = Request::Attach {
        target: Target::Path(path.clone()),
        format: "auto".into(),
        align_bytes: 0,
    }
    .encode();
    let long = vec![0x41; MESSAGE_BYTES_MAX + 1];
    let file = || File::open(&path).unwrap();
    type Message<'a> = (&'a [u8], bool);
    let cases: [(&[Message<'_>], &str); 10] = [
        (&[(b"garbage that is no message", false)], "malformed"),
        (&[(b"\x01", false)], "ends too early"),
        (&[(&hello[..7], false)], "ends too early"),
        (&[(&long, false)], "more than 8192 bytes"),
        (&[(&attach, true)], "out of turn"),
        (&[(&hello, true)], "descriptors"),
        (&[(&hello, false), (&hello, false)], "out of turn"),
        (&[(&hello, false), (&attach, false)], "descriptors"),
        (&[(&hello, false), (b"\x03\x00", true)], "out of turn"),
        (&[(&hello, false), (b"\x04\x00", false)], "out of turn"),
    ];
    for (messages, why) in cases {
        let client = rig.raw();
        let file = file();
        for (bytes, with_file) in messages {
            let with = with_file.then_some(file.as_fd());
            packet_socket::send(&client.0, bytes, with).unwrap();
        }
        let logged = rig.wait_disconnected();
        assert!(logged.contains(why), "'{why}' in: {logged}");
        loop {
            match client.receive() {
                Some(Reply::Welcome { .. }) => {}
                Some(Reply::Refused { message, .. }) => assert!(message.contains(why), "{message}"),
                None => break,
                other => panic!("{other:?}"),
            }
        }
        serves(&rig);
    }
    let client = rig.raw();
    client.send(&Request::Hello { version: VERSION + 1 }, None);
    let (reason, message) = client.receive_refusal();
    assert_eq!(reason, Reason::Version);
    assert!(message.contains("version 2"), "{message}");
}

#[test]
fn an_unknown_format_is_refused() {
    let rig = Rig::new(Options::default());
    let path = rig.file("model.bin", b"model").canonicalize().unwrap();
    let client = rig.raw().greeted();
    let request = Request::Attach {
        target: Target::Path(path.clone()),
        format: "exe".into(),
        align_bytes: 0,
    };
    client.send(&request, Some(File::open(&path).unwrap().as_fd()));
    assert_eq!(client.receive_refusal().0, Reason::Unreadable);
}

#[test]
fn many_descriptors_are_closed() {
    let rig = Rig::new(Options::default());
    let (readers, writers): (Vec<_>, Vec<_>) = (0..40).map(|_| std::io::pipe().unwrap()).unzip();
    let borrowed: Vec<_> = writers.iter().map(AsFd::as_fd).collect();
    for _ in 0..8 {
        let client = rig.raw();
        send_all(&client, &borrowed);
        let logged = rig.wait_disconnected();
        assert!(logged.contains("too many descriptors"), "{logged}");
    }
    drop(writers);
    for reader in readers {
        let watch = Watch { fd: reader.as_fd(), read: true, write: false };
        let ready = readiness::wait(&[watch], Some(Instant::now() + PATIENCE)).unwrap();
        assert!(ready[0].gone, "the server has closed all writers");
    }
    serves(&rig);
}

#[test]
fn clients_that_do_not_read_or_send_nothing_are_disconnected() {
    let rig = Rig::new(Options::default());
    let silent = rig.raw();
    let unread = rig.raw().greeted();
    // Requests lists, which it does not read, until the socket is full.
    while packet_socket::send(&unread.0, &Request::List.encode(), None).is_ok() {}
    serves(&rig);
    let mut reasons = [rig.wait_disconnected(), rig.wait_disconnected()];
    reasons.sort_unstable();
    assert!(reasons[0].contains("does not read"), "{reasons:?}");
    assert!(reasons[1].contains("said hello"), "{reasons:?}");
    drop((silent, unread));
    serves(&rig);
}

#[test]
fn a_flood_of_connections_leaves_nothing() {
    let rig = Rig::new(Options::new().clients_max(64));
    let model = content(3_000_000, 9);
    let path = rig.file("model.bin", &model);
    let attachment = rig.attach_path(&path).unwrap();
    for round in 0..300 {
        let client = rig.raw();
        match round % 3 {
            0 => drop(client),
            1 => {
                let _ = packet_socket::send(&client.0, b"x", None);
            }
            _ => {
                let hello = Request::Hello { version: VERSION }.encode();
                let _ = packet_socket::send(&client.0, &hello, None);
                let _ = packet_socket::send(&client.0, &Request::List.encode(), None);
            }
        }
    }
    serves(&rig);
    // The server accepts as many clients as before, once it has noticed that the others are gone.
    let mut clients = Vec::new();
    while clients.len() < 63 {
        clients.extend(greeted(&rig));
    }
    assert!(greeted(&rig).is_none());
    assert!(attachment.as_slice() == model);
    assert!(!rig.events().iter().any(|event| matches!(event, Event::Trouble { .. })));
}

fn send_all(client: &Raw, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let bytes = [std::io::IoSlice::new(b"many")];
    rustix::net::sendmsg(&client.0, &bytes, &mut control, SendFlags::empty()).unwrap();
}

/// Returns a client, or `None` if the server has reached its limit of clients.
fn greeted(rig: &Rig) -> Option<Raw> {
    let client = rig.raw();
    let hello = Request::Hello { version: VERSION }.encode();
    // The server may have refused the connection already.
    let _ = packet_socket::send(&client.0, &hello, None);
    match client.receive() {
        Some(Reply::Welcome { .. }) => Some(client),
        Some(Reply::Refused { reason: Reason::TooMany, .. }) => None,
        other => panic!("{other:?}"),
    }
}
