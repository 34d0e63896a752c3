//! A server that manages published models: adoption, new versions, eviction.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_load::{
    Error as LoadError, Manifest, Outcome, PublishProblem, PublishedModels, Publisher,
};
use longshore_serve::{
    Error, Eviction, Keep, PublishEvent, PublishManager, PublishOptions, PublishTrouble, Stop,
};

/// The time after which a test fails if an event does not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sources on a disk, and a directory in `/dev/shm`.
struct Fixture {
    disk: tempfile::TempDir,
    shm: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Option<Self> {
        let Ok(shm) = tempfile::tempdir_in("/dev/shm") else {
            println!("SKIPPED: /dev/shm is missing");
            return None;
        };
        if matches!(
            Publisher::new(shm.path()).publish(Path::new("/no/such")),
            Err(LoadError::Publish { reason: PublishProblem::NotTmpfs, .. })
        ) {
            println!("SKIPPED: /dev/shm is not a tmpfs");
            return None;
        }
        Some(Self { disk: tempfile::tempdir_in("/var/tmp").unwrap(), shm })
    }

    /// Writes a model of about a megabyte.
    fn model(&self, name: &str) -> PathBuf {
        let path = self.disk.path().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("config.json"), "{}").unwrap();
        fs::write(path.join("weights.bin"), vec![7; 1 << 20]).unwrap();
        path
    }

    fn publish(&self, source: &Path) {
        Publisher::new(self.shm.path()).publish(source).unwrap();
    }

    fn options(&self) -> PublishOptions {
        let mut options = PublishOptions::new(self.shm.path());
        // No pressure of the machine.
        options.pressure = Some(vec![self.pressure(0)]);
        options
    }

    /// Writes a file with this memory pressure.
    fn pressure(&self, total_us: u64) -> PathBuf {
        let path = self.disk.path().join("pressure");
        let line = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n");
        fs::write(&path, line).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let models = PublishedModels::open(self.shm.path()).unwrap().list().unwrap();
        models.into_iter().map(|model| model.name).collect()
    }
}

/// A running manager.
struct Running {
    stop: Stop,
    events: Receiver<PublishEvent>,
    thread: JoinHandle<longshore_serve::Result<()>>,
}

impl Running {
    fn start(options: PublishOptions) -> Self {
        let stop = Stop::new().unwrap();
        let manager = PublishManager::new(options, stop.clone()).unwrap();
        let (sender, events) = mpsc::channel();
        let thread = thread::spawn(move || {
            // Events cannot be cloned, because errors cannot.
            manager.run(|event| drop(sender.send(copied(event))))
        });
        Self { stop, events, thread }
    }

    /// Waits for the next event that `wanted` accepts.
    fn wait<T>(&self, mut wanted: impl FnMut(&PublishEvent) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).expect("the event does not come");
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    }

    fn ready(&self) -> usize {
        self.wait(|event| match event {
            PublishEvent::Ready { models, .. } => Some(*models),
            _ => None,
        })
    }

    fn evicted(&self) -> (String, Eviction) {
        self.wait(|event| match event {
            PublishEvent::Evicted { name, why, .. } => Some((name.clone(), *why)),
            _ => None,
        })
    }

    fn published(&self) -> (String, Outcome) {
        self.wait(|event| match event {
            PublishEvent::Published { name, published, .. } => {
                Some((name.clone(), published.outcome))
            }
            _ => None,
        })
    }

    fn end(self) {
        self.stop.stop();
        self.thread.join().unwrap().unwrap();
    }
}

/// Returns an event with the same fields, but with the text of its error.
fn copied(event: &PublishEvent) -> PublishEvent {
    let refused =
        |text: String| LoadError::Open { path: text.into(), source: io::Error::other("") };
    match event {
        PublishEvent::Adopted { name, content_bytes, is_pinned } => PublishEvent::Adopted {
            name: name.clone(),
            content_bytes: *content_bytes,
            is_pinned: *is_pinned,
        },
        PublishEvent::Published { name, source, published } => PublishEvent::Published {
            name: name.clone(),
            source: source.clone(),
            published: published.clone(),
        },
        PublishEvent::Failed { source, error } => {
            PublishEvent::Failed { source: source.clone(), error: refused(error.to_string()) }
        }
        PublishEvent::Evicted { name, content_bytes, why } => {
            PublishEvent::Evicted { name: name.clone(), content_bytes: *content_bytes, why: *why }
        }
        PublishEvent::Ready { directory, models } => {
            PublishEvent::Ready { directory: directory.clone(), models: *models }
        }
        PublishEvent::Trouble { path, problem } => PublishEvent::Trouble {
            path: path.clone(),
            problem: match problem {
                PublishTrouble::Incomplete => PublishTrouble::Incomplete,
                other => PublishTrouble::Failed(refused(other.to_string())),
            },
        },
        _ => PublishEvent::Stopping,
    }
}

#[test]
fn a_restarted_server_adopts_the_models_and_reads_nothing() {
    let Some(fixture) = Fixture::new() else { return };
    let (llama, other) = (fixture.model("llama"), fixture.model("other"));
    fixture.publish(&other);
    let mut options = fixture.options();
    options.preload = vec![llama.clone()];
    let first = Running::start(options);
    assert_eq!(first.published(), ("llama".to_owned(), Outcome::New));
    assert_eq!(first.ready(), 2);
    let mut held = File::open(fixture.shm.path().join("llama/weights.bin")).unwrap();
    first.end();
    assert_eq!(fixture.names(), ["llama", "other"]);

    // A publisher and a server were killed meanwhile.
    fs::create_dir(fixture.shm.path().join(".x.0123456789abcdef.partial")).unwrap();
    let mut options = fixture.options();
    options.preload = vec![llama.clone()];
    let second = Running::start(options);
    let mut adopted = Vec::new();
    let outcome = second.wait(|event| match event {
        PublishEvent::Adopted { name, .. } => {
            adopted.push(name.clone());
            None
        }
        PublishEvent::Published { published, .. } => Some(published.outcome),
        _ => None,
    });
    assert_eq!((adopted, outcome), (fixture.names(), Outcome::AlreadyPublished));
    assert_eq!(second.ready(), 2);
    assert!(!fixture.shm.path().join(".x.0123456789abcdef.partial").exists());
    second.end();

    // The source is not reachable at the next start: the published model stays.
    fs::rename(&llama, fixture.disk.path().join("away")).unwrap();
    let mut options = fixture.options();
    options.preload = vec![llama];
    let third = Running::start(options);
    assert_eq!(third.ready(), 2);
    third.end();
    let mut content = Vec::new();
    io::Read::read_to_end(&mut held, &mut content).unwrap();
    assert_eq!(content, vec![7; 1 << 20]);
}

#[test]
fn a_server_starts_with_the_older_version_of_a_source_that_is_missing() {
    let Some(fixture) = Fixture::new() else { return };
    let disk = fixture.disk.path();
    let file = fixture.model("llama").join("w-00001-of-00001.safetensors");
    let header = b"{\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}  ";
    fs::write(&file, [&(header.len() as u64).to_le_bytes()[..], header].concat()).unwrap();
    let repository = disk.join("models--org--x");
    let revision = repository.join("snapshots/abc");
    fs::create_dir_all(repository.join("blobs")).unwrap();
    fs::create_dir_all(&revision).unwrap();
    fs::write(revision.join("config.json"), "{}").unwrap();
    fixture.publish(&file);
    fixture.publish(&revision);
    assert_eq!(fixture.names(), ["org--x", "w"]);
    fs::remove_file(&file).unwrap();
    fs::remove_dir_all(&repository).unwrap();
    let mut options = fixture.options();
    options.preload = vec![file, revision];
    let running = Running::start(options);
    assert_eq!(running.ready(), 2);
    running.end();
    // A model of this name that was published from another source is not an older version.
    let mut options = fixture.options();
    options.preload = vec![disk.join("other/w.gguf")];
    assert!(PublishManager::new(options, Stop::new().unwrap()).is_err());
}

#[test]
fn a_new_version_of_a_source_is_published_and_a_damaged_one_is_not() {
    let Some(fixture) = Fixture::new() else { return };
    let llama = fixture.model("llama");
    let mut options = fixture.options();
    options.preload = vec![llama.clone()];
    let running = Running::start(options);
    running.ready();
    fs::write(llama.join("config.json"), "{\"new\": 1}").unwrap();
    assert_eq!(running.published(), ("llama".to_owned(), Outcome::Replaced));
    let config = fixture.shm.path().join("llama/config.json");
    assert_eq!(fs::read(&config).unwrap(), b"{\"new\": 1}");
    fs::write(llama.join("model.safetensors"), "not one").unwrap();
    running.wait(|event| matches!(event, PublishEvent::Failed { .. }).then_some(()));
    assert!(!fixture.shm.path().join("llama/model.safetensors").exists());
    // It was removed by hand, and is published again when its source is valid.
    fs::remove_file(llama.join("model.safetensors")).unwrap();
    fs::remove_dir_all(fixture.shm.path().join("llama")).unwrap();
    assert_eq!(running.published(), ("llama".to_owned(), Outcome::New));
    running.end();
}

#[test]
fn new_permissions_of_a_source_are_those_of_the_model() {
    let Some(fixture) = Fixture::new() else { return };
    let llama = fixture.model("llama");
    let mut options = fixture.options();
    options.preload = vec![llama.clone()];
    let running = Running::start(options);
    running.ready();
    let weights = fixture.shm.path().join("llama/weights.bin");
    let before = weights.metadata().unwrap();
    fs::set_permissions(llama.join("weights.bin"), Permissions::from_mode(0o600)).unwrap();
    assert_eq!(running.published(), ("llama".to_owned(), Outcome::AccessChanged));
    let after = weights.metadata().unwrap();
    assert_eq!((after.mode() & 0o777, after.ino()), (0o400, before.ino()));
    running.end();
}

/// A source that changes from one look to the next is not published, but its permissions are followed.
#[test]
fn permissions_of_a_source_that_changes_all_the_time_are_followed() {
    let Some(fixture) = Fixture::new() else { return };
    let llama = fixture.model("llama");
    let mut options = fixture.options();
    options.preload = vec![llama.clone()];
    let running = Running::start(options);
    running.ready();
    let mode = || fixture.shm.path().join("llama/weights.bin").metadata().unwrap().mode() & 0o777;
    assert_eq!(mode(), 0o444);
    fs::set_permissions(llama.join("weights.bin"), Permissions::from_mode(0o600)).unwrap();
    let began = Instant::now();
    while mode() != 0o400 {
        assert!(began.elapsed() < PATIENCE);
        fs::write(llama.join("config.json"), format!("{:?}", began.elapsed())).unwrap();
        thread::sleep(Duration::from_millis(200));
    }
    running.end();
}

/// In a directory in which other users may make names, too.
#[test]
fn a_source_of_another_user_is_published_once() {
    let Some(fixture) = Fixture::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: only root can publish for another user");
    }
    let llama = fixture.model("llama");
    fs::set_permissions(fixture.shm.path(), Permissions::from_mode(0o1777)).unwrap();
    for path in [llama.clone(), llama.join("config.json"), llama.join("weights.bin")] {
        std::os::unix::fs::chown(path, Some(65534), None).unwrap();
    }
    let sums = fixture.disk.path().join("sums");
    fs::write(&sums, "8a9136aa  other\n").unwrap();
    let mut options = fixture.options();
    options.preload = vec![llama];
    options.manifest = Some(Manifest::open(&sums).unwrap());
    let running = Running::start(options);
    assert_eq!(running.published(), ("llama".to_owned(), Outcome::New));
    assert_eq!(running.ready(), 1);
    let inode = || fixture.shm.path().join("llama").metadata().unwrap().ino();
    let first = inode();
    // Longer than two looks at the source.
    thread::sleep(Duration::from_secs(10));
    assert_eq!(inode(), first);
    running.end();
}

#[test]
fn a_directory_that_is_replaced_ends_the_server() {
    let Some(fixture) = Fixture::new() else { return };
    let folder = fixture.shm.path().join("models");
    fs::create_dir(&folder).unwrap();
    let mut options = fixture.options();
    options.directory.clone_from(&folder);
    let running = Running::start(options);
    running.ready();
    fs::rename(&folder, fixture.shm.path().join("away")).unwrap();
    fs::create_dir(&folder).unwrap();
    let error = running.thread.join().unwrap().unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("unmounted, renamed or removed"), "{cause}");
}

#[test]
fn unused_models_are_evicted_after_the_time_that_they_are_kept() {
    let Some(fixture) = Fixture::new() else { return };
    for name in ["held", "pinned", "unused", "preloaded"] {
        fixture.publish(&fixture.model(name));
    }
    let models = PublishedModels::open(fixture.shm.path()).unwrap();
    models.find("pinned").unwrap().set_pinned(true).unwrap();
    let held = File::open(fixture.shm.path().join("held/weights.bin")).unwrap();
    let mut options = fixture.options();
    options.keep = Keep::Idle(Duration::from_secs(1));
    options.preload = vec![fixture.disk.path().join("preloaded")];
    let running = Running::start(options);
    let (name, why) = running.evicted();
    assert_eq!(name, "unused");
    // Ten seconds are the least, because engines close files before they open others.
    assert!(matches!(why, Eviction::Unused(time) if time >= Duration::from_secs(10)), "{why}");
    assert_eq!(fixture.names(), ["held", "pinned", "preloaded"]);
    drop(held);
    assert_eq!(running.evicted().0, "held");
    running.end();
    assert_eq!(fixture.names(), ["pinned", "preloaded"]);
}

#[test]
fn a_model_that_was_never_used_is_kept_for_its_first_use() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.publish(&fixture.model("new"));
    fixture.publish(&fixture.model("used"));
    let mut options = fixture.options();
    options.keep = Keep::Attached;
    let running = Running::start(options);
    running.ready();
    thread::sleep(Duration::from_millis(50));
    // A program opens, reads and closes it between two looks.
    fs::read(fixture.shm.path().join("used/weights.bin")).unwrap();
    assert_eq!(running.evicted().0, "used");
    thread::sleep(Duration::from_secs(2));
    running.end();
    assert_eq!(fixture.names(), ["new"]);
}

#[test]
fn memory_pressure_evicts_the_model_that_was_not_used_for_longest() {
    let Some(fixture) = Fixture::new() else { return };
    for name in ["second", "first", "held"] {
        fixture.publish(&fixture.model(name));
        thread::sleep(Duration::from_millis(20));
    }
    let _held = File::open(fixture.shm.path().join("held/weights.bin")).unwrap();
    let running = Running::start(fixture.options());
    running.ready();
    fs::read(fixture.shm.path().join("second/weights.bin")).unwrap();
    fixture.pressure(2_000_000);
    assert_eq!(running.evicted(), ("first".to_owned(), Eviction::Pressure));
    // Without more pressure, nothing more is evicted.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(fixture.names(), ["held", "second"]);
    fixture.pressure(9_000_000);
    assert_eq!(running.evicted(), ("second".to_owned(), Eviction::Pressure));
    fixture.pressure(19_000_000);
    thread::sleep(Duration::from_secs(2));
    running.end();
    assert_eq!(fixture.names(), ["held"]);
}

#[test]
fn two_servers_or_sources_with_one_name_are_refused() {
    let Some(fixture) = Fixture::new() else { return };
    let running = Running::start(fixture.options());
    running.ready();
    let refused = PublishManager::new(fixture.options(), Stop::new().unwrap()).unwrap_err();
    let Error::Load(LoadError::Publish { reason, .. }) = refused else { panic!("{refused}") };
    assert_eq!(reason, PublishProblem::Managed);
    running.end();
    let mut options = fixture.options();
    let llama = fixture.model("llama");
    fixture.model("more/llama");
    options.preload = vec![llama, fixture.disk.path().join("more/llama")];
    let refused = PublishManager::new(options, Stop::new().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("more/llama"), "{refused}");
    let mut options = fixture.options();
    options.preload = vec![fixture.disk.path().join("no such")];
    let refused = PublishManager::new(options, Stop::new().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("no such"), "{refused}");
}
