//! The room that a hostile user leaves to others.

use super::*;
use crate::protocol::VERSION;
use crate::server::asking::Refusal;
use crate::server::lingering::Gone;
use crate::server::open_files::OpenFiles;

#[test]
fn a_user_whose_descriptors_wait_to_be_closed_waits_and_others_do_not() {
    let mut still = Still::new();
    let found = still.held("model");
    let mallory = still.connect(MALLORY).0;
    still.core.closers.stick(still.core.users.of(MALLORY), 500);
    assert_eq!(still.connect(MALLORY).1, None, "it is not refused");
    still.say(&mallory, &Request::Hello { version: VERSION }, None);
    assert!(heard(&mallory).is_empty(), "nor is it listened to");
    let alice = still.ask_for(ALICE, found);
    let told = heard(&alice);
    assert!(matches!(told[..], [Reply::Attached { .. }, ..]), "{told:?}");
    still.core.closers.unstick(still.core.users.of(MALLORY));
    still.core.turn().unwrap();
    let told = heard(&mallory);
    assert!(matches!(told[..], [Reply::Welcome { .. }]), "{told:?}");
}

#[test]
fn each_user_has_some_descriptors_whatever_others_have() {
    let mut still = Still::new();
    let (alice, mallory) = (still.core.users.of(ALICE), still.core.users.of(MALLORY));
    let max = still.core.open_files_max;
    still.core.closers.stick(mallory, max);
    let look = OpenFiles::of_look;
    assert!(still.core.may_open(mallory, &look(1)).is_err());
    assert!(still.core.may_open(alice, &look(max / 2)).is_err());
    still.core.may_open(alice, &look(1)).unwrap();
}

#[test]
fn no_model_goes_for_a_load_beside_others_that_have_more_than_there_is() {
    let mut still = Still::new();
    for name in ["a", "b", "c"] {
        still.held(name);
    }
    let wanted = still.load("d", 1000, 0);
    let client = still.waiter(wanted);
    let refused = |others_bytes| {
        let limit = longshore_load::MemoryLimit::Machine { available_bytes: 4000, others_bytes };
        let (needed_bytes, limit_bytes) = (1000, 0);
        Err(longshore_load::Error::NotEnoughMemory { needed_bytes, limit_bytes, limit })
    };
    still.core.on_loaded(wanted, refused(5000), still.now);
    assert_eq!(still.core.cache.len(), 2, "two of three make room");
    still.core.on_loaded(wanted, refused(4001), still.now);
    assert_eq!(still.core.cache.len(), 1, "the last is not enough");
    let told = heard(&client);
    assert!(matches!(told[..], [Reply::Refused { reason: Reason::NoMemory, .. }]), "{told:?}");
}

#[test]
fn unused_models_go_for_a_load_that_the_hugetlb_pool_has_no_room_for() {
    let mut still = Still::new();
    for name in ["a", "b", "c", "d"] {
        still.held(name);
    }
    let wanted = still.load("wanted", 1000, 0);
    let client = still.waiter(wanted);
    let mut fail = |needed_pages, available_pages| {
        let error = pool_lacks_pages(needed_pages, available_pages);
        still.core.on_loaded(wanted, Err(error), still.now);
        still.core.cache.len()
    };
    // Each has one page, however small it is.
    assert_eq!(fail(3, 1), 3, "two of four make room");
    // Others have taken the pages meanwhile.
    assert_eq!(fail(3, 3), 2, "one more goes");
    assert_eq!(fail(3, 1), 1, "the last is not enough");
    let told = heard(&client);
    assert!(matches!(told[..], [Reply::Refused { reason: Reason::NoMemory, .. }]), "{told:?}");
}

#[test]
fn a_user_keeps_the_memory_of_so_many_models() {
    let mut still = Still::new();
    let found = still.held("model");
    let mallory = still.core.users.of(MALLORY);
    let (_, max) = still.core.lingering.kept_by(mallory);
    let mut kept = Vec::new();
    let now = Instant::now();
    for id in 0..max as u64 {
        let memory = Arc::new(Heap::Memfd.allocate(1).unwrap().share(Sealing::Content).unwrap());
        kept.push(memory.memfd().unwrap().try_clone_to_owned().unwrap());
        let (path, users) = ("kept".into(), [mallory].into());
        let gone = Gone { id: 1_000_000 + id, path, len_bytes: 1, users, named_by: mallory };
        still.core.lingering.give_up(memory, gone, now).unwrap();
    }
    let refused = still.core.may_hold(mallory, &found).unwrap_err().message;
    assert!(refused.contains(&format!("{max} models that were released")), "{refused}");
    still.core.may_hold(still.core.users.of(ALICE), &found).unwrap();
    still.core.lingering.wait_until_dropped();
    kept.truncate(max - 1);
    still.core.lingering.take_free();
    still.core.may_hold(mallory, &found).unwrap();
}

#[test]
fn a_client_that_waits_for_room_is_counted_and_leaves_nothing() {
    let mut still = Still::new();
    let found = still.held("model");
    let (_client, refused) = still.connect(MALLORY);
    assert_eq!(refused, None);
    let id = *still.core.connections.keys().next_back().unwrap();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    struct Blocks(std::sync::mpsc::Receiver<()>);
    impl Drop for Blocks {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    still.core.lingering.free_later(Blocks(may_go_on));
    let refusal = Refusal::new(Reason::NoMemory, "no room".to_owned());
    let files = found.open_files();
    let now = still.now;
    still.core.refuse_or_wait(id, found, refusal, (0, None), now).unwrap();
    let connection = &still.core.connections[&id];
    assert_eq!((files, connection.kept_descriptors()), (1, 1));
    assert!(still.core.awaiting_room.next_time().is_some());
    still.core.disconnect(id, None, now);
    drop(go_on);
    still.core.lingering.wait_until_dropped();
    still.core.end_waits_for_room(now);
    assert_eq!(still.core.awaiting_room.next_time(), None);
}

/// Has a user load a model and attach it. Returns the client, or the words of the refusal.
fn attached(still: &mut Still, uid: u32, name: &str) -> std::result::Result<OwnedFd, String> {
    let client = still.ask(uid, name);
    match still.answer(&client).pop() {
        Some(Reply::Refused { reason: Reason::TooMany, message }) => Err(message),
        Some(Reply::File { .. }) => Ok(client),
        other => panic!("{other:?}"),
    }
}

/// Has a user attach so many models, one after the other, or as many as it can.
fn attached_to(still: &mut Still, uid: u32, count: usize) -> (Vec<OwnedFd>, Option<String>) {
    let mut clients = Vec::new();
    for number in 0..count {
        match attached(still, uid, &format!("{uid}-{number}")) {
            Ok(client) => clients.push(client),
            Err(message) => return (clients, Some(message)),
        }
    }
    (clients, None)
}

#[test]
fn a_user_has_no_more_models_than_are_left_for_others() {
    let mut still = Still::new();
    still.core.limits.models = 32;
    let root = still.core.users.own().uid();
    // Two are for root and the server's own user.
    let (mallorys, refused) = attached_to(&mut still, MALLORY, 32);
    assert_eq!(mallorys.len(), 15);
    let refused = refused.unwrap();
    let expected = "user 2002 has 15 models, and the last 17 of 32 are for other users";
    assert_eq!(refused, expected);
    let (alices, refused) = attached_to(&mut still, ALICE, 32);
    assert_eq!(alices.len(), 8);
    assert!(refused.unwrap().contains("user 2001 has 8 models"));
    // Nor can one take over the models of another, which loads more then.
    let shared = still.core.cache.iter().last().unwrap().1.found.clone();
    let refused = refusal(&still.ask_for(MALLORY, shared)).unwrap();
    assert!(refused.contains("user 2002 has 15 models"), "{refused}");
    let (roots, refused) = attached_to(&mut still, root, 32);
    assert_eq!(roots.len(), 32 - 15 - 8);
    assert_eq!(refused.unwrap(), "32 models are held, and no more can be");
}

#[test]
fn models_that_a_user_does_not_use_make_room_for_its_own() {
    // By the number of models, and by that of descriptors.
    for (models, open_files_max) in [(32, 1000), (1024, 20)] {
        let mut still = Still::new();
        still.core.limits.models = models;
        still.core.open_files_max = open_files_max;
        let is_held = |still: &Still, name: &str| {
            still.core.cache.iter().any(|(_, model)| model.found.path.ends_with(name))
        };
        drop(attached(&mut still, ALICE, "llama").unwrap());
        still.core.turn().unwrap();
        for number in 0..64 {
            drop(attached(&mut still, MALLORY, &format!("{number}")).unwrap());
            still.core.turn().unwrap();
        }
        assert!(is_held(&still, "llama") && is_held(&still, "63") && !is_held(&still, "0"));
        assert!(still.core.cache.len() > 10, "{} models are held", still.core.cache.len());
    }
}
