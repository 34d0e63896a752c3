use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use longshore_heap::{Heap, Sealing};
use longshore_load::FormatChoice;
use longshore_load::Loader;
use longshore_load::PlannedFile;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tempfile::TempDir;

use super::super::connection::Phase;
use super::super::jobs::LoadedModel;
use super::super::users::Of;
use super::*;
use crate::model_cache::Keep;
use crate::protocol::{MESSAGE_BYTES_MAX, Request, Target, VERSION};
use crate::reason::Reason;
use crate::served::{Found, Layout, Looked};

mod hanging;
mod own_requests;
mod room;
mod starting;
mod time;

/// A server that takes a turn only when the test calls it, and its directory.
struct Still {
    core: Core,
    dir: TempDir,
    now: Instant,
}

impl Still {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let listener = Listener::bind(&root.join("socket"), 0o600).unwrap();
        let served = Arc::new(Served::new(&[root], &[]).unwrap());
        let options = Options { keep: Keep::Always, ..options };
        let core =
            Core::new(listener, (served, None), options, 1000, Stop::new().unwrap()).unwrap();
        Self { core, dir, now: Instant::now() }
    }

    fn found(&self, name: &str, len_bytes: usize) -> Found {
        let path = fs::canonicalize(self.dir.path()).unwrap().join(name);
        fs::write(&path, vec![7; len_bytes]).unwrap();
        let layout = Layout { format: FormatChoice::Raw, align: None };
        match self.core.served.look(&path, layout, None) {
            Looked::Found(found) => found.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// A model that is marked as being loaded, without a thread.
    fn load(&mut self, name: &str, len_bytes: usize, done_bytes: u64) -> u64 {
        let id = self.core.cache.insert(self.found(name, len_bytes), self.now);
        self.core.loads.insert(
            id,
            Load { user: self.core.users.own(), cancel: CancelToken::new(), done_bytes },
        );
        id
    }

    fn loaded(&self, id: u64) -> LoadedModel {
        let plan = Served::plan(&self.core.cache.get(id).unwrap().found).unwrap();
        let loaded = Loader::new().heap(Heap::Memfd).load(&plan).unwrap();
        LoadedModel {
            memory: loaded.buffer.share(Sealing::Content).unwrap(),
            ranges: plan.files().iter().map(PlannedFile::buffer_range).collect(),
            elapsed: loaded.report.elapsed,
            pages: loaded.report.pages,
        }
    }

    /// A client that waits for a model.
    fn waiter(&mut self, model: u64) -> OwnedFd {
        let client = packet_socket::connect(&self.dir.path().join("socket")).unwrap();
        self.core.accept(self.now);
        let connection = self.core.connections.values_mut().next_back().unwrap();
        connection.enter(Phase::Waiting(model), self.now);
        client
    }
}

impl Still {
    /// A client of this user that asks for a file.
    fn ask(&mut self, uid: u32, name: &str) -> OwnedFd {
        let found = self.found(name, 1000);
        self.ask_for(uid, found)
    }

    fn ask_for(&mut self, uid: u32, found: Found) -> OwnedFd {
        let (here, there) = packet_socket::pair().unwrap();
        self.core.admit(here, Peer { pid: 1, uid, gid: uid }, self.now);
        let id = *self.core.connections.keys().next_back().unwrap();
        self.core.give(id, found, self.now).unwrap();
        there
    }

    /// Has the server look at its jobs at this time.
    fn end_jobs(&mut self, now: Instant) {
        for done in self.core.jobs.done(now) {
            self.core.on_done(done, now);
        }
    }

    /// A model that is held.
    fn held(&mut self, name: &str) -> Found {
        let id = self.load(name, 1000, 0);
        let loaded = self.loaded(id);
        self.core.on_loaded(id, Ok(loaded), self.now);
        self.core.cache.get(id).unwrap().found.clone()
    }

    /// Has the server see that a client asks for something.
    fn say(&mut self, client: &OwnedFd, request: &Request, file: Option<&fs::File>) {
        packet_socket::send(client, &request.encode(), file.map(AsFd::as_fd)).unwrap();
        self.core.turn().unwrap();
    }

    /// Has the server see that a client asks for this model.
    fn say_attach(&mut self, client: &OwnedFd, found: &Found) {
        let file = fs::File::open(&found.path).unwrap();
        let target = Target::Path(found.path.clone());
        let request = Request::Attach { target, format: "raw".to_owned(), align_bytes: 0 };
        self.say(client, &request, Some(&file));
    }

    /// Ends the newest connection, as for a client that does what it must not.
    fn disconnect_newest(&mut self) {
        let id = *self.core.connections.keys().next_back().unwrap();
        self.core.disconnect(id, Some(ClientFault::Silent), self.now);
    }

    /// Returns the client and the refusal, if another connection of this user is refused.
    fn connect(&mut self, uid: u32) -> (OwnedFd, Option<String>) {
        let (here, there) = packet_socket::pair().unwrap();
        self.core.admit(here, Peer { pid: 1, uid, gid: uid }, self.now);
        let refused = refusal(&there);
        (there, refused)
    }

    /// Lets the server go on until a client hears something. Returns all that it hears.
    fn answer(&mut self, client: &OwnedFd) -> Vec<Reply> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let told = heard(client);
            assert!(Instant::now() < deadline, "it hears something");
            if told.iter().any(|reply| !matches!(reply, Reply::Progress { .. })) {
                return told;
            }
            self.core.turn().unwrap();
        }
    }
}

/// The error of a load for which the hugetlb pool has too few pages.
fn pool_lacks_pages(needed_pages: u64, available_pages: u64) -> longshore_load::Error {
    longshore_load::Error::Heap(longshore_heap::Error::Unavailable {
        heap: Heap::Hugetlb,
        reason: longshore_heap::Unavailability::HugetlbPool { needed_pages, available_pages },
        source: std::io::Error::from_raw_os_error(libc::ENOMEM),
    })
}

/// Returns all replies to a client.
fn heard(client: &OwnedFd) -> Vec<Reply> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let next = || {
        let packet = packet_socket::receive(client, &mut bytes).ok()?;
        // A connection that was ended has an end.
        let packet = Some(packet).filter(|packet| packet.len_bytes > 0)?;
        Some(Reply::decode(&bytes[..packet.len_bytes]).unwrap())
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn clients_that_wait_for_a_load_that_has_not_begun_get_messages() {
    let mut still = Still::new();
    let (queued, begun) = (still.load("queued", 1000, 0), still.load("begun", 2000, 5));
    let clients = [still.waiter(queued), still.waiter(begun)];
    still.core.beat(still.now + BEAT_EVERY - Duration::from_secs(1));
    assert!(clients.iter().all(|client| heard(client).is_empty()));
    for beat in 1..3 {
        let now = still.core.next_beat;
        still.core.beat(now);
        let told = heard(&clients[0]);
        let [Reply::Progress { done_bytes: 0, total_bytes: 1000, .. }] = told[..] else {
            panic!("beat {beat}: {told:?}")
        };
        assert_eq!(still.core.next_beat, now + BEAT_EVERY);
    }
    assert!(heard(&clients[1]).is_empty(), "of that one its load tells");
}

#[test]
fn a_waiter_that_is_gone_when_its_load_ends_has_nothing() {
    let mut still = Still::new();
    let id = still.load("model", 1000, 0);
    let (gone, there) = (still.waiter(id), still.waiter(id));
    drop(gone);
    let loaded = still.loaded(id);
    still.core.on_loaded(id, Ok(loaded), still.now);
    let told = heard(&there);
    assert!(matches!(told[..], [Reply::Attached { files: 1, .. }, Reply::File { .. }]), "{told:?}");
    assert_eq!(still.core.cache.get(id).unwrap().attachments, 1);
    assert_eq!(still.core.connections.len(), 1);
    drop(there);
    still.core.turn().unwrap();
    assert_eq!(still.core.cache.get(id).unwrap().attachments, 0);
}

#[test]
fn a_sweep_closes_the_inodes_of_deleted_files_and_marks_changed_ones() {
    let mut still = Still::new();
    let ids = ["fresh", "written", "deleted"].map(|name| {
        let id = still.load(name, 1000, 0);
        let loaded = still.loaded(id);
        still.core.on_loaded(id, Ok(loaded), still.now);
        still.core.cache.attach(id, still.now);
        id
    });
    let path = |name: &str| still.dir.path().join(name);
    fs::write(path("written"), b"anew").unwrap();
    fs::remove_file(path("deleted")).unwrap();
    let due = still.core.next_sweep().unwrap();
    still.core.sweep(due - Duration::from_secs(1));
    assert_eq!(still.core.next_sweep(), Some(due), "it is not time yet");
    still.core.sweep(due);
    assert_eq!(still.core.next_sweep(), None, "there is one at a time, which goes on");
    while still.core.next_sweep().is_none() {
        still.core.turn().unwrap();
    }
    let state = ids.map(|id| {
        let model = still.core.cache.get(id).unwrap();
        (model.is_stale, model.found.inodes.is_some())
    });
    assert_eq!(state, [(false, true), (true, true), (true, false)]);
    assert_eq!(still.core.cache.open_files(), 2);
}

#[test]
fn looks_of_one_user_that_hang_stop_no_sweep() {
    const COUNT: u64 = 10;
    let mut still = Still::new();
    let names: Vec<String> = (1..=COUNT).map(|number| format!("of mallory {number}")).collect();
    let mut clients: Vec<OwnedFd> = names.iter().map(|name| still.ask(MALLORY, name)).collect();
    clients.extend(["written", "deleted", "fresh"].map(|name| still.ask(ALICE, name)));
    for client in &clients {
        still.answer(client);
    }
    let root = still.dir.path().to_owned();
    let deleted = |still: &Still, id| still.core.cache.get(id).unwrap().found.inodes.is_none();
    let is_stale = |still: &Still, id| still.core.cache.get(id).unwrap().is_stale;
    still.core.jobs.hanging.extend(1..=COUNT);
    fs::write(root.join("written"), b"anew").unwrap();
    for name in ["deleted", &names[0]] {
        fs::remove_file(root.join(name)).unwrap();
    }
    let begin = still.core.next_sweep().unwrap();
    still.core.sweep(begin);
    // None of them waits for the looks that hang, and what is deleted is seen without a look.
    while (COUNT + 1..=COUNT + 3).any(|id| still.core.sweeps.has_left(id)) {
        still.core.turn().unwrap();
    }
    assert!(deleted(&still, 1) && deleted(&still, COUNT + 2));
    assert_eq!([1, 3].map(|id| is_stale(&still, COUNT + id)), [true, false]);
    assert_eq!(still.core.next_sweep(), None, "some looks go on");
    // They are given up, and no others of this user begin: each sweep ends.
    let later = Instant::now() + Duration::from_secs(20);
    still.end_jobs(later);
    let next = still.core.next_sweep().expect("the sweep is over");
    assert_eq!(still.core.jobs.hung_descriptors(Of::All), 2 * 7);
    fs::remove_file(root.join("fresh")).unwrap();
    still.core.sweep(next.max(later));
    while still.core.next_sweep().is_none() {
        still.core.turn().unwrap();
    }
    assert!(deleted(&still, COUNT + 3));
}

#[test]
fn a_list_waits_for_a_disk_that_hangs_only_for_a_time() {
    let mut still = Still::new();
    let id = still.load("model", 1000, 0);
    let clients = [still.waiter(id), still.waiter(id), still.waiter(id)];
    let connected: Vec<u64> = still.core.connections.keys().copied().collect();
    let list = |still: &mut Still, number: usize, now| {
        let connection = still.core.connections.get_mut(&connected[number]).unwrap();
        connection.enter(Phase::Listing { attached: None }, now);
        still.core.list_after_sweep(connected[number], now);
    };
    let begin = still.now;
    list(&mut still, 0, begin);
    list(&mut still, 1, begin + Duration::from_millis(500));
    // Nothing comes back: this server takes no turn.
    still.core.sweep(begin + Duration::from_millis(900));
    assert!(clients.iter().all(|client| heard(client).is_empty()));
    still.core.sweep(begin + Duration::from_secs(1));
    let is_list = |told: &[Reply]| matches!(told, [.., Reply::Held(_), Reply::End]);
    assert!(is_list(&heard(&clients[0])) && heard(&clients[1]).is_empty());
    list(&mut still, 2, begin + Duration::from_secs(1));
    assert!(is_list(&heard(&clients[2])), "it is known by now that the disk hangs");
    still.core.sweep(begin + Duration::from_millis(1500));
    assert!(is_list(&heard(&clients[1])));
}

/// The words of a refusal, if that is the last that a client heard.
fn refusal(client: &OwnedFd) -> Option<String> {
    match heard(client).pop() {
        Some(Reply::Refused { reason: Reason::TooMany, message }) => Some(message),
        _ => None,
    }
}

const ALICE: u32 = 2001;
const MALLORY: u32 = 2002;

#[test]
fn the_files_and_memory_of_models_have_no_more_descriptors_than_there_may_be() {
    let mut still = Still::new();
    still.core.open_files_max = 40;
    let mut clients: Vec<OwnedFd> =
        (0..6).map(|number| still.ask(MALLORY, &format!("m{number}"))).collect();
    assert!(clients.iter().all(|client| refusal(client).is_none()));
    // Each model has an inode and memory; one is loaded, and one is sent.
    let refused = refusal(&still.ask(MALLORY, "one more")).unwrap();
    assert!(refused.starts_with("3 more descriptors"), "{refused}");
    assert!(refused.contains("user 2002 may have 20 for models and has 18"), "{refused}");
    assert!(refused.contains("LimitNOFILE="), "{refused}");
    // Half is for others.
    clients.push(still.ask(ALICE, "of alice"));
    assert_eq!(refusal(&clients[6]), None);
    // Also of the deleted ones.
    for client in &clients {
        still.answer(client);
    }
    for number in 0..6 {
        fs::remove_file(still.dir.path().join(format!("m{number}"))).unwrap();
    }
    let ids: Vec<u64> = still.core.cache.iter().map(|(id, _)| id).collect();
    still.core.on_deleted(ids[..6].to_vec(), still.now);
    for number in 0..3 {
        clients.push(still.ask(MALLORY, &format!("n{number}")));
        still.answer(&clients[7 + number]);
    }
    let refused = refusal(&still.ask(MALLORY, "one more")).unwrap();
    assert!(refused.contains("may have 20 for models and has 12"), "{refused}");
    // A model that another user has loaded counts, too.
    let shared = still.core.cache.get(ids[6]).unwrap().found.clone();
    still.core.open_files_max = 26;
    let refused = refusal(&still.ask_for(MALLORY, shared.clone())).unwrap();
    assert!(refused.contains("may have 13 for models and has 12"), "{refused}");
    still.core.open_files_max = 40;
    let client = still.ask_for(MALLORY, shared);
    assert!(matches!(heard(&client)[..], [Reply::Attached { .. }, Reply::File { .. }]));
}

#[test]
fn unused_models_make_room_for_the_descriptors_of_others() {
    let mut still = Still::new();
    still.core.open_files_max = 5;
    let own = still.core.users.own().uid();
    let client = still.ask(own, "first");
    still.answer(&client);
    for name in ["second", "third", "fourth", "fifth"] {
        let client = still.ask(own, name);
        assert!(matches!(still.answer(&client)[..], [.., Reply::File { .. }]), "{name}");
        drop(client);
        // The server sees that the client is gone.
        still.core.turn().unwrap();
    }
    assert!(still.core.cache.get(1).is_some(), "it is attached");
    assert!(still.core.cache.len() < 5);
}

#[test]
fn for_memory_that_is_missing_go_as_many_as_it_takes_and_none_for_nothing() {
    let mut still = Still::new();
    let held: Vec<u64> = ["a", "b", "c"]
        .map(|name| {
            let id = still.load(name, 1000, 0);
            let loaded = still.loaded(id);
            still.core.on_loaded(id, Ok(loaded), still.now);
            still.now += Duration::from_secs(1);
            id
        })
        .to_vec();
    let wanted = still.load("d", 1000, 0);
    let client = still.waiter(wanted);
    let missing = |missing_bytes: u64| {
        Err(longshore_load::Error::NotEnoughMemory {
            needed_bytes: 5000 + missing_bytes,
            limit_bytes: 5000,
            limit: longshore_load::MemoryLimit::Load,
        })
    };
    let holds = |still: &Still| -> Vec<u64> { still.core.cache.iter().map(|(id, _)| id).collect() };
    still.core.on_loaded(wanted, missing(1001), still.now);
    assert_eq!(holds(&still), [held[2], wanted], "the longest unused are gone");
    assert!(heard(&client).is_empty() && still.core.loads.contains_key(&wanted), "it began anew");
    still.core.on_loaded(wanted, missing(1001), still.now);
    assert_eq!(holds(&still), [held[2]], "that would not have been enough");
    let told = heard(&client);
    assert!(matches!(told[..], [Reply::Refused { reason: Reason::NoMemory, .. }]), "{told:?}");
}

#[test]
fn subordinate_ids_share_the_connections_of_their_owner() {
    let mut still = Still::new();
    still.core.users = Users::parse(900, "1000:100000:65536\n", "");
    still.core.limits.clients = 4;
    let mut clients = Vec::new();
    let mut admit = |uid: u32| {
        let before = still.core.connections.len();
        let (here, there) = packet_socket::pair().unwrap();
        clients.push(there);
        still.core.admit(here, Peer { pid: 1, uid, gid: uid }, still.now);
        still.core.connections.len() > before
    };
    assert!((100_000..100_004).all(&mut admit));
    assert!(!admit(100_004) && !admit(1000), "these are the same user");
    assert!((2000..2004).all(&mut admit));
    assert!([0; 8].into_iter().all(&mut admit), "root has no such limit");
}

#[test]
fn users_of_many_ids_leave_room_for_another_user() {
    let mut still = Still::new();
    still.core.options.clients_max = 64;
    still.core.limits.clients = 64;
    let mut clients = Vec::new();
    let mut admit = |uid: u32| {
        let before = still.core.connections.len();
        let (here, there) = packet_socket::pair().unwrap();
        clients.push(there);
        still.core.admit(here, Peer { pid: 1, uid, gid: uid }, still.now);
        still.core.connections.len() > before
    };
    let admitted = [5001, 5002, 5003, 5004].map(|uid| (0..64).filter(|_| admit(uid)).count());
    assert_eq!(admitted, [32, 16, 8, 4]);
    assert!(admit(6000));
}

#[test]
fn without_descriptors_no_client_is_given_a_file_position_of_another() {
    const IS_CHILD: &str = "LONGSHORE_TEST_WITHOUT_DESCRIPTORS";
    if std::env::var_os(IS_CHILD).is_none() {
        // Other tests need descriptors, so this one runs in a process of its own.
        let name = "server::core::tests::\
                    without_descriptors_no_client_is_given_a_file_position_of_another";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(IS_CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        let failed = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{said}{failed}");
        return;
    }
    let mut still = Still::new();
    let id = still.load("model", 1000, 0);
    let loaded = still.loaded(id);
    let client = still.waiter(id);
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let none = rustix::process::Rlimit { current: Some(0), ..before };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
    still.core.on_loaded(id, Ok(loaded), still.now);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
    let told = heard(&client);
    assert!(matches!(told[..], [Reply::Refused { reason: Reason::TooMany, .. }]), "{told:?}");
    assert_eq!(still.core.cache.get(id).unwrap().attachments, 0);
}

#[test]
fn a_file_of_the_start_is_pinned_by_its_own_path() {
    let mut still = Still::new();
    let started = still.found("started", 1000);
    let link = started.path.with_file_name("link");
    std::os::unix::fs::symlink("started", &link).unwrap();
    let look = |still: &Still, path: &std::path::Path| match still.core.served.look(
        path,
        started.layout,
        None,
    ) {
        Looked::Found(found) => found.unwrap(),
        other => panic!("{other:?}"),
    };
    // A client asked for it first, by another path.
    let id = still.core.cache.insert(look(&still, &link), still.now);
    let load = Load { user: still.core.users.own(), cancel: CancelToken::new(), done_bytes: 0 };
    still.core.loads.insert(id, load);
    let loaded = still.loaded(id);
    still.core.starting.insert(0, started.path.clone());
    still.core.on_start_looked(0, Looked::Found(Ok(started.clone())), still.now);
    still.core.on_loaded(id, Ok(loaded), still.now);
    let pinned = still.core.cache.get(id).unwrap();
    assert!(pinned.is_pinned);
    assert_eq!(pinned.found.path, started.path);
    // The path of that client leads to another file, and the file has a new version.
    fs::remove_file(&link).unwrap();
    let other = still.load("link", 500, 0);
    let loaded = still.loaded(other);
    still.core.on_loaded(other, Ok(loaded), still.now);
    assert!(!still.core.cache.get(other).unwrap().is_pinned);
    let newer = still.load("started", 600, 0);
    let loaded = still.loaded(newer);
    still.core.on_loaded(newer, Ok(loaded), still.now);
    assert!(still.core.cache.get(newer).unwrap().is_pinned);
    assert!(!still.core.cache.get(id).unwrap().is_pinned);
}

#[test]
fn a_path_that_changes_during_a_load_makes_it_stale_for_no_other_path() {
    for has_other_path in [true, false] {
        let mut still = Still::new();
        let id = still.load("model", 1000, 0);
        let loaded = still.loaded(id);
        let _client = still.waiter(id);
        let found = still.core.cache.get(id).unwrap().found.clone();
        let other = found.path.with_file_name("other");
        if has_other_path {
            let files = vec![(other.clone(), found.files[0].1)];
            let other = Found { path: other.clone(), files, ..found.without_inodes() };
            let connection = still.core.connections.values_mut().next_back().unwrap();
            connection.asked_for = Some(Arc::new(other));
        }
        still.core.cache.get_mut(id).unwrap().is_stale = true;
        still.core.on_loaded(id, Ok(loaded), still.now);
        let model = still.core.cache.get(id).unwrap();
        assert_eq!(model.is_stale, !has_other_path);
        assert_eq!(model.found.path == other, has_other_path);
        assert!(model.found.inodes.is_some());
    }
}

#[test]
fn lists_that_a_user_does_not_read_are_bounded() {
    let mut still = Still::new();
    let mut found = still.found("model", 10);
    found.path = PathBuf::from("/".to_owned() + &"x".repeat(4000));
    for _ in 0..1000 {
        still.core.cache.insert(found.clone(), still.now);
    }
    let mut list = |uid| {
        let (here, there) = packet_socket::pair().unwrap();
        still.core.admit(here, Peer { pid: 1, uid, gid: uid }, still.now);
        let id = *still.core.connections.keys().next_back().unwrap();
        let connection = still.core.connections.get_mut(&id).unwrap();
        connection.enter(Phase::Listing { attached: None }, still.now);
        still.core.list(id, still.now);
        there
    };
    let clients = [2001, 2001, 2001, 2001, 2002].map(&mut list);
    let is_list = |client| matches!(heard(client)[..], [Reply::Root { .. }, Reply::Held(_), ..]);
    assert!(is_list(&clients[0]) && is_list(&clients[1]));
    for refused in &clients[2..4] {
        let told = heard(refused);
        assert!(matches!(&told[..], [Reply::Refused { reason: Reason::TooMany, .. }]), "{told:?}");
    }
    assert!(is_list(&clients[4]), "it is another user");
}

#[test]
fn a_client_that_has_not_read_the_memory_it_was_sent_is_sent_no_more() {
    let mut still = Still::new();
    let found = still.held("model");
    let reads = still.ask_for(MALLORY, found.clone());
    for _ in 0..3 {
        assert!(matches!(heard(&reads)[..], [Reply::Attached { .. }, Reply::File { .. }]));
        still.say(&reads, &Request::Release, None);
        assert!(matches!(heard(&reads)[..], [Reply::Released]));
        still.say_attach(&reads, &found);
        let watch = [Watch { fd: reads.as_fd(), read: true, write: false }];
        while !readiness::wait(&watch, Some(Instant::now())).unwrap()[0].read {
            still.core.turn().unwrap();
        }
    }
    assert_eq!(still.core.connections.len(), 1);
    let floods = still.ask_for(MALLORY, found.clone());
    still.say(&floods, &Request::Release, None);
    still.say_attach(&floods, &found);
    assert_eq!(still.core.connections.len(), 1, "it is disconnected");
    let why = still.core.events.iter().find_map(|event| match event {
        Event::Disconnected { why, .. } => Some(why.to_string()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("it asks for more before it has read what it was given"));
    let told = heard(&floods);
    let [Reply::Attached { .. }, Reply::File { .. }, Reply::Released, Reply::Refused { .. }] =
        told[..]
    else {
        panic!("{told:?}")
    };
}

#[test]
fn connections_that_end_with_unread_memory_count_until_it_is_read_or_closed() {
    let mut still = Still::new();
    let found = still.held("model");
    still.core.limits.clients = 4;
    still.core.options.clients_max = 100;
    let has_read = still.ask_for(MALLORY, found.clone());
    heard(&has_read);
    still.disconnect_newest();
    assert_eq!(still.core.unread.count(), 0, "the memory was read, and only the farewell was not");
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(still.ask_for(MALLORY, found.clone()));
        still.disconnect_newest();
    }
    let id = still.core.cache.find(&found).unwrap();
    assert_eq!(still.core.cache.get(id).unwrap().attachments, 0);
    let refused = still.connect(MALLORY).1.unwrap();
    assert!(refused.starts_with("user 2002 has 4 connections (4 have ended"), "{refused}");
    let _alice = match still.connect(ALICE) {
        (alice, None) => alice,
        refused => panic!("{refused:?}"),
    };
    // They take connections of all users, too.
    still.core.options.clients_max = 5;
    let refused = still.connect(0).1.unwrap();
    assert!(refused.starts_with("5 clients are connected"), "{refused}");
    still.core.options.clients_max = 100;
    // It can still be read, and then the connection is free again, as when the client closes its end.
    let told = heard(&clients[0]);
    assert!(matches!(told[..], [Reply::Attached { .. }, _, Reply::Refused { .. }]), "{told:?}");
    let first = still.connect(MALLORY);
    assert_eq!(first.1, None);
    assert!(still.connect(MALLORY).1.is_some());
    drop(clients.pop());
    let second = still.connect(MALLORY);
    assert_eq!(second.1, None);
    assert!(still.connect(MALLORY).1.is_some());
    assert_eq!(still.core.unread.count(), 2);
}

#[test]
fn ended_connections_are_closed_without_new_ones_and_after_the_client_sent_its_own_end() {
    let mut still = Still::new();
    let found = still.held("model");
    let closed = still.ask_for(MALLORY, found.clone());
    still.disconnect_newest();
    let sent = still.ask_for(MALLORY, found.clone());
    packet_socket::send(&sent, b"its own end", Some(sent.as_fd())).unwrap();
    still.disconnect_newest();
    // With another descriptor in one message, which the server does not receive.
    let sent_with_another = still.ask_for(MALLORY, found.clone());
    send_all(&sent_with_another, &[sent_with_another.as_fd(), closed.as_fd()]);
    still.disconnect_newest();
    // In the queue of a socket that is sent.
    let (nest, nested_in) = packet_socket::pair().unwrap();
    let nested = still.ask_for(MALLORY, found);
    send_all(&nested_in, &[nested.as_fd(), closed.as_fd()]);
    packet_socket::send(&nested, b"nest", Some(nest.as_fd())).unwrap();
    still.disconnect_newest();
    assert_eq!(still.core.unread.count(), 4);
    drop((closed, sent, sent_with_another, nested, nest, nested_in));
    let deadline = Instant::now() + Duration::from_secs(60);
    while still.core.unread.count() > 0 {
        assert!(Instant::now() < deadline, "they are closed");
        still.core.turn().unwrap();
    }
    assert_eq!(still.core.unread.next_time(), None);
}

/// Sends descriptors in one message.
fn send_all(socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let parts = [IoSlice::new(b"several")];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::empty()).unwrap();
}

#[test]
fn clients_are_refused_while_too_many_descriptors_are_in_flight() {
    const IS_CHILD: &str = "LONGSHORE_TEST_IN_FLIGHT";
    if std::env::var_os(IS_CHILD).is_none() {
        // The limit and the capabilities are those of a process of its own.
        let name = "server::core::tests::\
                    clients_are_refused_while_too_many_descriptors_are_in_flight";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(IS_CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        let failed = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{said}{failed}");
        return;
    }
    let mut still = Still::new();
    let ids = ["at once", "queued"].map(|name| still.load(name, 1000, 0));
    let loaded = ids.map(|id| still.loaded(id));
    let clients = ids.map(|id| still.waiter(id));
    // The second has no room for its answer.
    let queued = still.core.connections.values_mut().next_back().unwrap();
    let progress = Reply::Progress { done_bytes: 0, total_bytes: 1000, elapsed_ms: 0 };
    while queued.unsent_bytes() == 0 {
        queued.send(&progress, still.now).unwrap();
    }
    let pairs: Vec<_> = (0..4).map(|_| packet_socket::pair().unwrap()).collect();
    without_capabilities();
    // The kernel counts the descriptors in flight of other processes of this user, too.
    let limit = descriptors::open_count().unwrap() + 32;
    let per_pair = limit as usize / pairs.len() + 1;
    for (here, there) in &pairs {
        for _ in 0..per_pair {
            packet_socket::send(here, b"x", Some(there.as_fd())).unwrap();
        }
    }
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(limit), ..before };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    for (id, loaded) in ids.into_iter().zip(loaded) {
        still.core.on_loaded(id, Ok(loaded), still.now);
    }
    let is_refusal =
        |reply: &Reply| matches!(reply, Reply::Refused { reason: Reason::TooMany, .. });
    let told = heard(&clients[0]);
    assert!(matches!(&told[..], [reply] if is_refusal(reply)), "{told:?}");
    let told = still.answer(&clients[1]);
    assert!(told.last().is_some_and(is_refusal), "{told:?}");
    assert_eq!(ids.map(|id| still.core.cache.get(id).unwrap().attachments), [0, 0]);
    assert_eq!(still.core.connections.len(), 2);
    assert!(still.core.connections.values().all(|it| matches!(it.phase, Phase::Idle)));
    // They may try again.
    rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
    drop(pairs);
    let found = still.core.cache.get(ids[0]).unwrap().found.clone();
    let connection = *still.core.connections.keys().next().unwrap();
    still.core.give(connection, found, still.now).unwrap();
    assert!(matches!(heard(&clients[0])[..], [Reply::Attached { .. }, Reply::File { .. }]));
}

/// Has this thread be subject to the limit of descriptors in flight, as the thread of a server that
/// does not run as root.
fn without_capabilities() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective -= CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets).unwrap();
}
