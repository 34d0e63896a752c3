//! `longshore publish` and `longshore exec`: output, exit codes, killed publishers, namespaces.

#![expect(unsafe_code, reason = "reads a mapping")]

mod command;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use command::{LONGSHORE, Outcome, as_nobody, copy_longshore, refuse_call, run};

const NOBODY: u32 = 65534;
/// The time after which a test fails if another process does not do what it should.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command, and ends it if it hangs.
fn longshore(arguments: &[&str]) -> Outcome {
    let mut command = Command::new("timeout");
    run(command.args(["--kill-after=5", "60", LONGSHORE]).args(arguments))
}

/// A source on a disk, and a directory in `/dev/shm`.
struct Fixture {
    disk: tempfile::TempDir,
    shm: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Option<Self> {
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        // Other users must be able to reach the files.
        fs::set_permissions(disk.path(), Permissions::from_mode(0o755)).unwrap();
        let shm = tempfile::tempdir_in("/dev/shm").ok()?;
        let is_tmpfs = fs::read_to_string("/proc/self/mountinfo").unwrap();
        if !is_tmpfs.lines().any(|line| line.contains(" /dev/shm ") && line.contains("- tmpfs ")) {
            println!("SKIPPED: /dev/shm is not a tmpfs");
            return None;
        }
        Some(Self { disk, shm })
    }

    /// Writes a model with weights of about `len_bytes`, and returns its path.
    fn model(&self, len_bytes: u64) -> String {
        let path = self.disk.path().join("model");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("config.json"), "{}").unwrap();
        let size = len_bytes.to_string();
        let weights = path.join("model.safetensors");
        let made = longshore(&["make-model", "--force", "--size", &size, text(&weights)]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        text(&path).to_owned()
    }

    fn to(&self) -> &str {
        text(self.shm.path())
    }

    fn publish(&self, source: &str, more: &[&str]) -> Outcome {
        longshore(&[&["publish", source, "--to", self.to()], more].concat())
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.shm.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Returns a copy of the command that other users can run.
    fn copied(&self) -> PathBuf {
        let path = self.disk.path().join("longshore");
        copy_longshore(&path);
        path
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn the_summary_and_the_json_describe_the_model() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(3_000_000);
    let first = fixture.publish(&source, &["--verify", "crc32c"]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    for words in ["in 2 files in", "model", "programs    get", "access      d", "crc32c"] {
        assert!(first.stdout.contains(words), "{words} in {}", first.stdout);
    }
    let again = fixture.publish(&source, &[]);
    assert!(again.stdout.contains("already published"), "{}", again.stdout);
    let json = fixture.publish(&source, &["--json"]).json();
    let model = &json["models"][0];
    assert_eq!(
        (model["outcome"].as_str(), &model["bytes_read"]),
        (Some("already published"), &0.into())
    );
    assert_eq!(model["path"], format!("{}/model", fixture.to()));
    assert_eq!(model["files"][1]["path"], format!("{}/model/model.safetensors", fixture.to()));
    assert!(model["files"][1]["digests"]["crc32c"].is_string());
    let quiet = fixture.publish(&source, &["--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str()), (0, ""));
}

#[test]
fn each_error_has_its_exit_code() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(1_000_000);
    assert_eq!(fixture.publish(&source, &[]).code, 0);
    fs::write(Path::new(&source).join("config.json"), "{ }").unwrap();
    fixture.publish(&source, &[]).expect(19, &["the name exists", "--name", "--replace"]);
    let json = fixture.publish(&source, &["--json"]);
    json.expect(19, &[]);
    assert!(json.stdout.contains("\"exit_code\":19"), "{}", json.stdout);
    assert_eq!(fixture.publish(&source, &["--replace"]).code, 0);
    fixture.publish(&source, &["--name", "a/b"]).expect(2, &["is not valid"]);
    fixture.publish(&source, &["--mode", "0644"]).expect(2, &["cannot be written"]);
    fixture.publish(&source, &["--size", "1M"]).expect(2, &["--mount"]);
    fixture.publish("/no/such", &[]).expect(10, &["/no/such"]);
    fixture.publish("/dev/null", &[]).expect(11, &["is a device"]);
    let disk = text(fixture.disk.path());
    longshore(&["publish", &source, "--to", disk]).expect(21, &["not in a tmpfs", "--mount"]);
    assert_eq!(fixture.names(), ["model"]);
}

/// Waits until `done` returns `true`.
fn wait_until(what: &str, child: &mut Child, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{what}: it did not happen");
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_publisher_leaves_nothing_that_programs_see() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(48_000_000);
    let weights = fs::read(Path::new(&source).join("model.safetensors")).unwrap();
    let published = fixture.shm.path().join("model");
    // Each kill comes later: when the hidden directory exists, when it has a file, and after that.
    for round in 0..6_u64 {
        let mut child = Command::new(LONGSHORE)
            .args(["publish", &source, "--to", fixture.to(), "--quiet"])
            .spawn()
            .unwrap();
        wait_until("a hidden directory", &mut child, || {
            let names = fixture.names();
            let hidden = names.iter().find(|name| name.ends_with(".partial"));
            let file = hidden.is_some_and(|name| {
                round == 0 || fixture.shm.path().join(name).join("config.json").exists()
            });
            file || published.exists()
        });
        thread::sleep(Duration::from_millis(round.saturating_sub(1) * 8));
        child.kill().unwrap();
        child.wait().unwrap();
        if published.exists() {
            let found = fs::read(published.join("model.safetensors")).unwrap();
            assert!(found == weights && published.join(".longshore.json").exists(), "{round}");
            fs::remove_dir_all(&published).unwrap();
        }
    }
    assert_eq!(fixture.publish(&source, &[]).code, 0);
    assert_eq!(fixture.names(), ["model"]);
    assert!(fs::read(published.join("model.safetensors")).unwrap() == weights);
}

#[test]
fn an_unprivileged_publisher_widens_no_access() {
    let Some(fixture) = Fixture::new() else { return };
    if !is_root() {
        return println!("SKIPPED: only root can make files of other users");
    }
    let program = fixture.copied();
    let source = fixture.model(1_000_000);
    fs::set_permissions(&source, Permissions::from_mode(0o755)).unwrap();
    chown(fixture.shm.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let publish = |name: &str| {
        let arguments = ["publish", &source, "--to", fixture.to(), "--name", name];
        let mut command = Command::new(&program);
        as_nobody(command.args(arguments));
        let outcome = run(&mut command);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        let found = fixture.shm.path().join(name).join("model.safetensors").metadata().unwrap();
        (found.uid(), found.gid(), found.mode() & 0o777)
    };
    let weights = Path::new(&source).join("model.safetensors");
    let set = |gid, mode| {
        chown(&weights, Some(0), Some(gid)).unwrap();
        fs::set_permissions(&weights, Permissions::from_mode(mode)).unwrap();
    };
    set(0, 0o644);
    assert_eq!(publish("all"), (NOBODY, NOBODY, 0o444));
    // Members of the source's group, which cannot be carried over, may not become others.
    set(0, 0o604);
    assert_eq!(publish("not-root"), (NOBODY, NOBODY, 0o400));
    set(NOBODY, 0o640);
    assert_eq!(publish("group"), (NOBODY, NOBODY, 0o440));
}

#[test]
fn a_tmpfs_with_huge_pages_is_mounted() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(4_000_000);
    let models = fixture.disk.path().join("models");
    let script = "set -e; longshore=$1; shift
        $longshore publish \"$@\" --mount --size 64M
        $longshore publish \"$@\" --mount
        grep ' longshore ' /proc/self/mountinfo";
    let publish = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(words).args(["sh", "-c", script, "sh", LONGSHORE, &source, "--to"]);
        run(command.arg(&models))
    };
    let may_unshare = Command::new("unshare").args(["-m", "true"]).status();
    if !is_root() || !may_unshare.is_ok_and(|status| status.success()) {
        return println!("SKIPPED: only root can mount, and unshare must be installed");
    }
    let mounted = publish(&["-m"]);
    assert_eq!(mounted.code, 0, "{}", mounted.stderr);
    for words in ["get 2 MiB pages", "already published", "nosuid,nodev,noexec", "size=65536k"] {
        assert!(mounted.stdout.contains(words), "{words} in {}", mounted.stdout);
    }
    let too_small = ["publish", &source, "--to", text(&models), "--mount", "--size", "1M"];
    let mut command = Command::new("unshare");
    let small = run(command.args(["-m", LONGSHORE]).args(too_small));
    small.expect(20, &["the tmpfs has", "free"]);

    let program = fixture.copied();
    let mut command = Command::new(&program);
    as_nobody(command.args(too_small));
    run(&mut command).expect(12, &["needs root", "/dev/shm", "longshore exec"]);

    // By removing the directory in a mount namespace of its own, its owner could unmount the tmpfs.
    chown(&models, Some(NOBODY), None).unwrap();
    publish(&["-m"]).expect(12, &["is not mounted", "belongs to another user"]);
}

/// Runs `longshore exec` as an unprivileged user.
fn exec_as_nobody(
    fixture: &Fixture,
    arguments: &[&str],
    change: impl FnOnce(&mut Command),
) -> Outcome {
    let program = fixture.copied();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(&program).arg("exec").args(arguments);
    command.current_dir("/").env("TMPDIR", "/tmp");
    as_nobody(&mut command);
    change(&mut command);
    run(&mut command)
}

/// Returns `true` if an unprivileged user may mount a tmpfs in namespaces of its own.
fn may_use_namespaces() -> bool {
    let mut command = Command::new("unshare");
    command.args(["-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]);
    as_nobody(&mut command);
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn exec_needs_no_privilege() {
    let Some(fixture) = Fixture::new() else { return };
    if !may_use_namespaces() {
        return println!("SKIPPED: users may not mount in namespaces of their own");
    }
    let source = fixture.model(8 << 20);
    let script = "cat \"$1/config.json\"; echo; echo \"$LONGSHORE_MODEL\" \"$1\"; id -u
        readlink /proc/$$/fd/* || :; exit 7";
    let outcome =
        exec_as_nobody(&fixture, &[&source, "--", "sh", "-c", script, "sh", "{}"], |_| ());
    outcome.expect(7, &["a private tmpfs"]);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    let (one, other) = lines[1].split_once(' ').unwrap();
    assert_eq!((lines[0], one), ("{}", other));
    let user = if is_root() {
        NOBODY.to_string()
    } else {
        rustix::process::geteuid().as_raw().to_string()
    };
    assert_eq!(lines[2], user);
    // The tmpfs has ended with the program.
    assert!(!Path::new(one).exists());
    let below = Path::new(one).parent().unwrap();
    let lock = below.join(".longshore.lock");
    assert!(lines[3..].contains(&text(&lock)), "it has the lock file: {lines:?}");
    assert!(fs::remove_dir(below).is_err(), "then the kernel would unmount the tmpfs");

    let mapper = fixture.disk.path().join("mapper");
    let this = std::env::current_exe().unwrap();
    assert!(Command::new("cp").arg(this).arg(&mapper).status().unwrap().success());
    let helper = [
        &source,
        "--",
        text(&mapper),
        "--exact",
        "helper_that_maps_the_model",
        "{}",
        "--nocapture",
    ];
    let outcome = exec_as_nobody(&fixture, &helper, |_| ());
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let mapped = outcome.stdout.lines().find_map(|line| line.strip_prefix("mapped "));
    let (huge, whole) = mapped.unwrap().split_once(" of ").unwrap();
    if huge == "0" {
        return println!("SKIPPED: the kernel gives a tmpfs no huge pages");
    }
    assert_eq!(huge, whole, "kB in 2 MiB pages");
}

/// In the user namespace of this user, files of other users seem to belong to it.
#[test]
fn exec_of_nobody_uses_no_directory_of_another_user() {
    let Some(fixture) = Fixture::new() else { return };
    if !is_root() || !may_use_namespaces() {
        return println!(
            "SKIPPED: it needs root, and users who may mount in namespaces of their own"
        );
    }
    let source = fixture.model(1_000_000);
    let temporary = fixture.disk.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, Permissions::from_mode(0o1777)).unwrap();
    let of_other = temporary.join(format!("longshore-exec-{NOBODY}"));
    fs::create_dir(&of_other).unwrap();
    fs::set_permissions(&of_other, Permissions::from_mode(0o777)).unwrap();
    chown(&of_other, Some(4242), Some(4242)).unwrap();
    let exec = || {
        let words = [&source, "--", "sh", "-c", "echo \"$LONGSHORE_MODEL\""];
        exec_as_nobody(&fixture, &words, |command| {
            command.env("TMPDIR", &temporary);
        })
    };
    let outcome = exec();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let path = Path::new(outcome.stdout.trim());
    assert!(path.starts_with(&temporary) && !path.starts_with(&of_other), "{}", path.display());
    chown(&of_other, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&of_other, Permissions::from_mode(0o700)).unwrap();
    assert!(exec().stdout.starts_with(text(&of_other)));
}

/// Maps the weights of `$LONGSHORE_MODEL`, and prints how many of its kB are in 2 MiB pages.
#[test]
fn helper_that_maps_the_model() {
    let Some(model) = std::env::var_os("LONGSHORE_MODEL") else { return };
    let path = Path::new(&model).join("model.safetensors");
    let file = fs::File::open(&path).unwrap();
    let granule = longshore::mem::Granule::SIZE_4K;
    let len_bytes = file.metadata().unwrap().len();
    let access = longshore_sys::mapping::Access::Read;
    let mapping =
        longshore_sys::mapping::Mapping::of_file(&file, len_bytes, granule, access).unwrap();
    // Reading each page maps it.
    let base = mapping.start().as_ptr();
    for at in (0..mapping.len_bytes()).step_by(4096) {
        // SAFETY: the mapping is readable for its length, and no program changes the file.
        std::hint::black_box(unsafe { base.wrapping_add(at).read_volatile() });
    }
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = smaps.split_once(text(&path)).unwrap().1;
    let field = |name: &str| {
        let line = of_file.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").to_owned()
    };
    // The last part of the file is shorter than a huge page.
    let whole = len_bytes / (2 << 20) * 2048;
    println!("\nmapped {} of {whole}", field("ShmemPmdMapped:"));
}

#[test]
fn exec_falls_back_to_dev_shm() {
    let Some(fixture) = Fixture::new() else { return };
    if !cfg!(target_arch = "x86_64") {
        return println!("SKIPPED: the number of the system call is that of x86-64");
    }
    let source = fixture.model(1_000_000);
    let refuse = |command: &mut Command| refuse_call(command, libc::SYS_unshare as u32);
    let user = if is_root() { NOBODY } else { rustix::process::geteuid().as_raw() };
    let target = PathBuf::from(format!("/dev/shm/longshore-exec-{user}"));
    let was_there = target.exists();
    let outcome = exec_as_nobody(&fixture, &[&source, "--", "cat", "{}/config.json"], refuse);
    outcome.expect(0, &["/dev/shm, where it stays", "not permitted"]);
    assert_eq!(outcome.stdout, "{}");
    assert!(target.join("model/model.safetensors").exists());
    if !was_there {
        fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn exec_falls_back_to_links_if_dev_shm_has_no_room() {
    let Some(fixture) = Fixture::new() else { return };
    if !cfg!(target_arch = "x86_64") || !is_root() {
        return println!("SKIPPED: needs root, and the number of a system call on x86-64");
    }
    let source = fixture.model(3_000_000);
    fs::write(Path::new(&source).join("empty"), "").unwrap();
    let weights = Path::new(&source).join("model.safetensors");
    let digest = run(Command::new("sha256sum").arg(&weights)).stdout[..64].to_owned();
    let temporary = fixture.disk.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    chown(&temporary, Some(NOBODY), Some(NOBODY)).unwrap();
    // A program that has ended has left its links.
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.to_string_lossy().replace(|it: char| !it.is_ascii_digit(), "");
    let left = temporary.join(format!("longshore-links-{NOBODY}-{namespace}-4194304.0"));
    fs::create_dir(&left).unwrap();
    chown(&left, Some(NOBODY), Some(NOBODY)).unwrap();
    let script = "ls \"$1\" && sha256sum \"$1/model.safetensors\" && cat \"$1/config.json\" \
                  \"$1/empty\" && ! (echo x >> \"$1/config.json\") 2>/dev/null \
                  && readlink \"$1/config.json\"";
    // In containers, /dev/shm often has 64 MiB, and namespaces are forbidden.
    let words = [source.clone(), "--".into(), "sh".into(), "-c".into(), script.into(), "sh".into()];
    let outcome = thread::spawn(move || {
        longshore_sys::namespace::enter().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("t", "/dev/shm", "tmpfs", flags, c"size=1m,mode=1777").unwrap();
        let words: Vec<_> = words.iter().map(String::as_str).chain(["{}"]).collect();
        exec_as_nobody(&fixture, &words, |command| {
            command.env("TMPDIR", &temporary);
            refuse_call(command, libc::SYS_unshare as u32);
        })
    });
    let outcome = outcome.join().unwrap();
    outcome.expect(0, &["memory of this program", "1.05 MB free"]);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(lines[..3], ["config.json", "empty", "model.safetensors"]);
    assert!(lines[3].starts_with(&digest), "{lines:?}");
    assert!(lines[4].starts_with("{}/proc/"), "{lines:?}");
    assert!(!left.exists());
}

#[test]
fn a_model_is_in_use_while_the_program_of_exec_runs() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(1_000_000);
    let model = format!("{}/model", fixture.to());
    let evict = format!("{LONGSHORE} evict {model} 2>&1; echo $?");
    let words = ["exec", &source, "--to", fixture.to(), "--", "sh", "-c", &evict, "{}"];
    let outcome = longshore(&words);
    assert!(outcome.stdout.ends_with("23\n"), "{}", outcome.stdout);
    longshore(&["evict", &model]).expect(0, &[]);
    assert!(fixture.names().is_empty());
}

#[test]
fn models_are_listed_pinned_and_evicted() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(1_000_000);
    assert_eq!(fixture.publish(&source, &["--pin"]).code, 0);
    assert_eq!(fixture.publish(&source, &["--name", "other"]).code, 0);
    let list = || longshore(&["ls", "--published", fixture.to()]);
    let listed = list();
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    for words in ["unused, pinned", "1.00 MB", "/model\n", "/other\n"] {
        assert!(listed.stdout.contains(words), "{words} in {}", listed.stdout);
    }
    let held = fs::File::open(fixture.shm.path().join("other/config.json")).unwrap();
    assert!(list().stdout.contains("in use"));
    let json = longshore(&["ls", "--published", fixture.to(), "--json"]).json();
    assert_eq!(json["models"][0]["pinned"], true);
    assert_eq!(
        (&json["models"][1]["in_use"], &json["models"][1]["complete"]),
        (&true.into(), &true.into())
    );
    let path = |name: &str| format!("{}/{name}", fixture.to());
    longshore(&["evict", &path("model")]).expect(23, &["pinned", "--undo"]);
    longshore(&["evict", &path("other")]).expect(23, &["open"]);
    longshore(&["evict", &path("absent")]).expect(31, &["no model"]);
    longshore(&["evict", "/var/tmp/absent"]).expect(21, &["no models", "DIR/NAME"]);
    longshore(&["evict", "/"]).expect(2, &["DIR/NAME"]);
    let kept = longshore(&["evict", "--unused", fixture.to()]);
    assert_eq!(kept.code, 0, "{}", kept.stderr);
    assert!(kept.stdout.contains("kept, pinned") && kept.stdout.contains("kept, in use"));
    assert_eq!(fixture.names().len(), 2);
    drop(held);
    // Other tests of this program start programs, which have all descriptors for a moment.
    let deadline = Instant::now() + PATIENCE;
    while list().stdout.contains("in use") {
        assert!(Instant::now() < deadline, "the file stays open");
    }
    let evicted = longshore(&["evict", "--unused", fixture.to(), "--json"]).json();
    assert_eq!(evicted["evicted"][0]["directory"], path("other"));
    assert_eq!(evicted["kept"][0]["directory"], path("model"));
    longshore(&["pin", &path("model"), "--undo"]).expect(0, &[]);
    longshore(&["evict", &path("model"), "--quiet"]).expect(0, &[]);
    assert_eq!(list().stdout, "nothing is published\n");
}

#[test]
fn a_killed_server_of_published_models_is_replaced() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(16 << 20);
    let start = |json: &[&str]| {
        let mut command = Command::new(LONGSHORE);
        command.args(["serve", "--publish", fixture.to(), "--preload", &source]).args(json);
        Server(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let mut first = start(&[]);
    let lines = first.lines_until("managing");
    assert!(lines.iter().any(|line| line.contains("model: published")), "{lines:?}");
    let words = ["serve", "--publish", fixture.to()];
    longshore(&words).expect(33, &["another server"]);
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    let mut second = start(&["--json"]);
    let lines = second.lines_until("managing");
    // It has read records, and neither the source nor the model.
    let io = fs::read_to_string(format!("/proc/{}/io", second.0.id())).unwrap();
    let field = |name: &str| -> u64 {
        io.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap()
    };
    assert!(field("rchar: ") < 1 << 20 && field("read_bytes: ") < 1 << 20, "{io}");
    let events: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["event"], "model_found");
    assert_eq!(
        (&events[1]["event"], &events[1]["outcome"]),
        (&"published".into(), &"already published".into())
    );
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&second.0),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let lines = second.lines_until("publishing_stopped");
    assert!(lines.iter().any(|line| line.contains("SIGTERM")), "{lines:?}");
    assert!(second.0.wait().unwrap().success());
    assert!(fixture.shm.path().join("model/model.safetensors").exists());
    longshore(&["serve"]).expect(2, &["--publish"]);
    longshore(&["serve", "--preload", &source]).expect(2, &["--publish"]);
}

/// A server that is killed with the test.
struct Server(Child);

impl Server {
    /// Reads lines until one contains `word`.
    fn lines_until(&mut self, word: &str) -> Vec<String> {
        use std::io::{BufRead, BufReader};
        let stdout = self.0.stdout.take().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let word = word.to_owned();
        let reader = thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap() == 0 {
                    return reader.into_inner();
                }
                let is_last = line.contains(&word);
                let _ = sender.send(line);
                if is_last {
                    return reader.into_inner();
                }
            }
        });
        let deadline = Instant::now() + PATIENCE;
        while !reader.is_finished() {
            assert!(Instant::now() < deadline, "the server does not print the line");
            thread::sleep(Duration::from_millis(10));
        }
        self.0.stdout = Some(reader.join().unwrap());
        lines.try_iter().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn exec_finds_errors_before_the_load() {
    let Some(fixture) = Fixture::new() else { return };
    let source = fixture.model(1_000_000);
    let exec =
        |words: &[&str]| longshore(&[&["exec", &source, "--to", fixture.to()], words].concat());
    exec(&["--", "cat"]).expect(2, &["does not name the model", "LONGSHORE_MODEL"]);
    exec(&[]).expect(2, &[]);
    exec(&["--", "no-such-program", "{}"]).expect(127, &["no-such-program"]);
    exec(&["--", "/etc/passwd", "{}"]).expect(126, &["/etc/passwd"]);
    exec(&["--", "/", "{}"]).expect(126, &["cannot run"]);
    assert!(fixture.names().is_empty());
    longshore(&["exec", "/no/such", "--to", fixture.to(), "--", "cat", "{}"]).expect(10, &[]);

    let shell = "test \"$LONGSHORE_MODEL\" && ls \"$LONGSHORE_MODEL\"";
    exec(&["--", "sh", "-c", shell]).expect(0, &[]);
    longshore(&["evict", &format!("{}/model", fixture.to())]).expect(0, &[]);

    // The program takes the place of the command, and so its end is the end of the command.
    let ended = Command::new(LONGSHORE)
        .args(["exec", &source, "--to", fixture.to(), "--", "sh", "-c", "kill -TERM $$", "{}"])
        .status()
        .unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGTERM));
    assert_eq!(fixture.names(), ["model"]);
    let other = fixture.disk.path().join("other.safetensors");
    fs::copy(Path::new(&source).join("model.safetensors"), &other).unwrap();
    let words = ["exec", text(&other), "--to", fixture.to(), "--quiet", "--", "echo", "--model={}"];
    let outcome = longshore(&words);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let expected = format!("--model={}/other/other.safetensors\n", fixture.to());
    assert_eq!(outcome.stdout, expected);
}
