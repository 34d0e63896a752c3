//! Files of the Hub whose storage refuses ranges.

mod server;
mod xet_server;

use std::error::Error as _;
use std::time::{Duration, Instant};

use longshore_load::{CancelToken, DigestKind, Error, Loader, Manifest, PlannedFile, Progress};
use longshore_remote::Remote;
use longshore_remote::xet::{CHUNK_HEADER_BYTES, ChunkDecoder, ChunkHeader, Compression};
use proptest::prelude::*;
use server::Answer;
use xet_server::{Behaviour, HASH, Rig, response, status};

/// A safetensors file whose chunks compress well and badly, some of them twice.
fn model(len: usize) -> Vec<u8> {
    let header =
        format!(r#"{{"weight":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    let mut random = 1u32;
    file.extend((0..len as u32).map(|at| {
        random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        if (at >> 16).is_multiple_of(3) { (random >> 24) as u8 } else { (at / 7) as u8 }
    }));
    // The first chunks again.
    let first = file[..512_000.min(file.len())].to_vec();
    let end = file.len();
    file[end - first.len().min(end / 2)..].copy_from_slice(&first[..first.len().min(end / 2)]);
    let header_len = 8 + header.len();
    file.truncate(header_len + len);
    file
}

const LEN: usize = 2_000_000;

fn refusing() -> Behaviour {
    Behaviour::default()
}

/// Returns all texts of an error.
fn texts(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    assert!(!text.contains("secret"), "{text}");
    text
}

fn load(rig: &Rig, remote: &Remote) -> Result<Vec<u8>, Error> {
    let opened = rig.open(remote)?;
    let loaded = Loader::new().load(&opened.plan)?;
    Ok(loaded.buffer.read().unwrap().to_vec())
}

#[test]
fn a_file_whose_storage_refuses_ranges_is_read_in_chunks() {
    // Longer than one description.
    let content = model(18_000_000);
    for (old, refused) in [("", 400), ("404 Not Found", 403), ("501 Not Implemented", 403)] {
        let plan = move |_: usize, request: &server::Request| {
            (!old.is_empty() && request.target.contains("/v2/")).then(|| status(old))
        };
        let behaviour =
            Behaviour { storage: Box::new(move |_| refused), plan: Box::new(plan), ..refusing() };
        let rig = Rig::start(content.clone(), behaviour);
        let remote = rig.remote();
        assert!(load(&rig, &remote).unwrap() == content);
        // It was signed again once, and opened once to find its format and once to load it.
        assert_eq!(rig.storage.count() % 2, 0);
        let [note] = &remote.notes()[..] else { panic!("{:?}", remote.notes()) };
        assert!(note.contains("chunks of Xet storage") && !note.contains("secret"), "{note}");
        let versions = [rig.plans.requests.lock().unwrap()]
            .map(|requests| requests.iter().filter(|it| it.target.contains("/v2/")).count());
        assert!(old.is_empty() || versions[0] <= rig.plans.count() / 2);
    }
}

#[test]
fn the_checksum_is_that_of_the_hub() {
    let content = model(100_000);
    let rig = Rig::start(content.clone(), Behaviour { storage: Box::new(|_| 206), ..refusing() });
    let opened = rig.open(&rig.remote()).unwrap();
    let loaded = Loader::new().digest(DigestKind::Sha256).load(&opened.plan).unwrap();
    let sum = loaded.files[0].digests[0].1.clone();
    assert_eq!(rig.plans.count(), 0);
    for (sum, is_right) in [(sum.clone(), true), ("0".repeat(64), false)] {
        let fields = format!("X-Linked-Etag: \"{sum}\"\r\n");
        let rig = Rig::start(content.clone(), Behaviour { fields, ..refusing() });
        let opened = rig.open(&rig.remote()).unwrap();
        let manifest =
            Manifest::of_hub(opened.plan.files().iter().map(PlannedFile::source)).unwrap();
        let loaded = Loader::new().manifest(&manifest).load(&opened.plan);
        assert_eq!(loaded.is_ok(), is_right);
    }
}

#[test]
fn a_request_is_signed_again_first() {
    let content = model(LEN);
    // The first request, and one within the load.
    for refused in [0, 1] {
        let storage = move |number: usize| if number == refused { 403 } else { 206 };
        let rig =
            Rig::start(content.clone(), Behaviour { storage: Box::new(storage), ..refusing() });
        let remote = rig.remote();
        assert!(load(&rig, &remote).unwrap() == content);
        assert_eq!((rig.tokens(), rig.plans.count(), remote.notes().len()), (0, 0, 0));
        assert!(rig.storage.count() > refused + 1);
    }
}

#[test]
fn ranges_that_are_refused_within_a_load_are_read_in_chunks() {
    let content = model(20_000_000);
    let rig = Rig::start(
        content.clone(),
        Behaviour { storage: Box::new(|number| if number < 3 { 206 } else { 400 }), ..refusing() },
    );
    let remote = rig.remote();
    assert!(load(&rig, &remote).unwrap() == content);
    assert_eq!((rig.tokens(), remote.notes().len()), (1, 1));
    assert!(rig.plans.count() >= 1 && rig.xorbs.count() >= rig.plans.count());
}

#[test]
fn a_refusal_of_the_hub_itself_is_final() {
    let fields = format!("X-Xet-Hash: {HASH}\r\nX-Linked-Size: 100\r\n");
    let hub = move |_: usize, _: &server::Request| {
        Some(Answer::RawBytes(response("403 Forbidden", &fields, b"")))
    };
    let rig = Rig::start(model(100), Behaviour { hub: Box::new(hub), ..refusing() });
    let text = texts(&rig.open(&rig.remote()).unwrap_err());
    assert!(text.contains("ask for access at") && rig.hub.count() == 1, "{text}");
    // A file that is not in Xet storage, and one whose hash is a path.
    for hash in ["", "X-Xet-Hash: ../../x\r\n"] {
        let storage = server::Server::start(Vec::new(), |_, _| status("403 Forbidden"));
        let fields = format!("Location: {}\r\n{hash}", storage.url);
        let hub = move |_: usize, _: &server::Request| {
            Some(Answer::RawBytes(response("302 Found", &fields, b"")))
        };
        let rig = Rig::start(model(100), Behaviour { hub: Box::new(hub), ..refusing() });
        let text = texts(&rig.open(&rig.remote()).unwrap_err());
        assert!(text.contains("ask for access at") && rig.tokens() == 0, "{text}");
    }
}

#[test]
fn urls_that_have_expired_are_requested_again() {
    let content = model(LEN);
    let refuse_before = |first: usize| {
        move |_: usize, request: &server::Request, right: Vec<u8>| {
            let (_, number) = request.target.split_once("=secret-").unwrap();
            match number.parse::<usize>().unwrap() < first {
                // In the middle of a range of the file.
                true if !request.target.contains("/xorbs/0") => status("403 Forbidden"),
                _ => Answer::RawBytes(right),
            }
        }
    };
    let rig =
        Rig::start(content.clone(), Behaviour { xorb: Box::new(refuse_before(4)), ..refusing() });
    assert!(load(&rig, &rig.remote()).unwrap() == content);
    let rig =
        Rig::start(content, Behaviour { xorb: Box::new(refuse_before(usize::MAX)), ..refusing() });
    let text = texts(&load(&rig, &rig.remote()).unwrap_err());
    assert!(text.contains("refuses ranges of the file (status 403)"), "{text}");
}

#[test]
fn progress_includes_the_chunks_at_their_place() {
    let content = model(LEN);
    // One range of a xorb breaks off, and is repeated. The last one does not end.
    let xorb = |number: usize, _: &server::Request, right: Vec<u8>| match number {
        0 | 1 => Answer::RawBytes(right),
        2 => Answer::RawAndClose(right[..right.len() / 2].to_vec()),
        _ => Answer::RawAndStall(right[..right.len() / 2].to_vec()),
    };
    let rig = Rig::start(content.clone(), Behaviour { xorb: Box::new(xorb), ..refusing() });
    let opened = rig.open(&rig.remote()).unwrap();
    let (cancel, began, mut seen) = (CancelToken::new(), Instant::now(), Vec::new());
    let observe = |progress: Progress| {
        seen.push(progress.done_bytes);
        if rig.xorbs.count() > 3 && began.elapsed() > Duration::from_secs(2) {
            cancel.cancel();
        }
    };
    let failed = Loader::new().cancel(&cancel).observe(observe).load(&opened.plan).unwrap_err();
    assert!(matches!(failed, Error::Cancelled { done_bytes: 0, .. }), "{failed}");
    let last = seen.last().copied().unwrap_or_default();
    assert!(seen.is_sorted() && last > 100_000 && last < content.len() as u64, "{seen:?}");
}

#[test]
fn tokens_are_renewed_before_they_expire_and_when_they_are_refused() {
    let content = model(LEN);
    for token_s in [20, -100] {
        let rig = Rig::start(content.clone(), Behaviour { token_s, ..refusing() });
        assert!(load(&rig, &rig.remote()).unwrap() == content);
        assert_eq!(rig.tokens(), rig.plans.count());
    }
    let refused = |number: usize, _: &server::Request| {
        number.is_multiple_of(2).then(|| status("401 Unauthorized"))
    };
    let rig = Rig::start(content.clone(), Behaviour { plan: Box::new(refused), ..refusing() });
    assert!(load(&rig, &rig.remote()).unwrap() == content);
    assert!(rig.tokens() >= 2);
    let refused = |_: usize, _: &server::Request| Some(status("401 Unauthorized"));
    let rig = Rig::start(content, Behaviour { plan: Box::new(refused), ..refusing() });
    texts(&load(&rig, &rig.remote()).unwrap_err());
    assert_eq!((rig.tokens(), rig.plans.count()), (2, 2));
}

#[test]
fn a_token_is_not_sent_to_another_server() {
    let other = server::Server::start(Vec::new(), |_, _| status("404 Not Found"));
    let to = format!("Location: {}\r\n", other.url);
    let plan = move |_: usize, _: &server::Request| {
        Some(Answer::RawBytes(response("307 Temporary Redirect", &to, b"")))
    };
    let rig = Rig::start(model(LEN), Behaviour { plan: Box::new(plan), ..refusing() });
    texts(&load(&rig, &rig.remote()).unwrap_err());
    let requests = other.requests.lock().unwrap();
    assert!(!requests.is_empty());
    assert!(requests.iter().all(|it| !it.fields.contains_key("authorization")));
}

#[test]
fn transfers_that_break_off_are_repeated() {
    let content = model(LEN);
    let cut = |number: usize, _: &server::Request, mut right: Vec<u8>| match number % 3 {
        0 => {
            right.truncate(right.len() / 2);
            Answer::RawAndClose(right)
        }
        1 => status("503 Slow Down"),
        _ => Answer::RawBytes(right),
    };
    let plan = |number: usize, _: &server::Request| {
        (number == 0).then(|| status("500 Internal Server Error"))
    };
    let rig = Rig::start(
        content.clone(),
        Behaviour { xorb: Box::new(cut), plan: Box::new(plan), ..refusing() },
    );
    assert!(load(&rig, &rig.remote()).unwrap() == content);
}

/// Changes a byte of the body of a response.
fn changed(mut right: Vec<u8>, at: usize, change: impl Fn(u8) -> u8) -> Answer {
    let body = right.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
    right[body + at] = change(right[body + at]);
    Answer::RawBytes(right)
}

#[test]
fn xorbs_that_are_not_valid_are_refused() {
    type Xorb = fn(usize, &server::Request, Vec<u8>) -> Answer;
    let cases: [(Xorb, &str); 9] = [
        (|_, _, right| changed(right, 0, |_| 1), "unknown version"),
        (|_, _, right| changed(right, 4, |_| 7), "unknown compression"),
        // The first chunk is stored as it is.
        (|_, _, right| changed(right, 4, |_| 1), "no frame of LZ4"),
        (|_, _, right| changed(right, 1, |it| it ^ 1), "lengths in the header"),
        (|_, _, right| changed(right, 7, |_| 0xff), "lengths in the header"),
        (
            |_, _, right| {
                // A shorter chunk, after which there is none.
                let body = right.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
                let mut right = right;
                right[body + 1..body + 4].copy_from_slice(&[0xff, 0xff, 1]);
                right[body + 5..body + 8].copy_from_slice(&[0xff, 0xff, 1]);
                Answer::RawBytes(right)
            },
            "is not valid",
        ),
        (|_, _, _| Answer::RawBytes(response("200 OK", "", b"xorb")), "whole xorb"),
        (
            |_, _, _| {
                let range = "Content-Range: bytes 1-4/9\r\n";
                Answer::RawBytes(response("206 Partial Content", range, b"xorb"))
            },
            "another range",
        ),
        (|_, _, _| status("404 Not Found"), "refuses ranges"),
    ];
    for (xorb, words) in cases {
        let rig = Rig::start(model(200_000), Behaviour { xorb: Box::new(xorb), ..refusing() });
        let text = texts(&load(&rig, &rig.remote()).unwrap_err());
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn descriptions_that_are_not_valid_are_refused() {
    type Description = fn(String) -> String;
    let cases: [(Description, &str); 6] = [
        (|text| text.replace("\"unpacked_length\":131072", "\"unpacked_length\":131071"), "longer"),
        (|text| text.replace("\"unpacked_length\":131072", "\"unpacked_length\":131073"), "length"),
        (|text| text.replace("http:", "ftp:"), "URL"),
        (|text| text.replace("\"terms\":[{", "\"terms\":[7,{"), "description is not valid"),
        (|_| "{\"offset_into_first_range\":0,\"terms\":[]}".to_owned(), "another range"),
        (|text| format!("{text}{}", " ".repeat(9 << 20)), "too long"),
    ];
    for (description, words) in cases {
        let rig = Rig::start(
            // One chunk.
            model(131_072 - 66),
            Behaviour { description: Box::new(description), ..refusing() },
        );
        let text = texts(&load(&rig, &rig.remote()).unwrap_err());
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_server_that_stalls_ends_by_the_time_limit() {
    let stalls: [Behaviour; 2] = [
        Behaviour {
            plan: Box::new(|_, _| Some(Answer::RawAndStall(b"HTTP/1.1 200 OK\r\n".to_vec()))),
            ..refusing()
        },
        Behaviour {
            xorb: Box::new(|_, _, mut right| {
                right.truncate(right.len() - 1);
                Answer::RawAndStall(right)
            }),
            ..refusing()
        },
    ];
    for behaviour in stalls {
        let rig = Rig::start(model(100_000), behaviour);
        let began = Instant::now();
        let remote = rig.remote().time_limit(Duration::from_secs(1));
        let text = texts(&load(&rig, &remote).unwrap_err());
        assert!(text.contains("time limit"), "{text}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}

#[test]
fn a_load_in_chunks_can_be_cancelled() {
    // The first bytes arrive.
    let xorb = |number: usize, _: &server::Request, mut right: Vec<u8>| match number {
        0 => Answer::RawBytes(right),
        _ => {
            right.truncate(right.len() / 2);
            Answer::RawAndStall(right)
        }
    };
    let rig = Rig::start(model(LEN), Behaviour { xorb: Box::new(xorb), ..refusing() });
    let opened = rig.open(&rig.remote()).unwrap();
    let token = CancelToken::new();
    let began = Instant::now();
    let failed = std::thread::scope(|scope| {
        let load = scope.spawn(|| Loader::new().cancel(&token).load(&opened.plan).unwrap_err());
        std::thread::sleep(Duration::from_millis(300));
        token.cancel();
        load.join().unwrap()
    });
    assert!(matches!(failed, Error::Cancelled { .. }), "{failed}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_file_that_is_another_one_in_xet_storage_has_changed() {
    let other = HASH.replace('1', "2");
    let hub = move |number: usize, request: &server::Request| {
        let is_other = number > 0 && request.target.contains("/resolve/");
        // The storage is not reached again by this address.
        let fields = format!("Location: http://127.0.0.1:9/\r\nX-Xet-Hash: {other}\r\n");
        is_other.then(|| Answer::RawBytes(response("302 Found", &fields, b"")))
    };
    let storage = server::Server::start(Vec::new(), |_, _| status("403 Forbidden"));
    let to = storage.url.clone();
    let hub = move |number: usize, request: &server::Request| match hub(number, request) {
        Some(Answer::RawBytes(bytes)) => {
            let text = String::from_utf8(bytes).unwrap();
            Some(Answer::Raw(text.replace("http://127.0.0.1:9/", to.as_str())))
        }
        answer => answer,
    };
    let rig = Rig::start(
        model(LEN),
        Behaviour {
            hub: Box::new(hub),
            storage: Box::new(|number| if number == 0 { 206 } else { 403 }),
            ..refusing()
        },
    );
    let file = rig.open_file(&rig.remote()).unwrap();
    let failed = file.read_range(1_000_000, &mut [0; 100]).unwrap_err();
    assert!(matches!(failed, Error::Changed { .. }), "{failed}");
}

#[test]
fn any_range_is_read() {
    let content = model(LEN);
    let rig = Rig::start(content.clone(), refusing());
    let file = rig.open_file(&rig.remote()).unwrap();
    let read = |start: usize, end: usize| {
        let mut bytes = vec![0xee; end - start];
        file.read_range(start as u64, &mut bytes).unwrap();
        bytes
    };
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() };
    proptest!(config, |(start in 0..LEN, len in prop_oneof![1usize..300, 1..LEN])| {
        let end = (start + len).min(content.len());
        prop_assert!(read(start, end) == content[start..end]);
    });
    assert!(read(content.len() - 1, content.len()) == content[content.len() - 1..]);
}

/// The xorb that the package hf-xet 1.8.0 of PyPI sent to a server on loopback (`hf_xet.upload_bytes`) for the
/// three files of the test below.
const OFFICIAL: &[u8] = include_bytes!("data/hf-xet-1.8.0.xorb");

#[test]
fn a_xorb_of_the_reference_implementation_is_decoded() {
    let numbers = || {
        let mut number = 1u32;
        std::iter::repeat_with(move || {
            number = number.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            number
        })
    };
    let mut expected: Vec<u8> = numbers().map(|it| (it >> 24) as u8).take(301).collect();
    for number in numbers().take(1001) {
        let float = 1.0 + (number >> 12) as f32 / (1 << 22) as f32;
        expected.extend(float.to_le_bytes());
    }
    expected.extend(b"abc");
    for number in 0..2000 {
        expected.extend(format!("line {number} of a text that repeats\n").bytes());
    }
    let (mut rest, mut content, mut decoder) = (OFFICIAL, Vec::new(), ChunkDecoder::new());
    let mut forms = Vec::new();
    while let Some((header, data)) = rest.split_first_chunk::<CHUNK_HEADER_BYTES>() {
        let header = ChunkHeader::parse(*header).unwrap();
        let (data, after) = data.split_at(header.data_len_bytes);
        content.extend_from_slice(decoder.decode(&header, data).unwrap());
        forms.push(header.compression);
        rest = after;
    }
    use Compression::{ByteGroupingLz4, Lz4, None};
    assert_eq!(forms, [None, ByteGroupingLz4, Lz4, Lz4]);
    assert!(content == expected);
}
