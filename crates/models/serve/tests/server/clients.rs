//! Clients that follow the protocol.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use longshore_formats::safetensors::Header;
use longshore_load::CancelToken;
use longshore_load::FormatChoice;
use longshore_mem::Granule;
use longshore_serve::{
    Attachment, Client, Error, Event, HeldState, Keep, NoServerCause, Options, Reason, Wanted,
};

use crate::rig::{PATIENCE, Rig, content, refused};

#[test]
fn many_clients_cause_one_load_and_the_last_one_frees_the_memory() {
    let rig = Rig::new(Options::default());
    let expected = content(20_000_001, 1);
    let path = rig.file("model.bin", &expected);
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for number in 0..8 {
            let (rig, path, expected, barrier) = (&rig, &path, &expected, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let attachment = rig.attach_path(path).unwrap();
                assert!(attachment.as_slice() == expected);
                assert_eq!(attachment.files()[0].path, path.canonicalize().unwrap());
                assert_eq!(attachment.id(), 1);
                barrier.wait();
                // Half of the clients release, and the others only disconnect.
                if number % 2 == 0 { attachment.release().unwrap() } else { drop(attachment) }
            });
        }
    });
    let mut counts = (0, 0, 0);
    rig.wait(|event| {
        match event {
            Event::Loaded { .. } => counts.0 += 1,
            Event::Attached { .. } => counts.1 += 1,
            Event::Released { .. } => counts.2 += 1,
            Event::Freed { .. } => return Some(()),
            _ => {}
        }
        None
    });
    assert_eq!(counts, (1, 8, 8), "loads, attachments, releases");
    assert!(rig.list().held.is_empty());
}

#[test]
fn clients_do_not_move_each_others_file_position() {
    let rig = Rig::new(Options::default());
    let path = rig.file("model.bin", b"weights");
    let attachments = [rig.attach_path(&path).unwrap(), rig.attach_path(&path).unwrap()];
    for attachment in &attachments {
        let mut read = [0; 7];
        assert_eq!(rustix::io::read(attachment.memfd(), &mut read), Ok(7));
        assert_eq!(&read, b"weights");
    }
}

#[test]
fn a_model_is_found_by_path_name_and_number() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    let path = rig.file("model.bin", b"weights");
    for wanted in [
        Wanted::Path(path.clone()),
        Wanted::Word(path.into_os_string()),
        Wanted::Word("model.bin".into()),
        Wanted::Word("1".into()),
        Wanted::Id(1),
    ] {
        let attachment = rig.attach(&wanted).unwrap();
        assert_eq!((attachment.id(), attachment.as_slice()), (1, &b"weights"[..]), "{wanted:?}");
    }
    for wanted in [Wanted::Id(2), Wanted::Word("2".into()), Wanted::Word("other.bin".into())] {
        let missing = rig.attach(&wanted).unwrap_err();
        assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
    }
    let listing = rig.list();
    let held = &listing.held[0];
    assert_eq!((held.len_bytes, held.state, held.is_stale), (7, HeldState::Ready, false));
    assert_eq!(listing.roots.len(), 1);
}

#[test]
fn the_end_of_several_paths_is_refused() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    for folder in ["a", "b"] {
        fs::create_dir(rig.path(folder)).unwrap();
        rig.attach_path(&rig.file(&format!("{folder}/model.bin"), folder.as_bytes())).unwrap();
    }
    let refused = rig.attach(&Wanted::Word("model.bin".into())).unwrap_err();
    let Error::Ambiguous { name, paths } = &refused else { panic!("{refused}") };
    assert_eq!(name, "model.bin");
    let held = |end: &str| paths.iter().any(|path| path.ends_with(end));
    assert!(held("a/model.bin") && held("b/model.bin"), "{paths:?}");
    let attachment = rig.attach(&Wanted::Word("a/model.bin".into())).unwrap();
    assert_eq!(attachment.as_slice(), b"a");
    // A file that is held in two versions has one path.
    rig.file("a/model.bin", b"anew");
    rig.attach(&Wanted::Word("a/model.bin".into())).unwrap();
    assert_eq!(rig.attach(&Wanted::Word("a/model.bin".into())).unwrap().as_slice(), b"anew");
}

#[test]
fn a_changed_file_is_loaded_again_and_the_old_model_stays_with_its_clients() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    let path = rig.file("model.bin", b"old content");
    let old = rig.attach_path(&path).unwrap();
    rig.file("model.bin", b"new");
    let listing = rig.list();
    assert!(listing.held[0].is_stale);
    let by_number = rig.attach(&Wanted::Id(old.id())).unwrap_err().to_string();
    assert!(by_number.contains("have changed since it was loaded"), "{by_number}");
    let new = rig.attach_path(&path).unwrap();
    assert_eq!((old.as_slice(), new.as_slice()), (&b"old content"[..], &b"new"[..]));
    assert_ne!(old.id(), new.id());
    let listing = rig.list();
    let stale: Vec<bool> = listing.held.iter().map(|held| held.is_stale).collect();
    assert_eq!(stale, [true, false]);
    // The version that can still be requested is kept.
    let old_id = old.id();
    old.release().unwrap();
    assert_eq!(rig.wait_freed(), old_id);
}

#[test]
fn a_renamed_file_is_the_same_model() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    let path = rig.file("model.bin", b"weights");
    let renamed = rig.path("renamed.bin");
    let first = rig.attach_path(&path).unwrap();
    let status_changed = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let before = status_changed(&path);
    let deadline = Instant::now() + PATIENCE;
    fs::rename(&path, &renamed).unwrap();
    // The clock of the file system is coarse, so the time moves only after some changes.
    while status_changed(&renamed) == before {
        assert!(Instant::now() < deadline, "the time never changes");
        fs::rename(&renamed, &path).unwrap();
        fs::rename(&path, &renamed).unwrap();
    }
    let second = rig.attach_path(&renamed).unwrap();
    assert_eq!((first.id(), second.id()), (1, 1));
    let held = rig.list().held;
    assert_eq!((held.len(), held[0].is_stale), (1, false));
}

#[test]
fn a_file_that_changes_while_it_is_loaded_is_reported() {
    let rig = Rig::observed(Options::default(), |event, _| {
        if let Event::Loading { path, .. } = event {
            fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"!").unwrap();
        }
    });
    // A load can end before the server reports that it has begun.
    let mut outcomes = (0..100).map(|number| {
        let path = rig.file(&format!("{number}.bin"), &content(64 << 20, 2));
        let outcome = rig.attach_path(&path);
        fs::remove_file(path).unwrap();
        outcome
    });
    let refusal = outcomes.find(Result::is_err).expect("one load takes longer");
    assert_eq!(refused(refusal), Reason::Changed);
    assert!(rig.list().held.is_empty());
}

#[test]
fn no_more_memory_is_taken_than_allowed() {
    let rig = Rig::new(Options::new().memory_max(30_000));
    let first = rig.file("first", &content(20_000, 1));
    let second = rig.file("second", &content(20_000, 2));
    let attachment = rig.attach_path(&first).unwrap();
    let Err(Error::Refused { reason: Reason::NoMemory, message }) = rig.attach_path(&second) else {
        panic!("there is no room");
    };
    assert!(
        message.contains("--memory-max") && message.contains("20.00 kB are in use"),
        "{message}"
    );
    drop(attachment);
    rig.wait_freed();
    assert!(rig.attach_path(&second).unwrap().as_slice() == content(20_000, 2));
    let large = rig.file("large", &content(30_001, 3));
    assert_eq!(refused(rig.attach_path(&large)), Reason::NoMemory);
}

#[test]
fn unused_models_are_freed_for_room_the_least_recently_used_first() {
    let options = Options::new().memory_max(50_000).keep(Keep::Always);
    let rig = Rig::new(options);
    let paths: Vec<_> =
        (0..3).map(|number| rig.file(&number.to_string(), &content(20_000, number))).collect();
    for at in [0, 1, 0] {
        rig.attach_path(&paths[at]).unwrap().release().unwrap();
    }
    rig.attach_path(&paths[2]).unwrap().release().unwrap();
    assert_eq!(rig.wait_freed(), 2);
    let held: Vec<u64> = rig.list().held.iter().map(|held| held.id).collect();
    assert_eq!(held, [1, 3]);
}

#[test]
fn unused_models_are_kept_for_the_idle_time() {
    let keep = Keep::Idle(Duration::from_millis(50));
    let rig = Rig::new(Options::new().keep(keep));
    let path = rig.file("model.bin", b"weights");
    rig.attach_path(&path).unwrap().release().unwrap();
    assert_eq!(rig.wait_freed(), 1, "without a request");
}

#[test]
fn the_attachments_of_a_user_and_the_clients_are_limited() {
    let options = Options::new().attachments_max(2).clients_max(4);
    let rig = Rig::new(options);
    let path = rig.file("model.bin", b"weights");
    let first = rig.attach_path(&path).unwrap();
    let second = rig.attach_path(&path).unwrap();
    assert_eq!(refused(rig.attach_path(&path)), Reason::TooMany);
    first.release().unwrap();
    let third = rig.attach_path(&path).unwrap();
    let others: Vec<_> = (0..2).map(|_| rig.client().unwrap()).collect();
    assert_eq!(refused(rig.client()), Reason::TooMany);
    assert_eq!((second.as_slice(), third.as_slice()), (&b"weights"[..], &b"weights"[..]));
    drop(others);
}

#[test]
fn clients_that_wait_for_a_model_count_as_attached() {
    let rig = Rig::new(Options::new().attachments_max(1));
    let large = rig.path("large.bin");
    fs::File::create(&large).unwrap().set_len(1 << 28).unwrap();
    let small = rig.file("small.bin", b"weights");
    let waiting = rig.raw().greeted();
    waiting.attach(&large, fs::File::open(&large).unwrap());
    rig.wait(|event| matches!(event, Event::Loading { .. }).then_some(()));
    assert_eq!(refused(rig.attach_path(&small)), Reason::TooMany);
    drop(waiting);
    rig.wait_freed_or_given_up();
    rig.attach_path(&small).unwrap().release().unwrap();
}

#[test]
fn a_load_without_waiting_clients_is_given_up() {
    let rig = Rig::new(Options::default());
    // Large enough that progress is reported before the load ends.
    let path = rig.path("large.bin");
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let cancelled = |_: u32| {
        let cancel = CancelToken::new();
        let mut observe = |_| cancel.cancel();
        let client = Client::connect(Some(&rig.socket), &cancel).unwrap();
        let wanted = Wanted::Path(path.clone());
        let attached = client.attach(&wanted, FormatChoice::Auto, &mut observe);
        // A load can end before its client runs again.
        attached.map(|attachment| (drop(attachment), rig.wait_freed())).err()
    };
    let cancelled = (0..100).find_map(cancelled).expect("one load takes longer");
    let Error::Cancelled { total_bytes, .. } = cancelled else { panic!("{cancelled}") };
    assert_eq!(total_bytes, 1 << 30);
    assert_eq!(rig.wait_freed_or_given_up(), "no client waits for it any longer");
    assert!(rig.list().held.is_empty());
}

#[test]
fn memory_stays_valid_when_the_server_ends() {
    let mut rig = Rig::new(Options::default());
    let path = rig.file("model.bin", b"weights");
    let attachment = rig.attach_path(&path).unwrap();
    assert!(attachment.is_server_alive());
    rig.stop();
    assert!(!attachment.is_server_alive());
    assert_eq!(attachment.as_slice(), b"weights");
    attachment.release().unwrap();
    let gone = rig.attach_path(&path).unwrap_err();
    let Error::NoServer { cause, .. } = &gone else { panic!("{gone}") };
    assert_eq!(*cause, NoServerCause::NoSocket);
    let log: Vec<String> = rig.events().iter().map(ToString::to_string).collect();
    assert!(log.iter().any(|line| line.starts_with("1: clients keep")), "{log:?}");
    assert!(!log.iter().any(|line| line.starts_with("1: freed")), "{log:?}");
}

#[test]
fn files_named_at_the_start_are_held_and_a_new_version_takes_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("named.bin");
    fs::write(&named, b"first").unwrap();
    // A link leads out of its folder. It is followed, because the user that runs the server named it.
    let link = dir.path().join("sub/link.bin");
    fs::create_dir(dir.path().join("sub")).unwrap();
    std::os::unix::fs::symlink("../named.bin", &link).unwrap();
    let rig = Rig::new(Options::new().file(link.clone()));
    rig.wait(|event| matches!(event, Event::Ready { .. }).then_some(()));
    assert!(rig.list().held[0].is_pinned);
    rig.attach_path(&link).unwrap().release().unwrap();
    assert_eq!(refused(rig.attach_path(&named)), Reason::NotServed, "only what was named");
    fs::write(&named, b"second").unwrap();
    let second = rig.attach_path(&link).unwrap();
    assert_eq!(second.as_slice(), b"second");
    second.release().unwrap();
    assert_eq!(rig.wait_freed(), 1);
    let held = rig.list().held;
    assert_eq!(held.len(), 1);
    assert!(held[0].is_pinned && held[0].id == 2);
}

#[test]
fn files_of_the_start_are_kept_if_clients_attach_another_layout() {
    let rig = Rig::new(Options::default());
    let path = rig.file("model.safetensors", &safetensors("weight", 7));
    let own = Rig::new(Options::new().file(path.clone()));
    own.wait(|event| matches!(event, Event::Ready { .. }).then_some(()));
    let client = own.client().unwrap().align(Granule::SIZE_4K);
    let wanted = Wanted::Path(path);
    let aligned = client.attach(&wanted, FormatChoice::Auto, &mut |_| {}).unwrap();
    let held = own.list().held;
    assert_eq!(held.len(), 2);
    assert!(held[0].is_pinned && !held[0].is_stale && !held[1].is_pinned, "{held:?}");
    aligned.release().unwrap();
    assert_eq!(own.wait_freed(), 2);
}

fn safetensors(name: &str, value: u8) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([value; 4]);
    bytes
}

#[test]
fn all_shards_of_a_model_are_one_memory() {
    let rig = Rig::new(Options::default());
    rig.file("a.safetensors", &safetensors("first", 1));
    rig.file("b.safetensors", &safetensors("second", 2));
    let index = br#"{"weight_map":{"first":"a.safetensors","second":"b.safetensors"}}"#;
    let index = rig.file("model.safetensors.index.json", index);
    let attachment = rig.attach_path(&index).unwrap();
    assert_eq!(attachment.files().len(), 2);
    for (file, (name, value)) in attachment.files().iter().zip([("first", 1), ("second", 2)]) {
        let bytes = attachment.file_bytes(file).unwrap();
        let header = Header::parse(bytes, bytes.len() as u64).unwrap();
        let tensor = &header.tensors[0];
        assert_eq!(tensor.name, name);
        let data = tensor.data.start as usize..tensor.data.end as usize;
        assert_eq!(bytes[data], [value; 4]);
    }
    // Each shard can also be attached alone.
    let shard = rig.attach_path(&rig.path("a.safetensors")).unwrap();
    assert_eq!(shard.as_slice(), safetensors("first", 1));

    rig.file("broken.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}");
    assert_eq!(refused(rig.attach_path(&rig.path("broken.safetensors"))), Reason::Malformed);
    let lost = rig.file("lost.safetensors.index.json", br#"{"weight_map":{"x":"none"}}"#);
    // The client is asked to show the shard before the server looks for it.
    let missing = rig.attach_path(&lost).unwrap_err();
    assert!(matches!(&missing, Error::Open { path, .. } if path.ends_with("none")), "{missing}");
    assert_eq!(refused(rig.attach_path(&rig.file("empty.bin", b""))), Reason::Unreadable);
}

#[test]
fn each_alignment_of_a_model_has_its_own_memory() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    let path = rig.file("odd.safetensors", &safetensors("odd", 7));
    let unaligned = rig.attach_path(&path).unwrap();
    let aligned = |alignment| {
        let client = rig.client().unwrap().align(Granule::new(alignment).unwrap());
        let wanted = Wanted::Path(path.clone());
        client.attach(&wanted, FormatChoice::Auto, &mut |_| {})
    };
    let first = aligned(4096).unwrap();
    let second = aligned(4096).unwrap();
    assert_eq!(first.id(), second.id());
    assert_ne!(first.id(), unaligned.id());
    let file = &first.files()[0];
    let bytes = first.file_bytes(file).unwrap();
    let header = Header::parse(bytes, bytes.len() as u64).unwrap();
    let data = header.tensor("odd").unwrap().data.clone();
    assert_eq!((data.start % 4096, &bytes[data.start as usize..]), (0, &[7; 4][..]));
    let by_number = rig.attach(&Wanted::Id(first.id())).unwrap();
    assert_eq!(by_number.as_slice(), first.as_slice());
    let aligns: Vec<u64> = rig.list().held.iter().map(|held| held.align_bytes).collect();
    assert_eq!(aligns, [0, 4096]);
    let raw = rig.file("raw.bin", b"no tensors");
    let client = rig.client().unwrap().align(Granule::SIZE_4K);
    let none = client.attach(&Wanted::Path(raw), FormatChoice::Auto, &mut |_| {});
    assert_eq!(refused(none), Reason::Malformed);
}

/// A client gets a held model only in the layout that it requested, by whichever path, and only while the
/// file is the one that was loaded.
#[test]
fn a_held_model_is_not_given_with_another_alignment() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    let path = rig.file("odd.safetensors", &safetensors("odd", 7));
    let link = rig.path("link.safetensors");
    std::os::unix::fs::symlink("odd.safetensors", &link).unwrap();
    let attach = |path: &Path, alignment| {
        let client = rig.client().unwrap().align(Granule::new(alignment).unwrap());
        let wanted = Wanted::Path(path.to_owned());
        client.attach(&wanted, FormatChoice::Auto, &mut |_| {}).unwrap()
    };
    let check = |attachment: &Attachment, alignment: u64, value: u8| {
        let file = &attachment.files()[0];
        let bytes = attachment.file_bytes(file).unwrap();
        let header = Header::parse(bytes, bytes.len() as u64).unwrap();
        let data = header.tensor("odd").unwrap().data.clone();
        assert_eq!(data.start % alignment, 0);
        assert_eq!(bytes[data.start as usize..data.end as usize], [value; 4]);
    };
    let alignments = [64, 4096, 1 << 16];
    let ids = |value| {
        alignments.map(|alignment| {
            let held = attach(&path, alignment);
            check(&held, alignment, value);
            let again = attach(&link, alignment);
            check(&again, alignment, value);
            assert_eq!(held.id(), again.id(), "one memory for each layout");
            held.id()
        })
    };
    let first = ids(7);
    assert_eq!(first, ids(7));
    let listed = |ids: &[u64]| {
        let held = rig.list().held;
        let aligns = held.iter().filter(|held| ids.contains(&held.id));
        aligns.map(|held| held.align_bytes).collect::<Vec<_>>()
    };
    assert_eq!(listed(&first), alignments);
    fs::remove_file(&path).unwrap();
    rig.file("odd.safetensors", &safetensors("odd", 8));
    let second = ids(8);
    let different: BTreeSet<u64> = first.into_iter().chain(second).collect();
    assert_eq!(different.len(), 6);
}

/// A split of a GGUF model without tensors.
fn split(number: u16, count: u16) -> Vec<u8> {
    const U16: u32 = 2;
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(2u64.to_le_bytes());
    for (key, value) in [("split.no", number), ("split.count", count)] {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(U16.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

#[test]
fn all_splits_of_a_gguf_model_are_one_memory() {
    let rig = Rig::new(Options::default());
    let first = rig.file("m-00001-of-00002.gguf", &split(0, 2));
    let second = rig.file("m-00002-of-00002.gguf", &split(1, 2));
    let attachment = rig.attach_path(&first).unwrap();
    let contents: Vec<_> =
        attachment.files().iter().map(|file| attachment.file_bytes(file).unwrap()).collect();
    assert_eq!(contents, [split(0, 2), split(1, 2)]);
    assert_eq!(rig.attach_path(&second).unwrap().as_slice(), split(1, 2));
    fs::remove_file(second).unwrap();
    let missing = rig.attach_path(&first).unwrap_err();
    let name = "m-00002-of-00002.gguf";
    assert!(matches!(&missing, Error::Open { path, .. } if path.ends_with(name)), "{missing}");
    let broken = rig.file("broken.gguf", b"GGUF and no more");
    assert_eq!(refused(rig.attach_path(&broken)), Reason::Malformed);
}
