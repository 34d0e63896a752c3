//! Published models: their use by other programs, pinning and evicting them.

mod place;

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use longshore_load::{
    Error, Outcome, PublishProblem, PublishedModel, PublishedModels, SourceState,
};
use place::{Place, with_tmpfs};

const NOBODY: u32 = 65534;

fn models(place: &Place) -> PublishedModels {
    PublishedModels::open(&place.tmpfs).unwrap()
}

fn find(place: &Place) -> PublishedModel {
    models(place).find("model").unwrap()
}

fn is_open(place: &Place) -> bool {
    find(place).usage().is_open.unwrap()
}

/// Waits until no file is open. Other tests of this program start programs, which have all descriptors
/// for a moment.
fn wait_until_unused(place: &Place) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_open(place) {
        assert!(Instant::now() < deadline, "a file stays open");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Evicts the model, unless it stays in use.
fn evict_unused(place: &Place) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match models(place).evict(&find(place), false) {
            Err(Error::Publish { reason: PublishProblem::InUse, .. })
                if Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            evicted => return evicted.unwrap(),
        }
    }
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> PublishProblem {
    match result.unwrap_err() {
        Error::Publish { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// A program that has a file open until its standard input is closed.
struct Holder(Child);

impl Holder {
    fn new(path: &Path) -> Self {
        let script = "exec 3< \"$0\" && echo open && read line";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn a_model_is_listed_with_its_use() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        fs::create_dir(place.tmpfs.join("other")).unwrap();
        let listed = models(place).list().unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        let model = &listed[0];
        assert_eq!(
            (model.name.as_str(), &model.source),
            ("model", &source.canonicalize().unwrap())
        );
        assert_eq!(model.content_bytes, SourceState::of(&source).unwrap().content_bytes());
        assert!(model.is_complete && !model.is_pinned);
        wait_until_unused(place);
        let before = model.usage().last_access;
        for name in ["model.safetensors", "onnx/model.onnx", "config.json"] {
            let holder = Holder::new(&model.directory.join(name));
            assert!(is_open(place), "{name}");
            drop(holder);
            wait_until_unused(place);
        }
        assert_eq!(model.usage().last_access, before, "the files were opened, and not read");
        thread::sleep(Duration::from_millis(20));
        fs::read(model.directory.join("model.safetensors")).unwrap();
        let read = model.usage().last_access;
        assert!(read > before);
        thread::sleep(Duration::from_millis(20));
        fs::read(model.directory.join("model.safetensors")).unwrap();
        assert!(model.usage().last_access > read, "a second access is noted, too");
        fs::remove_file(model.directory.join("empty")).unwrap();
        assert!(!find(place).is_complete);
    });
}

#[test]
fn a_model_in_use_or_pinned_is_not_evicted() {
    with_tmpfs("size=64m", |place| {
        place.publish(&place.model()).unwrap();
        let path = place.tmpfs.join("model");
        let holder = Holder::new(&path.join("model.safetensors"));
        let models = models(place);
        assert_eq!(reason(models.evict(&find(place), false)), PublishProblem::InUse);
        drop(holder);
        find(place).set_pinned(true).unwrap();
        find(place).set_pinned(true).unwrap();
        assert_eq!(reason(models.evict(&find(place), false)), PublishProblem::Pinned);
        assert_eq!(place.names(), ["model"]);
        find(place).set_pinned(false).unwrap();
        let before = models.free_bytes().unwrap().unwrap();
        evict_unused(place);
        assert!(models.free_bytes().unwrap().unwrap() > before + 5_000_000);
        assert!(place.names().is_empty());
        assert_eq!(reason(models.find("model")), PublishProblem::NotPublished);
    });
}

#[test]
fn a_program_keeps_the_files_of_an_evicted_model() {
    with_tmpfs("size=64m", |place| {
        place.publish(&place.model()).unwrap();
        let mut file = File::open(place.tmpfs.join("model/model.safetensors")).unwrap();
        let models = models(place);
        models.evict(&find(place), true).unwrap();
        assert!(place.names().is_empty());
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content, place::safetensors(5_000_000));
    });
}

#[test]
fn a_model_that_was_replaced_meanwhile_is_not_evicted() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        let old = find(place);
        place.write("model/config.json", b"{ }");
        place.publisher().replace(true).publish(&source).unwrap();
        let refused = reason(models(place).evict(&old, true));
        assert_eq!(refused, PublishProblem::NotPublished);
        assert_eq!(place.names(), ["model"]);
        assert_eq!(fs::read(place.tmpfs.join("model/config.json")).unwrap(), b"{ }");
    });
}

#[test]
fn evictions_and_new_versions_do_not_disturb_each_other() {
    with_tmpfs("size=64m", |place| {
        let source = place.write("model/weights.bin", &[7; 4096]);
        let folder = source.parent().unwrap().to_owned();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for model in models(place).list().unwrap() {
                        match models(place).evict(&model, true) {
                            Err(Error::Publish {
                                reason: PublishProblem::NotPublished, ..
                            }) => {}
                            evicted => evicted.unwrap(),
                        }
                    }
                }
            });
            for round in 0..500_u64 {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(round);
                File::options().write(true).open(&source).unwrap().set_modified(time).unwrap();
                let published = place.publisher().replace(true).publish(&folder);
                is_done.fetch_or(published.is_err(), Ordering::Relaxed);
                published.unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert!(place.names().len() <= 1, "{:?}", place.names());
    });
}

#[test]
fn a_new_version_of_a_pinned_model_is_pinned() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        place.publisher().pin(true).publish(&source).unwrap();
        assert!(find(place).is_pinned, "it was published already");
        place.write("model/config.json", b"{ }");
        let outcome = place.publisher().replace(true).publish(&source).unwrap().outcome;
        assert_eq!(outcome, Outcome::Replaced);
        assert!(find(place).is_pinned);
        // The mark is not a file of the model.
        let copy = place.publisher().name("copy").publish(&place.tmpfs.join("model")).unwrap();
        assert_eq!(copy.files.len(), 4);
        assert!(!models(place).find("copy").unwrap().is_pinned);
    });
}

/// Two ranks of a job publish the same model.
#[test]
fn two_publishers_of_a_model_read_it_once() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let bytes = SourceState::of(&source).unwrap().content_bytes();
        let read = || {
            let mut read = 0;
            let publisher =
                place.publisher().observe(|progress| read = read.max(progress.done_bytes));
            let outcome = publisher.publish(&source).unwrap().outcome;
            (outcome, read)
        };
        for _ in 0..8 {
            let mut ranks = thread::scope(|scope| {
                let ranks = [scope.spawn(read), scope.spawn(read)];
                ranks.map(|rank| rank.join().unwrap())
            });
            ranks.sort_by_key(|(_, read)| *read);
            let expected = [(Outcome::AlreadyPublished, 0), (Outcome::New, bytes)];
            assert_eq!(ranks, expected);
            assert_eq!(place.names(), ["model"], "no lock file is left");
            evict_unused(place);
        }
        // The lock of a publisher that was killed, and one of another user.
        File::create(place.tmpfs.join(".old.lock")).unwrap();
        let other = place.tmpfs.join(".model.lock");
        File::create(&other).unwrap();
        std::os::unix::fs::chown(&other, Some(NOBODY), None).unwrap();
        assert_eq!(read(), (Outcome::New, bytes));
        assert_eq!(place.names(), [".model.lock", "model"]);
    });
}

/// A rank is killed while it publishes, and another one waits for it.
#[test]
fn a_waiting_publisher_goes_on_if_the_other_one_dies_or_it_is_cancelled() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let lock = place.tmpfs.join(".model.lock");
        let mut holder = Command::new("flock")
            .arg("--no-fork")
            .arg(&lock)
            .args(["sh", "-c", "echo locked; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap();
        let cancel = longshore_load::CancelToken::new();
        let observed = cancel.clone();
        let publisher = place.publisher().cancel(&cancel).observe(move |_| observed.cancel());
        let cancelled = publisher.publish(&source).unwrap_err();
        assert!(matches!(cancelled, Error::Cancelled { done_bytes: 0, .. }), "{cancelled}");
        let outcome = thread::scope(|scope| {
            let waiting = scope.spawn(|| place.publish(&source).unwrap().outcome);
            thread::sleep(Duration::from_millis(200));
            assert!(!waiting.is_finished());
            holder.kill().unwrap();
            holder.wait().unwrap();
            waiting.join().unwrap()
        });
        assert_eq!(outcome, Outcome::New);
        assert_eq!(place.names(), ["model"]);
    });
}

#[test]
fn one_server_manages_a_directory() {
    with_tmpfs("size=64m", |place| {
        let (first, second) = (models(place), models(place));
        let lock = first.lock().unwrap();
        assert_eq!(reason(second.lock()), PublishProblem::Managed);
        drop(lock);
        let deadline = Instant::now() + Duration::from_secs(20);
        let lock = loop {
            // A program that another test is starting may have the lock file for a moment.
            match second.lock() {
                Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                locked => break locked.unwrap(),
            }
        };
        assert!(second.list().unwrap().is_empty());
        drop(lock);
        let path = place.tmpfs.join(".longshore.manager");
        fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(first.lock().unwrap_err(), Error::Write { .. }));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::chown(&place.tmpfs, Some(0), Some(0)).unwrap();
        File::create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
        assert_eq!(reason(first.lock()), PublishProblem::OtherOwner { uid: NOBODY });
        std::os::unix::fs::chown(&place.tmpfs, Some(NOBODY), None).unwrap();
        let opened = PublishedModels::open(&place.tmpfs);
        assert_eq!(reason(opened), PublishProblem::ModelsOfOther { uid: NOBODY });
    });
}

/// Another user makes directories with records, to make a server that runs as root remove their files.
#[test]
fn a_record_of_another_user_makes_no_model() {
    with_tmpfs("size=64m", |place| {
        place.publish(&place.model()).unwrap();
        let record = place.tmpfs.join("model/.longshore.json");
        let plant = |folder: &Path| {
            let made = Command::new("sh")
                .args(["-c", "mkdir -p \"$0\" && cat > \"$0/.longshore.json\""])
                .arg(folder)
                .stdin(File::open(&record).unwrap())
                .uid(NOBODY)
                .status()
                .unwrap();
            assert!(made.success());
        };
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        // A directory of root, to which all users may write.
        let scratch = place.tmpfs.join("scratch");
        fs::create_dir(&scratch).unwrap();
        set(&scratch, 0o1777).unwrap();
        plant(&scratch);
        set(&place.tmpfs, 0o1777).unwrap();
        plant(&place.tmpfs.join("evil"));
        // A record of root, but in such a directory.
        let open = place.tmpfs.join("open");
        fs::create_dir(&open).unwrap();
        set(&open, 0o1777).unwrap();
        fs::copy(&record, open.join(".longshore.json")).unwrap();
        for mode in [0o1777, 0o755] {
            set(&place.tmpfs, mode).unwrap();
            let found = models(place).list().unwrap();
            assert_eq!(found.iter().map(|it| &it.name).collect::<Vec<_>>(), ["model"]);
        }
        let replaced = place.publisher().name("evil").replace(true).publish(&place.model());
        assert_eq!(reason(replaced), PublishProblem::NotAModel);
        assert_eq!(
            reason(models(place).find("../etc")),
            PublishProblem::InvalidName { name: "../etc".to_owned() }
        );
    });
}

/// A user may mount a FUSE file system on a directory of its own, which root cannot look at then.
#[test]
fn a_mount_point_of_another_user_hides_no_models() {
    with_tmpfs("size=64m", |place| {
        place.publish(&place.model()).unwrap();
        let mounted = place.tmpfs.join("mounted");
        fs::create_dir(&mounted).unwrap();
        let fuse = match File::options().read(true).write(true).open("/dev/fuse") {
            Err(error) => return println!("SKIPPED: /dev/fuse: {error}"),
            Ok(fuse) => fuse,
        };
        let options = format!(
            "fd={},rootmode=40000,user_id={NOBODY},group_id={NOBODY}\0",
            std::os::fd::AsRawFd::as_raw_fd(&fuse)
        );
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("longshore", &mounted, "fuse", flags, options).unwrap();
        assert!(mounted.metadata().is_err());
        assert_eq!(models(place).list().unwrap().len(), 1);
        models(place).remove_leftovers();
        models(place).evict(&find(place), true).unwrap();
        rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::DETACH).unwrap();
    });
}

/// The attacker owns the directory above a private source, and exchanges both.
#[test]
fn directories_that_change_places_give_no_access() {
    with_tmpfs("size=64m", |place| {
        let attacked = place.source("above");
        for (name, content, mode) in [("private", "secret", 0o700), ("open", "open", 0o755)] {
            let folder = attacked.join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("file"), content).unwrap();
            let mode = PermissionsExt::from_mode(mode);
            fs::set_permissions(&folder, mode).unwrap();
        }
        let folder = longshore_sys::directory::open(&attacked.canonicalize().unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (one, other) = (Path::new("private"), Path::new("open"));
                while !stop.load(Ordering::Relaxed) {
                    longshore_sys::directory::exchange(&folder, one, other).unwrap();
                }
            });
            let (mut done, end) = (0, Instant::now() + Duration::from_secs(5));
            while Instant::now() < end {
                let name = format!("m{done}");
                if place.publisher().name(&name).publish(&attacked.join("private")).is_err() {
                    continue;
                }
                done += 1;
                let model = place.tmpfs.join(name);
                let mode = |path: &Path| {
                    std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap()) & 0o077
                };
                let others = mode(&model) | mode(&model.join("file"));
                let is_secret = fs::read(model.join("file")).unwrap() == b"secret";
                if is_secret {
                    assert_eq!(others, 0, "others may read the private file");
                }
                fs::remove_dir_all(model).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            assert!(done > 0, "it was never published");
        });
    });
}

#[test]
fn links_to_a_source_can_be_refused() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        symlink(&source, place.source("link")).unwrap();
        let refused = place.publisher().refuse_links().publish(&place.source("link"));
        assert_eq!(reason(refused), PublishProblem::Link);
        let refused = reason(SourceState::of(&place.source("link/onnx")));
        assert_eq!(refused, PublishProblem::Link);
        let real = source.canonicalize().unwrap();
        place.publisher().refuse_links().publish(&real).unwrap();
        place.publisher().name("other").publish(&place.source("link")).unwrap();
    });
}

#[test]
fn a_user_reads_neither_files_it_cannot_reach_nor_their_names() {
    with_tmpfs("size=64m", |place| {
        // A copy of the user's files in a directory of root that the user cannot search.
        let source = place.model();
        for path in [source.clone(), source.join("onnx"), source.join("onnx/model.onnx")] {
            std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
        }
        let mode = PermissionsExt::from_mode;
        fs::set_permissions(place.disk.path(), mode(0o700)).unwrap();
        place.publish(&source).unwrap();
        let read = |path: &str| {
            let path = place.tmpfs.join(path);
            let mut command = Command::new("cat");
            command.arg(path).uid(NOBODY).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().unwrap().success()
        };
        for path in ["model/onnx/model.onnx", "model/config.json", "model/.longshore.json"] {
            assert!(!read(path), "{path}");
        }
        models(place).evict(&find(place), true).unwrap();
        // All may read the model but for one directory: nobody gets its names from the record.
        fs::set_permissions(place.disk.path(), mode(0o755)).unwrap();
        std::os::unix::fs::chown(source.join("onnx"), Some(0), None).unwrap();
        fs::set_permissions(source.join("onnx"), mode(0o700)).unwrap();
        place.publish(&source).unwrap();
        assert!(read("model/config.json") && !read("model/.longshore.json"));
    });
}

/// The owner of a model makes it hard to remove.
#[test]
fn a_model_with_deep_directories_is_removed() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        let deep = (0..100).map(|_| "d").collect::<std::path::PathBuf>();
        fs::create_dir_all(place.tmpfs.join("model").join(deep)).unwrap();
        place.write("model/config.json", b"{ }");
        place.publisher().replace(true).publish(&source).unwrap();
        assert_eq!(place.names(), ["model"]);
        // Directories that Longshore did not make stay.
        fs::create_dir(place.tmpfs.join(".download.partial")).unwrap();
        models(place).remove_leftovers();
        assert_eq!(place.names(), [".download.partial", "model"]);
    });
}

#[test]
fn a_state_of_a_source_is_compared_by_its_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "1").unwrap();
    let path = folder.path().canonicalize().unwrap();
    let first = SourceState::of(&path).unwrap();
    assert!(first.is_same(&SourceState::of(&path).unwrap()));
    let file = File::options().write(true).open(folder.path().join("a")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(!first.is_same(&SourceState::of(&path).unwrap()));
    assert_eq!(first.content_bytes(), 1);
}
