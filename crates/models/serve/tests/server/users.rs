//! Users who request more than their share. The others are served as usual.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use longshore_mem::ByteSize;
use longshore_serve::protocol::{Reply, Request, VERSION};
use longshore_serve::{Event, Keep, Options, Reason};
use longshore_sys::packet_socket;

use crate::rig::{Raw, Rig};

const ALICE: u32 = 4001;
const MALLORY: u32 = 4002;
/// The time for the server to free memory.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a server that every user may use, or returns `None` if this process is not root.
fn rig(options: Options) -> Option<Rig> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can act as other users");
        return None;
    }
    Some(Rig::new(options).open_to_all())
}

/// Makes a sparse file, which takes memory but no blocks of the disk.
fn sparse(rig: &Rig, name: &str, len_bytes: u64) -> PathBuf {
    let path = rig.file(name, b"").canonicalize().unwrap();
    File::options().write(true).open(&path).unwrap().set_len(len_bytes).unwrap();
    path
}

fn attach(client: &Raw, path: &Path) -> Result<OwnedFd, (Reason, String)> {
    client.attach(path, File::open(path).unwrap());
    match client.receive_result() {
        Some((Reply::Attached { .. }, Some(memory))) => {
            assert!(matches!(client.receive(), Some(Reply::File { .. })));
            Ok(memory)
        }
        Some((Reply::Refused { reason, message }, None)) => Err((reason, message)),
        other => panic!("{other:?}"),
    }
}

/// Attaches a model. The server counts memory until it is free, which takes a moment after a release, so
/// this tries again if a limit is reached.
fn attached(client: &Raw, path: &Path) -> OwnedFd {
    let begin = Instant::now();
    loop {
        match attach(client, path) {
            Ok(memory) => return memory,
            Err((Reason::TooMany, _)) if begin.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(refused) => panic!("{refused:?}"),
        }
    }
}

fn release(client: &Raw) {
    client.send(&Request::Release, None);
    assert_eq!(client.receive(), Some(Reply::Released));
}

#[test]
fn one_user_does_not_take_all_clients() {
    let Some(rig) = rig(Options::new().clients_max(8)) else { return };
    let greeted = |uid: u32| {
        let client = rig.raw_of(uid);
        let hello = Request::Hello { version: VERSION }.encode();
        // The server may have refused the connection already. Then the reset comes before the refusal.
        let _ = packet_socket::send(&client.0, &hello, None);
        match client.receive().or_else(|| client.receive()).unwrap() {
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
    attached(&greeted(ALICE).unwrap(), &path);
    // The limit does not apply to the server's own user.
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
        let begin = Instant::now();
        loop {
            let (reason, message) = attach(client, path).unwrap_err();
            assert_eq!(reason, Reason::TooMany);
            assert!(message.contains("--memory-max-per-user"), "{message}");
            if message.contains("524.29 kB that one user may have") {
                return;
            }
            // The share is smaller while memory that others have released is not free yet.
            assert!(begin.elapsed() < PATIENCE, "{message}");
            thread::sleep(Duration::from_millis(1));
        }
    };
    refused(&mallory[0], &large);
    attached(&mallory[0], &small);
    refused(&mallory[1], &other);
    attached(&mallory[1], &small);
    let alice = rig.raw_of(ALICE).greeted();
    attached(&alice, &small);
    release(&alice);
    // The model that Alice has released is charged to the user that still has it.
    attached(&alice, &other);
    release(&alice);
    // One of Mallory's two attachments is left.
    release(&mallory[0]);
    refused(&mallory[0], &other);
    release(&mallory[1]);
    attached(&alice, &other);
    attached(&mallory[0], &other);
    // The limit does not apply to the server's own user.
    attached(&rig.raw().greeted(), &large);
}

#[test]
fn a_model_that_others_have_attached_is_not_charged_to_a_user_that_released_it() {
    let options = Options::new().memory_max(2 << 20).memory_per_user(524_288);
    let Some(rig) = rig(options) else { return };
    let [shared, own] = ["shared", "own"].map(|name| sparse(&rig, name, 400_000));
    let (alice, mallory) = (rig.raw_of(ALICE).greeted(), rig.raw_of(MALLORY).greeted());
    drop(attached(&alice, &shared));
    attached(&mallory, &shared);
    release(&alice);
    attached(&alice, &own);
    // Attaching it again charges it again.
    let (reason, message) = attach(&rig.raw_of(ALICE).greeted(), &shared).unwrap_err();
    assert_eq!(reason, Reason::TooMany);
    assert!(message.contains("user 4001 has 401.41 kB of the 524.29 kB"), "{message}");
    release(&alice);
    attached(&alice, &shared);
    // The same if root has it.
    let root = rig.raw().greeted();
    let kept = attached(&root, &shared);
    release(&alice);
    release(&mallory);
    attached(&mallory, &own);
    release(&mallory);
    // A model without attachments, of which a client keeps a descriptor, is charged to each user that had it.
    release(&root);
    let kept = [kept, attached(&alice, &shared)];
    attached(&mallory, &shared);
    for client in [&alice, &mallory] {
        release(client);
    }
    for client in [&alice, &mallory] {
        let (reason, message) = attach(client, &own).unwrap_err();
        assert_eq!(reason, Reason::TooMany);
        assert!(message.contains("still has a descriptor of it"), "{message}");
    }
    drop(kept);
    attached(&alice, &own);
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
    // Each user keeps the memory of all its models, and another user attaches each model before the first
    // one releases it.
    let mut kept: BTreeMap<&Path, Vec<OwnedFd>> = BTreeMap::new();
    let mut is_attached = [false; SHARES];
    for _ in 0..4 {
        for (number, user) in users.iter().enumerate() {
            for path in &models {
                // `number` passes a model on, and `other` takes it over.
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
    assert!(kept.len() > 1, "the users have no models");
    // Each of them remains charged.
    for user in &users {
        assert!(attach(user, &models[11]).is_err());
    }
    drop(kept);
}

#[test]
fn a_user_may_have_half_of_the_memory_that_others_leave() {
    let Some(rig) = rig(Options::new().memory_max(1 << 20)) else { return };
    let users: Vec<Raw> = (0..5).map(|number| rig.raw_of(ALICE + number).greeted()).collect();
    let half = sparse(&rig, "half", 500_000);
    attached(&users[0], &half);
    let refused = |user: &Raw, path: &Path, limit_bytes: u64| {
        let (reason, message) = attach(user, path).unwrap_err();
        assert_eq!(reason, Reason::TooMany);
        let limit = format!("{} that one user may have while others have", ByteSize(limit_bytes));
        assert!(message.contains(&limit), "{message}");
    };
    refused(&users[1], &sparse(&rig, "other half", 500_000), (1_048_576 - 503_808) / 2);
    let models = [250_000, 140_000, 70_000].map(|len| sparse(&rig, &len.to_string(), len));
    for (user, model) in users[1..].iter().zip(&models) {
        attached(user, model);
    }
    // A loaded model takes no more memory, so each user may attach one, whatever its share.
    attached(&users[4], &half);
    release(&users[4]);
    // Otherwise each user could hand its models to another one, and load more.
    attached(&users[4], &models[0]);
    let taker = rig.raw_of(ALICE + 4).greeted();
    refused(&taker, &models[1], (1_048_576 - 503_808 - 73_728) / 2);
}

#[test]
fn unused_models_of_others_make_room_for_the_share_of_a_user() {
    let options = Options::new().memory_max(1 << 20).keep(Keep::Always);
    let Some(rig) = rig(options) else { return };
    let [of_mallory, of_alice] = ["mallory", "alice"].map(|name| sparse(&rig, name, 400_000));
    let (alice, mallory) = (rig.raw_of(ALICE).greeted(), rig.raw_of(MALLORY).greeted());
    let kept = attached(&mallory, &of_mallory);
    release(&mallory);
    assert!(attach(&alice, &of_alice).unwrap_err().1.contains("while others have 401.41 kB"));
    drop(kept);
    drop(attached(&mallory, &of_mallory));
    release(&mallory);
    attached(&alice, &of_alice);
}

#[test]
fn memory_that_another_user_keeps_does_not_prevent_attaching_a_model_again() {
    let Some(rig) = rig(Options::new().memory_max(1 << 20)) else { return };
    let [model, other] = ["model", "other"].map(|name| sparse(&rig, name, 300_000));
    let (alice, mallory) = (rig.raw_of(ALICE).greeted(), rig.raw_of(MALLORY).greeted());
    let mut kept = Vec::new();
    let mut keep_and_release = || {
        drop(attached(&alice, &model));
        kept.push(attached(&mallory, &model));
        release(&alice);
        release(&mallory);
    };
    keep_and_release();
    drop(attached(&alice, &other));
    release(&alice);
    // The same model can be attached again, and kept again. From then on it is charged.
    keep_and_release();
    for user in [&alice, &mallory] {
        let (reason, message) = attach(user, &other).unwrap_err();
        assert_eq!(reason, Reason::TooMany);
        assert!(message.contains("303.10 kB of them in memory that was released"), "{message}");
    }
    drop(kept);
    attached(&alice, &model);
}

#[test]
fn memory_that_a_client_keeps_is_not_reported_free_and_is_charged() {
    let options = Options::new().memory_max(1 << 20).memory_per_user(524_288);
    let Some(rig) = rig(options) else { return };
    let [first, second] = ["first", "second"].map(|name| sparse(&rig, name, 400_000));
    let mallory = rig.raw_of(MALLORY).greeted();
    let kept = attached(&mallory, &first);
    release(&mallory);
    rig.wait(|event| match event {
        Event::Freed { .. } => panic!("the memory is not free"),
        Event::KeptByClients { len_bytes: 400_000, .. } => Some(()),
        _ => None,
    });
    let (reason, message) = attach(&mallory, &second).unwrap_err();
    assert_eq!(reason, Reason::TooMany);
    assert!(message.contains("in memory that was released and is not free"), "{message}");
    // It also counts against the server's limit.
    let own = rig.raw().greeted();
    let (reason, message) = attach(&own, &sparse(&rig, "large", 700_000)).unwrap_err();
    assert_eq!(reason, Reason::NoMemory);
    assert!(message.contains("400.00 kB are in use"), "{message}");
    assert!(!rig.events().iter().any(|event| matches!(event, Event::Freed { .. })));
    drop(kept);
    rig.wait_freed();
    drop(attached(&mallory, &second));
    attached(&rig.raw_of(ALICE).greeted(), &first);
}

#[test]
fn unused_models_are_charged_to_the_users_that_may_keep_their_memory() {
    for keep in [Keep::Always, Keep::Idle(Duration::from_secs(3600))] {
        let options = Options::new().memory_max(1 << 20).keep(keep);
        let Some(rig) = rig(options) else { return };
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let models = names.map(|name| sparse(&rig, name, 131_072));
        let mallory = rig.raw_of(MALLORY).greeted();
        let mut kept = Vec::new();
        for model in &models[..4] {
            kept.push(attached(&mallory, model));
            release(&mallory);
        }
        // A model that the user has had already is not charged again.
        attached(&mallory, &models[0]);
        release(&mallory);
        for model in &models[4..] {
            let (reason, message) = attach(&mallory, model).unwrap_err();
            assert_eq!(reason, Reason::TooMany);
            assert!(message.contains("524.29 kB of the 524.29 kB"), "{message}");
        }
        let alice = rig.raw_of(ALICE).greeted();
        // If no descriptor is kept, unused models make room for other models of the same user.
        for model in models[4..].iter().chain(&models[4..]) {
            drop(attached(&alice, model));
            release(&alice);
        }
        assert!(attach(&mallory, &models[4]).is_err(), "a model was freed, but its memory is kept");
        drop(kept);
        drop(attached(&mallory, &models[4]));
        release(&mallory);
        let larger = sparse(&rig, "larger", 400_000);
        for client in [&alice, &mallory] {
            drop(attached(client, &larger));
            release(client);
        }
    }
}

#[test]
fn a_file_of_the_start_is_charged_to_no_user() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can act as other users");
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
    attached(&client, &path);
    attached(&rig.raw_of(ALICE).greeted(), &sparse(&rig, "other", 200_000));
}
