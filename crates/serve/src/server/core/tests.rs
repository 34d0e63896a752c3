use std::fs;

use longshore_heap::{Heap, Sealing};
use longshore_load::FormatChoice;
use longshore_load::Loader;
use longshore_load::plan::PlannedFile;
use tempfile::TempDir;

use super::super::connection::Phase;
use super::super::jobs::LoadedModel;
use super::*;
use crate::protocol::MESSAGE_BYTES_MAX;
use crate::served::{Found, Looked};
use crate::shelf::Keep;

/// A server that takes a turn only where it is told to, and its directory.
struct Still {
    core: Core,
    dir: TempDir,
    now: Instant,
}

impl Still {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let listener = Listener::bind(&root.join("socket"), 0o600).unwrap();
        let served = Arc::new(Served::new(&[root], &[]).unwrap());
        let options = Options { keep: Keep::Always, ..Options::default() };
        let core = Core::new(listener, served, options, Stop::new().unwrap()).unwrap();
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

    /// A model that is said to be loaded, by nobody.
    fn load(&mut self, name: &str, len_bytes: usize, done_bytes: u64) -> u64 {
        let id = self.core.shelf.insert(self.found(name, len_bytes), self.now);
        self.core.loads.insert(id, Load { cancel: CancelToken::new(), done_bytes });
        id
    }

    fn loaded(&self, id: u64) -> LoadedModel {
        let plan = self.core.served.plan(&self.core.shelf.get(id).unwrap().found).unwrap();
        let loaded = Loader::new().heap(Heap::Memfd).load(&plan).unwrap();
        LoadedModel {
            memory: loaded.buffer.share(Sealing::Content).unwrap(),
            ranges: plan.files().iter().map(PlannedFile::buffer_range).collect(),
            elapsed: loaded.report.elapsed,
            pages: String::new(),
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

/// All that a client was told.
fn heard(client: &OwnedFd) -> Vec<Reply> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let next = || {
        let packet = packet_socket::receive(client, &mut bytes).ok()?;
        Some(Reply::decode(&bytes[..packet.len_bytes]).unwrap())
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn who_waits_for_a_load_that_has_not_begun_hears_of_it() {
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
    assert_eq!(still.core.shelf.get(id).unwrap().attachments, 1);
    assert_eq!(still.core.connections.len(), 1);
    drop(there);
    still.core.turn().unwrap();
    assert_eq!(still.core.shelf.get(id).unwrap().attachments, 0);
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
            limit_name: "a test".to_owned(),
            hint: "none",
        })
    };
    let holds = |still: &Still| -> Vec<u64> { still.core.shelf.iter().map(|(id, _)| id).collect() };
    still.core.on_loaded(wanted, missing(1001), still.now);
    assert_eq!(holds(&still), [held[2], wanted], "the longest unused are gone");
    assert!(heard(&client).is_empty() && still.core.loads.contains_key(&wanted), "it began anew");
    still.core.on_loaded(wanted, missing(1001), still.now);
    assert_eq!(holds(&still), [held[2]], "that would not have been enough");
    let told = heard(&client);
    assert!(matches!(told[..], [Reply::Refused { reason: Reason::NoMemory, .. }]), "{told:?}");
}
