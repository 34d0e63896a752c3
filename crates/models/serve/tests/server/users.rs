//! Users who request more than their share. The others are served as usual.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_serve::protocol::{Reply, Request, VERSION};
use longshore_serve::{Event, Keep, Options, Reason};
use longshore_sys::packet_socket;

use crate::rig::{Raw, Rig};

const ALICE: u32 = 4001;
const MALLORY: u32 = 4002;

/// A server that every user may use; `None` if this test cannot be another user.
fn rig(options: Options) -> Option<Rig> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: another user cannot be tried without being root");
        return None;
    }
    Some(Rig::new(options).open_to_all())
}

/// A file without blocks on its disk, which take memory nevertheless.
fn sparse(rig: &Rig, name: &str, len_bytes: u64) -> PathBuf {
    let path = rig.file(name, b"").canonicalize().unwrap();
    File::options().write(true).open(&path).unwrap().set_len(len_bytes).unwrap();
    path
}

fn attach(client: &Raw, path: &Path) -> Result<OwnedFd, (Reason, String)> {
    client.attach(path, File::open(path).unwrap());
    match client.hear_result() {
        Some((Reply::Attached { .. }, Some(memory))) => {
            assert!(matches!(client.hear(), Some(Reply::File { .. })));
            Ok(memory)
        }
        Some((Reply::Refused { reason, message }, None)) => Err((reason, message)),
        other => panic!("{other:?}"),
    }
}

fn release(client: &Raw) {
    client.say(&Request::Release, None);
    assert_eq!(client.hear(), Some(Reply::Released));
}

#[test]
fn one_user_does_not_take_all_clients() {
    let Some(rig) = rig(Options::new().clients_max(8)) else { return };
    let greeted = |uid: u32| {
        let client = rig.raw_of(uid);
        let hello = Request::Hello { version: VERSION }.encode();
        // It may have been refused and disconnected: the reset is before the refusal.
        let _ = packet_socket::send(&client.0, &hello, None);
        match client.hear().or_else(|| client.hear()).unwrap() {
            Reply::Welcome { .. } => Ok(client),
            Reply::Refused { reason, message } => Err((reason, message)),
            other => panic!("{other:?}"),
        }
    };
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(greeted(MALLORY).unwrap());
    }
    for _ in 0..8 {
        let (reason, message) = greeted(MALLORY).err().unwrap();
        assert_eq!(reason, Reason::TooMany);
        assert!(message.contains("user 4002 has 4 connections"), "{message}");
        assert!(message.contains("--max-clients-per-user"), "{message}");
    }
    let path = sparse(&rig, "model", 100);
    attach(&greeted(ALICE).unwrap(), &path).unwrap();
    // The limit is not for the server's own user.
    for _ in 0..4 {
        held.push(greeted(0).unwrap());
    }
    assert!(greeted(0).err().unwrap().1.contains("--max-clients"));
}

#[test]
fn one_user_does_not_take_all_memory_with_a_sparse_file() {
    let options = Options::new().memory_max(1 << 20);
    let Some(rig) = rig(options) else { return };
    let [large, small, other] = [("large", 600_000), ("small", 400_000), ("other", 200_000)]
        .map(|(name, len_bytes)| sparse(&rig, name, len_bytes));
    let mallory = [rig.raw_of(MALLORY).greeted(), rig.raw_of(MALLORY).greeted()];
    let refused = |client: &Raw, path: &Path| {
        let (reason, message) = attach(client, path).unwrap_err();
        assert_eq!(reason, Reason::TooMany);
        assert!(message.contains("524288 that one user may have"), "{message}");
        assert!(message.contains("--memory-max-per-user"), "{message}");
        message
    };
    refused(&mallory[0], &large);
    attach(&mallory[0], &small).unwrap();
    refused(&mallory[1], &other);
    attach(&mallory[1], &small).unwrap();
    let alice = rig.raw_of(ALICE).greeted();
    attach(&alice, &small).unwrap();
    release(&alice);
    // Another user has the model that Alice has released, and is charged with it.
    attach(&alice, &other).unwrap();
    release(&alice);
    // One of the two attachments is left.
    release(&mallory[0]);
    refused(&mallory[0], &other);
    release(&mallory[1]);
    attach(&alice, &other).unwrap();
    attach(&mallory[0], &other).unwrap();
    // The limit is not for the server's own user.
    attach(&rig.raw().greeted(), &large).unwrap();
}

#[test]
fn a_model_that_others_have_attached_does_not_count_for_a_user_that_released_it() {
    let options = Options::new().memory_max(2 << 20).memory_per_user(524_288);
    let Some(rig) = rig(options) else { return };
    let [shared, own] = ["shared", "own"].map(|name| sparse(&rig, name, 400_000));
    let (alice, mallory) = (rig.raw_of(ALICE).greeted(), rig.raw_of(MALLORY).greeted());
    drop(attach(&alice, &shared).unwrap());
    attach(&mallory, &shared).unwrap();
    release(&alice);
    attach(&alice, &own).unwrap();
    // To attach it again takes room again.
    let (reason, message) = attach(&rig.raw_of(ALICE).greeted(), &shared).unwrap_err();
    assert_eq!(reason, Reason::TooMany);
    assert!(message.contains("user 4001 has 401408 bytes of the 524288"), "{message}");
    release(&alice);
    attach(&alice, &shared).unwrap();
    // The same where root has it.
    let root = rig.raw().greeted();
    let kept = attach(&root, &shared).unwrap();
    release(&alice);
    release(&mallory);
    attach(&mallory, &own).unwrap();
    release(&mallory);
    // When nobody has it, and somebody keeps it, it is not charged to those who had it: one model.
    release(&root);
    let kept = [kept, attach(&alice, &shared).unwrap()];
    attach(&mallory, &shared).unwrap();
    for client in [&alice, &mallory] {
        release(client);
    }
    for client in [&alice, &mallory] {
        let (reason, message) = attach(client, &own).unwrap_err();
        assert_eq!(reason, Reason::TooMany);
        assert!(message.contains("still has a descriptor of it"), "{message}");
    }
    drop(kept);
    attach(&alice, &own).unwrap();
}

#[test]
fn users_who_work_together_keep_no_more_than_their_shares() {
    const SHARES: usize = 3;
    let options = Options::new().memory_max(4 << 20);
    let options = options.memory_per_user(500_000);
    let Some(rig) = rig(options) else { return };
    let models: Vec<PathBuf> =
        (0..12).map(|number| sparse(&rig, &format!("m{number}"), 400_000)).collect();
    let users: Vec<Raw> =
        (0..SHARES as u32).map(|number| rig.raw_of(MALLORY + number).greeted()).collect();
    // Each keeps the memory of all that it is given, and has another user attach it meanwhile.
    let mut kept: BTreeMap<&Path, Vec<OwnedFd>> = BTreeMap::new();
    let mut is_attached = [false; SHARES];
    for _ in 0..4 {
        for (number, user) in users.iter().enumerate() {
            for path in &models {
                // The one that passes a model on, and the one that takes it over.
                let other = (number + 1) % SHARES;
                if !is_attached[number]
                    && let Ok(memory) = attach(user, path)
                {
                    is_attached[number] = true;
                    kept.entry(path).or_default().push(memory);
                }
                if is_attached[number]
                    && !is_attached[other]
                    && let Ok(memory) = attach(&users[other], path)
                {
                    is_attached[other] = true;
                    kept.entry(path).or_default().push(memory);
                    release(user);
                    is_attached[number] = false;
                }
            }
        }
        for (number, user) in users.iter().enumerate() {
            if std::mem::take(&mut is_attached[number]) {
                release(user);
            }
        }
    }
    // Each two of them may keep one model that is not charged.
    assert!(kept.len() <= SHARES + SHARES / 2, "{} models are kept", kept.len());
    assert!(kept.len() > 1, "they had their shares");
    // Each of them remains charged.
    for user in &users {
        assert!(attach(user, &models[11]).is_err());
    }
    drop(kept);
}

#[test]
fn each_user_leaves_as_much_memory_to_others_as_it_has() {
    let Some(rig) = rig(Options::new().memory_max(1 << 20)) else { return };
    let users: Vec<Raw> = (0..5).map(|number| rig.raw_of(ALICE + number).greeted()).collect();
    let half = sparse(&rig, "half", 500_000);
    attach(&users[0], &half).unwrap();
    let refused = |user: &Raw, path: &Path, limit_bytes: u64| {
        let (reason, message) = attach(user, path).unwrap_err();
        assert_eq!(reason, Reason::TooMany);
        let limit = format!("{limit_bytes} that one user may have while others have");
        assert!(message.contains(&limit), "{message}");
    };
    refused(&users[1], &sparse(&rig, "other half", 500_000), (1_048_576 - 503_808) / 2);
    let models = [250_000, 140_000, 70_000].map(|len| sparse(&rig, &len.to_string(), len));
    for (user, model) in users[1..].iter().zip(&models) {
        attach(user, model).unwrap();
    }
    // A model that is loaded already takes no more memory, and one such model is given to everybody.
    attach(&users[4], &half).unwrap();
    release(&users[4]);
    // Otherwise each user could hand its models to another one, and load more.
    attach(&users[4], &models[0]).unwrap();
    let taker = rig.raw_of(ALICE + 4).greeted();
    refused(&taker, &models[1], (1_048_576 - 503_808 - 73_728) / 2);
}

#[test]
fn unused_models_of_others_make_room_for_the_share_of_a_user() {
    let options = Options::new().memory_max(1 << 20).keep(Keep::Always);
    let Some(rig) = rig(options) else { return };
    let [of_mallory, of_alice] = ["mallory", "alice"].map(|name| sparse(&rig, name, 400_000));
    let (alice, mallory) = (rig.raw_of(ALICE).greeted(), rig.raw_of(MALLORY).greeted());
    let kept = attach(&mallory, &of_mallory).unwrap();
    release(&mallory);
    assert!(attach(&alice, &of_alice).unwrap_err().1.contains("while others have 401408"));
    drop(kept);
    drop(attach(&mallory, &of_mallory).unwrap());
    release(&mallory);
    attach(&alice, &of_alice).unwrap();
}

#[test]
fn memory_that_another_user_keeps_does_not_keep_a_user_from_attaching_a_model_again() {
    let Some(rig) = rig(Options::new().memory_max(1 << 20)) else { return };
    let [model, other] = ["model", "other"].map(|name| sparse(&rig, name, 300_000));
    let (alice, mallory) = (rig.raw_of(ALICE).greeted(), rig.raw_of(MALLORY).greeted());
    let mut kept = Vec::new();
    let mut keep_and_release = || {
        drop(attach(&alice, &model).unwrap());
        kept.push(attach(&mallory, &model).unwrap());
        release(&alice);
        release(&mallory);
    };
    keep_and_release();
    drop(attach(&alice, &other).unwrap());
    release(&alice);
    // The same model can be attached again, and kept again: from then on it counts.
    keep_and_release();
    for user in [&alice, &mallory] {
        let (reason, message) = attach(user, &other).unwrap_err();
        assert_eq!(reason, Reason::TooMany);
        assert!(message.contains("303104 of them in memory that was released"), "{message}");
    }
    drop(kept);
    attach(&alice, &model).unwrap();
}

#[test]
fn memory_that_a_client_keeps_is_not_reported_free_and_is_charged() {
    let options = Options::new().memory_max(1 << 20).memory_per_user(524_288);
    let Some(rig) = rig(options) else { return };
    let [first, second] = ["first", "second"].map(|name| sparse(&rig, name, 400_000));
    let mallory = rig.raw_of(MALLORY).greeted();
    let kept = attach(&mallory, &first).unwrap();
    release(&mallory);
    rig.wait(|event| match event {
        Event::Freed { .. } => panic!("it is not free"),
        Event::KeptByClients { len_bytes: 400_000, .. } => Some(()),
        _ => None,
    });
    let (reason, message) = attach(&mallory, &second).unwrap_err();
    assert_eq!(reason, Reason::TooMany);
    assert!(message.contains("in memory that was released and is not free"), "{message}");
    // Of the server's limit, too.
    let own = rig.raw().greeted();
    let (reason, message) = attach(&own, &sparse(&rig, "large", 700_000)).unwrap_err();
    assert_eq!(reason, Reason::NoMemory);
    assert!(message.contains("400000 are in use"), "{message}");
    assert!(!rig.events().iter().any(|event| matches!(event, Event::Freed { .. })));
    drop(kept);
    rig.wait_freed();
    drop(attach(&mallory, &second).unwrap());
    attach(&rig.raw_of(ALICE).greeted(), &first).unwrap();
}

#[test]
fn unused_models_count_for_the_users_that_may_keep_their_memory() {
    for keep in [Keep::Always, Keep::Idle(Duration::from_secs(3600))] {
        let options = Options::new().memory_max(1 << 20).keep(keep);
        let Some(rig) = rig(options) else { return };
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let models = names.map(|name| sparse(&rig, name, 131_072));
        let mallory = rig.raw_of(MALLORY).greeted();
        let mut kept = Vec::new();
        for model in &models[..4] {
            kept.push(attach(&mallory, model).unwrap());
            release(&mallory);
        }
        // A model that it was given already is not charged again.
        attach(&mallory, &models[0]).unwrap();
        release(&mallory);
        for model in &models[4..] {
            let (reason, message) = attach(&mallory, model).unwrap_err();
            assert_eq!(reason, Reason::TooMany);
            assert!(message.contains("524288 bytes of the 524288"), "{message}");
        }
        let alice = rig.raw_of(ALICE).greeted();
        // Without descriptors that are kept, unused models make room for others of the same user.
        for model in models[4..].iter().chain(&models[4..]) {
            drop(attach(&alice, model).unwrap());
            release(&alice);
        }
        assert!(attach(&mallory, &models[4]).is_err(), "freeing is of no use");
        drop(kept);
        drop(attach(&mallory, &models[4]).unwrap());
        release(&mallory);
        let larger = sparse(&rig, "larger", 400_000);
        for client in [&alice, &mallory] {
            drop(attach(client, &larger).unwrap());
            release(client);
        }
    }
}

#[test]
fn a_file_that_the_server_keeps_anyway_is_charged_to_no_user() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: another user cannot be tried without being root");
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().canonicalize().unwrap().join("held");
    File::create(&path).unwrap().set_len(700_000).unwrap();
    let memory_max = Some(1_000_000);
    let files = vec![path.clone()];
    let mut options = Options::new().memory_max(memory_max).memory_per_user(500_000);
    options.files = files;
    let rig = Rig::new(options).open_to_all();
    rig.wait(|event| matches!(event, Event::Ready { .. }).then_some(()));
    let client = rig.raw_of(ALICE).greeted();
    attach(&client, &path).unwrap();
    attach(&rig.raw_of(ALICE).greeted(), &sparse(&rig, "other", 200_000)).unwrap();
}
