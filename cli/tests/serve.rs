//! `longshore serve`, `attach` and `ls`.

mod command;
#[path = "command/serving.rs"]
mod serving;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use command::{LONGSHORE, Outcome, as_nobody, run};
use longshore::load::{CancelToken, FormatChoice};
use longshore::serve::{Client, Wanted};
use serde_json::Value;
use serving::Serving;

const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that other users can enter, with a server's root in it.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn model(&self, name: &str, len_bytes: usize) -> PathBuf {
        let path = self.path("root").join(name);
        let content: Vec<u8> = (0..len_bytes)
            .map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3])
            .collect();
        fs::write(&path, content).unwrap();
        path
    }

    fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    fn serve(&self, more: &[&str]) -> Serving {
        let mut command = Command::new(LONGSHORE);
        command.arg("serve").arg("--json").arg("--root").arg(self.path("root"));
        command.arg("--socket").arg(self.socket()).args(more);
        Serving::start(command)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LONGSHORE);
        command.args(arguments).env("LONGSHORE_SOCKET", self.socket());
        command
    }

    fn client(&self, arguments: &[&str]) -> Outcome {
        run(&mut self.command(arguments))
    }
}

fn spawn_holding(mut command: Command) -> (Child, Value) {
    let mut child = command.args(["--hold", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_program_gets_the_memory_and_holds_the_attachment_until_it_ends() {
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 3_000_001);
    let mut serving = fixture.serve(&[]);
    let script = "cmp /proc/self/fd/$LONGSHORE_FD \"$0\" && echo $LONGSHORE_BYTES && \
                  test -S /proc/self/fd/$LONGSHORE_ATTACHMENT_FD && \"$1\" ls --json";
    let path = path.to_str().unwrap();
    let outcome = fixture.client(&[
        "attach",
        "model.bin",
        "--quiet",
        "--exec",
        "sh",
        "-c",
        script,
        path,
        LONGSHORE,
    ]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let (bytes, listing) = outcome.stdout.split_once('\n').unwrap();
    assert_eq!(bytes, "3000001");
    let listing: Value = serde_json::from_str(listing).unwrap();
    assert_eq!(listing["held"][0]["attachments"], 1, "the program holds it");
    assert_eq!(serving.wait("attached")["attachments"], 1);
    assert_eq!(serving.wait("released")["attachments"], 0);
    assert_eq!(serving.wait("freed")["bytes"], 3_000_001);
    let plain = fixture.client(&["attach", path]);
    for word in ["3.00 MB attached in", "model.bin", "--hold"] {
        assert!(plain.stdout.contains(word), "{word} in {}", plain.stdout);
    }
    let empty = fixture.client(&["ls"]);
    assert!(empty.stdout.ends_with("nothing is held\n"), "{}", empty.stdout);
    serving.stop();
    assert!(!fixture.socket().exists() && !fixture.path("socket.lock").exists());
}

#[test]
fn many_processes_share_one_load_and_a_killed_one_releases_it() {
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 30_000_000);
    let mut serving = fixture.serve(&[]);
    let path = path.to_str().unwrap();
    let holders: Vec<(Child, Value)> = thread::scope(|scope| {
        let spawned: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| spawn_holding(fixture.command(&["attach", path]))))
            .collect();
        spawned.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let held = fixture.client(&["ls", "--json"]).json()["held"].clone();
    assert_eq!(held.as_array().unwrap().len(), 1);
    assert_eq!((&held[0]["attachments"], &held[0]["state"]), (&6.into(), &"ready".into()));
    assert_eq!(serving.wait("loaded")["id"], 1);
    for (mut child, told) in holders {
        assert_eq!(told["id"], 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    serving.wait("freed");
    let rest = serving.stop();
    assert!(!rest.iter().any(|event| event["event"] == "loaded"), "{rest:?}");
}

#[test]
fn files_outside_of_the_roots_are_refused() {
    let fixture = Fixture::new();
    let secret = fixture.path("secret");
    fs::write(&secret, b"secret").unwrap();
    symlink("../secret", fixture.path("root").join("out")).unwrap();
    let _serving = fixture.serve(&[]);
    let outside = fixture.path("root").join("../secret");
    for path in [&secret, &outside, &fixture.path("root").join("out")] {
        let refused = fixture.client(&["attach", path.to_str().unwrap()]);
        refused.expect(31, &["is not served, or not to you", "longshore ls"]);
    }
    fixture.client(&["attach", "17"]).expect(31, &["nothing called '17'"]);
    let absent = fixture.path("root").join("absent");
    fixture.client(&["attach", absent.to_str().unwrap()]).expect(10, &["absent", "cannot open"]);
    let folder = fixture.path("root");
    fixture.client(&["attach", folder.to_str().unwrap()]).expect(17, &["no GGUF files"]);
    let damaged = folder.join("damaged.safetensors");
    fs::write(&damaged, b"not a header").unwrap();
    fixture.client(&["attach", damaged.to_str().unwrap()]).expect(15, &["not a valid safetensors"]);
}

#[test]
fn one_user_cannot_fill_the_log() {
    let fixture = Fixture::new();
    let secret = fixture.path("secret");
    fs::write(&secret, b"secret").unwrap();
    let serving = fixture.serve(&[]);
    let wanted = Wanted::Path(secret);
    for _ in 0..1500 {
        let client = Client::connect(Some(&fixture.socket()), &CancelToken::new()).unwrap();
        client.attach(&wanted, FormatChoice::Auto, &mut |_| ()).unwrap_err();
    }
    let events = serving.stop();
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    let (refused, suppressed) = (count("refused"), count("suppressed"));
    // 1,000 lines at once, and 20 more for each second that this took.
    assert!((1000..1500).contains(&refused), "{refused}");
    assert_ne!(suppressed, 0);
    let first = events.iter().find(|event| event["event"] == "suppressed").unwrap();
    assert_eq!(first["uid"], rustix::process::getuid().as_raw());
    assert_eq!(first["lines"], Value::Null);
}

#[test]
fn one_user_cannot_fill_the_log_with_loads() {
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 1000);
    let serving = fixture.serve(&[]);
    let wanted = Wanted::Path(path);
    for _ in 0..400 {
        // Loading, loaded, attached, released and freed.
        let client = Client::connect(Some(&fixture.socket()), &CancelToken::new()).unwrap();
        client.attach(&wanted, FormatChoice::Auto, &mut |_| ()).unwrap().release().unwrap();
    }
    let events = serving.stop();
    let of_models = ["loading", "loaded", "attached", "released", "freed"];
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    let lines: usize = of_models.iter().map(|name| count(name)).sum();
    // 1,000 lines at once, and 20 more for each second that this took.
    assert!((1000..1900).contains(&lines), "{lines}");
    assert_ne!(count("suppressed"), 0);
}

#[test]
fn another_user_attaches_files_that_it_may_read_and_cannot_write_to_them() {
    if !is_root() {
        println!("SKIPPED: another user cannot be tried without being root");
        return;
    }
    let fixture = Fixture::new();
    let open = fixture.model("open.bin", 100_000);
    let closed = fixture.model("closed.bin", 100_000);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o600)).unwrap();
    // The user `nobody` may not be able to reach the build folder.
    let program = fixture.path("longshore");
    command::copy_longshore(&program);
    let as_other = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("LONGSHORE_SOCKET", fixture.socket()).current_dir("/");
        as_nobody(&mut command);
        run(&mut command)
    };
    let (open, closed) = (open.to_str().unwrap(), closed.to_str().unwrap());
    // The script reopens the memory by its name in different ways, and prints those that work.
    let reopen = "cmp \"$0\" /dev/fd/$LONGSHORE_FD; test $? -le 1 && echo read; \
                  (: <> /dev/fd/$LONGSHORE_FD) && echo write; \
                  (: >> /dev/fd/$LONGSHORE_FD) && echo append; head -c 9 <&$LONGSHORE_FD | wc -c";
    let attach = |path| as_other(&["attach", path, "-q", "--exec", "sh", "-c", reopen, path]);

    let private = fixture.serve(&[]);
    as_other(&["ls"]).expect(12, &["may not use the socket", "--socket-mode"]);
    private.stop();

    let mut serving = fixture.serve(&["--socket-mode", "0666"]);
    let outcome = attach(open);
    assert_eq!(outcome.stdout.trim(), "9", "only the descriptor itself: {}", outcome.stderr);
    let event = serving.wait("attached");
    assert_eq!(event["client"]["uid"], 65534);
    attach(closed).expect(12, &["closed.bin", "Permission denied"]);
    // The model is held now, but this user may still not attach it.
    let (mut holder, told) = spawn_holding(fixture.command(&["attach", closed]));
    as_other(&["attach", &told["id"].to_string()]).expect(12, &["Permission denied"]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    serving.stop();

    let readable = fixture.serve(&["--socket-mode", "0666", "--memory-mode", "0444"]);
    let outcome = attach(open);
    assert_eq!(outcome.stdout.trim(), "read\n9", "read, but not written: {}", outcome.stderr);
    readable.stop();

    // The owner may open it, but it is sealed.
    let own = fixture.serve(&[]);
    let write = "echo x 1<>/dev/fd/$LONGSHORE_FD";
    let refused = fixture.client(&["attach", open, "-q", "--exec", "sh", "-c", write]);
    assert_ne!(refused.code, 0, "{}", refused.stderr);
    own.stop();
}

#[test]
fn a_server_of_another_user_gets_a_private_file_only_if_it_is_trusted() {
    if !is_root() {
        println!("SKIPPED: another user cannot be tried without being root");
        return;
    }
    const SERVER: u32 = 4242;
    const CLIENT: u32 = 4243;
    let fixture = Fixture::new();
    let path = fixture.model("private.bin", 1000);
    std::os::unix::fs::chown(&path, Some(CLIENT), Some(SERVER)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let program = fixture.path("longshore");
    command::copy_longshore(&program);
    let as_user = |uid: u32, arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("LONGSHORE_SOCKET", fixture.socket()).current_dir("/");
        command.uid(uid).gid(uid);
        command
    };
    let root = fixture.path("root");
    let serving = ["serve", "--json", "--socket-mode", "0666", "--root", root.to_str().unwrap()];
    let mut serving = Serving::start(as_user(SERVER, &serving));
    let path = path.to_str().unwrap();
    let refused = ["runs the server at", "user 4242", "nothing was sent", "--trust-uid 4242"];
    for uid in [0, CLIENT] {
        run(&mut as_user(uid, &["attach", path])).expect(34, &refused);
        run(&mut as_user(uid, &["attach", "private.bin", "--trust-uid", "4243"])).expect(34, &[]);
        run(&mut as_user(uid, &["ls"])).expect(34, &refused);
    }
    let mut by_variable = as_user(CLIENT, &["attach", "private.bin"]);
    assert_eq!(run(by_variable.env("LONGSHORE_TRUST_UID", "7,4242")).code, 0);
    assert_eq!(serving.wait("attached")["client"]["uid"], CLIENT);
    let by_option = ["attach", path, "--trust-uid", "7", "--trust-uid", "4242"];
    assert_eq!(run(&mut as_user(CLIENT, &by_option)).code, 0);
    let mut wrong = as_user(CLIENT, &["ls"]);
    run(wrong.env("LONGSHORE_TRUST_UID", "longshore")).expect(2, &["'longshore' in", "numbers"]);
    assert_eq!(run(&mut as_user(SERVER, &["ls"])).code, 0, "a user trusts its own server");
    let rest = serving.stop();
    let attached = rest.iter().filter(|event| event["event"] == "attached").count();
    assert_eq!(attached, 1, "{rest:?}");
}

#[test]
fn the_socket_is_taken_only_from_a_dead_server() {
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 1000);
    fixture.client(&["ls"]).expect(30, &["no such socket", "longshore serve"]);
    let mut serving = fixture.serve(&[]);
    let (root, socket) = (fixture.path("root"), fixture.socket());
    let (root, socket) = (root.to_str().unwrap(), socket.to_str().unwrap());
    let again = fixture.client(&["serve", "--root", root, "--socket", socket]);
    again.expect(33, &["a server listens", "already"]);

    let (mut holder, _) = spawn_holding(fixture.command(&["attach", path.to_str().unwrap()]));
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
    assert!(fixture.socket().exists(), "a killed server does not remove it");
    fixture.client(&["ls"]).expect(30, &["it was killed"]);
    assert_eq!(holder.try_wait().unwrap(), None, "the client keeps the memory");
    command::signal(&holder, "TERM");
    assert_eq!(holder.wait().unwrap().code(), Some(0));
    let next = fixture.serve(&[]);
    assert_eq!(fixture.client(&["ls"]).code, 0);
    next.stop();

    fs::write(fixture.socket(), b"precious").unwrap();
    let taken = fixture.client(&["serve", "--root", root, "--socket", socket]);
    taken.expect(33, &["is no socket (a regular file)", "left as it is"]);
    assert_eq!(fs::read(fixture.socket()).unwrap(), b"precious");
    fixture.client(&["ls"]).expect(30, &["no server listens", "is no socket (a regular file)"]);
    let other = fixture.path("other");
    let other = other.to_str().unwrap();
    let dark = fixture.client(&["serve", "--root", "/no/such/dir", "--socket", other]);
    dark.expect(10, &["/no/such/dir cannot be served"]);
    let file = fixture.model("model.bin", 1);
    let file = fixture.client(&["serve", "--root", file.to_str().unwrap(), "--socket", other]);
    file.expect(10, &["model.bin cannot be served", "Not a directory"]);
    assert_eq!(file.stdout, "", "a server that does not start does not stop");
    let lost = fixture.path("absent/socket");
    let lost = fixture.client(&["serve", "--root", root, "--socket", lost.to_str().unwrap()]);
    lost.expect(10, &["there is no directory", "absent for the socket; create it"]);
}

#[test]
fn files_are_loaded_before_the_server_is_ready_or_it_does_not_start() {
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 1000);
    let serving = fixture.serve(&[path.to_str().unwrap()]);
    let held = fixture.client(&["ls", "--json"]).json()["held"][0].clone();
    assert_eq!((&held["kept"], &held["state"]), (&true.into(), &"ready".into()));
    serving.stop();
    let socket = fixture.socket();
    let socket = socket.to_str().unwrap();
    let absent = fixture.client(&["serve", "--socket", socket, "/no/such/file"]);
    absent.expect(10, &["/no/such/file cannot be served"]);
    let absent = fixture.path("absent");
    let absent = fixture.client(&["serve", "--socket", socket, absent.to_str().unwrap()]);
    absent.expect(10, &["absent"]);
    assert_eq!(absent.stdout, "", "a server that does not start does not stop");
    let tight = ["serve", "--socket", socket, path.to_str().unwrap(), "--memory-max", "999"];
    fixture.client(&tight).expect(20, &["1000 bytes are needed", "--memory-max"]);
    assert!(!fixture.socket().exists(), "no socket is left");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let fixture = Fixture::new();
    fixture.client(&["serve"]).expect(2, &["at least one --root DIR", "FILE (to load now)"]);
    let refused = |options: &[&str], word| {
        let served = fixture.path("root");
        let all = [&["serve", "--root", served.to_str().unwrap()], options].concat();
        fixture.client(&all).expect(2, &[word]);
        assert!(!fixture.socket().exists());
    };
    refused(&["--memory-max", "1KiB", "--memory-max-per-user", "1025"], "larger than --memory-max");
    refused(&["--max-clients", "7", "--max-clients-per-user", "8"], "larger than --max-clients");
    refused(&["--max-attachments", "0"], "--max-attachments");
    refused(&["--max-clients", "0"], "--max-clients");
    refused(&["--align", "64"], "FILE");
}

#[test]
fn a_client_without_a_default_socket_reports_that_there_is_no_server() {
    if !is_root() || Path::new("/run/longshore/serve.sock").exists() {
        println!("SKIPPED: takes root, and a system without a server");
        return;
    }
    let fixture = Fixture::new();
    let program = fixture.path("longshore");
    command::copy_longshore(&program);
    for arguments in [&["ls"][..], &["attach", "model.bin"]] {
        let mut command = Command::new(&program);
        command.args(arguments).env_remove("XDG_RUNTIME_DIR").env_remove("LONGSHORE_SOCKET");
        as_nobody(&mut command);
        let outcome = run(&mut command);
        outcome.expect(30, &["/run/longshore/serve.sock", "$XDG_RUNTIME_DIR", "--socket"]);
        assert!(!outcome.stderr.contains("entity not found"), "{}", outcome.stderr);
    }
}

#[test]
fn a_file_in_the_current_directory_comes_before_one_below_the_roots() {
    let fixture = Fixture::new();
    fixture.model("model.bin", 1000);
    let here = fixture.path("here");
    fs::create_dir(&here).unwrap();
    let serving = fixture.serve(&[]);
    let attach = || run(fixture.command(&["attach", "model.bin", "-q"]).current_dir(&here));
    assert_eq!(attach().code, 0);
    fs::write(here.join("model.bin"), "own").unwrap();
    attach().expect(31, &["here/model.bin is not served"]);
    serving.stop();
}

#[test]
fn a_hangup_is_logged_and_ignored_and_the_reason_of_the_end_is_logged() {
    let fixture = Fixture::new();
    let mut serving = fixture.serve(&[]);
    for _ in 0..2 {
        command::signal(&serving.child, "HUP");
        assert_eq!(serving.wait("signal")["signal"], "SIGHUP");
        assert_eq!(fixture.client(&["ls"]).code, 0, "the server goes on");
    }
    let rest = serving.stop();
    let names: Vec<_> = rest.iter().map(|event| &event["event"]).collect();
    assert_eq!(names, ["signal", "stopping"]);
    assert_eq!(rest[0]["signal"], "SIGTERM");
}

#[test]
fn memory_that_a_program_keeps_is_not_logged_as_freed() {
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 100_000);
    let mut serving = fixture.serve(&[]);
    // The program closes the connection, and keeps the memory until its input ends.
    let script = "eval \"exec $LONGSHORE_ATTACHMENT_FD>&-\"; cat > /dev/null; \
                  head -c 9 <&$LONGSHORE_FD | wc -c";
    let path = path.to_str().unwrap();
    let mut command = fixture.command(&["attach", path, "-q", "--exec", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Value| event["event"] != "kept_by_clients") {
        events.push(serving.next().expect("it is logged that a client keeps the memory"));
    }
    assert!(events.iter().all(|event| event["event"] != "freed"), "{events:?}");
    assert_eq!(events.last().unwrap()["bytes"], 100_000);
    drop(child.stdin.take());
    assert_eq!(serving.wait("freed")["bytes"], 100_000);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "9");
    serving.stop();
}

#[test]
fn the_options_limit_each_user() {
    if !is_root() {
        println!("SKIPPED: another user cannot be tried without being root");
        return;
    }
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 100_000);
    let program = fixture.path("longshore");
    command::copy_longshore(&program);
    let other = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("LONGSHORE_SOCKET", fixture.socket()).current_dir("/");
        run(command.uid(4242).gid(4242))
    };
    let path = path.to_str().unwrap();
    let all = ["--socket-mode", "0666"];
    let small = fixture.serve(&[&all[..], &["--memory-max-per-user", "50000"]].concat());
    other(&["attach", path]).expect(32, &["50.00 kB that one user", "--memory-max-per-user"]);
    assert_eq!(fixture.client(&["attach", path]).code, 0, "the server's own user");
    small.stop();
    let none = fixture.serve(&[&all[..], &["--max-clients-per-user", "0"]].concat());
    other(&["ls"]).expect(32, &["user 4242 has 0 connections", "--max-clients-per-user"]);
    assert_eq!(fixture.client(&["ls"]).code, 0, "the server's own user");
    none.stop();
    let large = ["--memory-max", "150000", "--memory-max-per-user", "150000"];
    let large = fixture.serve(&[&all[..], &large, &["--max-loads-per-user", "2"]].concat());
    assert_eq!(other(&["attach", path]).code, 0);
    large.stop();
    fixture.client(&["serve", "--root", "/", "--max-loads-per-user", "3"]).expect(2, &["1..=2"]);
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the command for a server with a limit of `count` descriptors.
fn with_descriptors(fixture: &Fixture, count: u64) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {count}; exec \"$@\"");
    command.args(["-c", &script, "sh", LONGSHORE, "serve", "--json", "--root"]);
    command.arg(fixture.path("root")).arg("--socket").arg(fixture.socket());
    command::inherit_no_descriptors(&mut command);
    command
}

#[test]
fn without_descriptors_clients_get_an_error_and_are_served_later() {
    let fixture = Fixture::new();
    let path = fixture.model("model.bin", 1000);
    let serving = Serving::start(with_descriptors(&fixture, 256));
    let path = path.to_str().unwrap();
    let mut command = fixture.command(&["attach", path, "--hold", "--json"]);
    let mut holder = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(holder.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("1000"), "{line}");
    let pid = rustix::process::Pid::from_child(&serving.child);
    let limit = |count| rustix::process::Rlimit { current: Some(count), maximum: Some(256) };
    let nofile = rustix::process::Resource::Nofile;
    // No descriptor is left for a connection.
    let is_open = |number: &u64| {
        fs::symlink_metadata(format!("/proc/{}/fd/{number}", serving.child.id())).is_ok()
    };
    let mut first_free = 0;
    wait_until(|| {
        // Another thread of the server may be about to close the memory that the holder was sent.
        first_free = (0..).find(|number| !is_open(number)).unwrap();
        rustix::process::prlimit(Some(pid), nofile, limit(first_free)).unwrap();
        fixture.client(&["ls"]).code == 32
    });
    fixture.client(&["ls"]).expect(32, &["no descriptors left"]);
    // One is left for a connection, but none for the file that the client sends.
    rustix::process::prlimit(Some(pid), nofile, limit(first_free + 1)).unwrap();
    fixture.client(&["attach", path]).expect(32, &["no descriptors left"]);
    rustix::process::prlimit(Some(pid), nofile, limit(256)).unwrap();
    wait_until(|| fixture.client(&["attach", path]).code == 0);
    drop(holder);
    wait_until(|| fixture.client(&["ls"]).stdout.contains("nothing is held"));
    serving.stop();
}

#[test]
fn a_server_with_too_few_descriptors_does_not_start() {
    let fixture = Fixture::new();
    fixture.model("model.bin", 1000);
    let output = with_descriptors(&fixture, 255).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(32), "{said}");
    assert!(said.contains("may have 255 descriptors, and a server needs 256"), "{said}");
    assert!(said.contains("LimitNOFILE="), "{said}");
    assert!(!fixture.socket().exists());
}

fn wait_until(mut is_it: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_it() {
        assert!(begin.elapsed() < PATIENCE, "timed out");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_default_socket_is_in_the_runtime_directory_of_the_user() {
    if !is_root() {
        println!("SKIPPED: another user cannot be tried without being root");
        return;
    }
    let fixture = Fixture::new();
    fixture.model("model.bin", 1000);
    let program = fixture.path("longshore");
    command::copy_longshore(&program);
    let runtime = fixture.path("runtime");
    fs::create_dir(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(65534), Some(65534)).unwrap();
    let as_other = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("XDG_RUNTIME_DIR", &runtime).env_remove("LONGSHORE_SOCKET");
        as_nobody(&mut command);
        command
    };
    let root = fixture.path("root");
    let serving = Serving::start(as_other(&["serve", "--json", "--root", root.to_str().unwrap()]));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&runtime.join("longshore")), 0o700);
    assert_eq!(mode(&runtime.join("longshore/serve.sock")), 0o600);
    assert_eq!(run(&mut as_other(&["attach", "model.bin"])).code, 0);
    serving.stop();
    let nowhere = run(as_other(&["serve", "--root", "/tmp"]).env_remove("XDG_RUNTIME_DIR"));
    nowhere.expect(1, &["$XDG_RUNTIME_DIR is not set", "--socket"]);
    assert!(!nowhere.stderr.contains("entity not found"), "{}", nowhere.stderr);
}
