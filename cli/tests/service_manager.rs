//! `longshore serve` under a service manager, and the units in `examples/systemd`.

mod command;
#[path = "command/serving.rs"]
mod serving;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use command::{LONGSHORE, Outcome, run};
use serving::Serving;

const PATIENCE: Duration = Duration::from_secs(60);

/// A directory for a server, with a model in it, and the socket on which the server notifies the service manager.
struct Fixture {
    dir: tempfile::TempDir,
    notified: UnixDatagram,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(dir.path().join("root/llama")).unwrap();
        fs::create_dir(dir.path().join("published")).unwrap();
        let model = dir.path().join("root/llama/model.safetensors");
        command::longshore(&["make-model", "--size", "1MiB", model.to_str().unwrap()])
            .expect(0, &[]);
        let notified = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notified.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { dir, notified }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn model(&self) -> PathBuf {
        self.path("root/llama/model.safetensors")
    }

    fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// Returns the next notification of the service manager.
    fn hear(&self) -> String {
        let mut bytes = [0; 64];
        let len_bytes = self.notified.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len_bytes].to_vec()).unwrap()
    }

    /// Returns the command for a server with these arguments.
    fn serve(&self, arguments: &[&str]) -> Command {
        self.started("exec \"$@\"", arguments)
    }

    fn started(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", LONGSHORE, "serve", "--json"]);
        command.args(arguments).env("NOTIFY_SOCKET", self.path("notify"));
        command
    }

    /// Returns the command for a server that gets its socket, and the manager's copy of this socket.
    fn activated(&self, arguments: &[&str], names: &str) -> (Command, OwnedFd) {
        let listener = longshore_sys::packet_socket::listen(&self.socket(), 0o600, 8).unwrap();
        let mut command = self.started("LISTEN_PID=$$ exec \"$@\"", arguments);
        command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", names);
        let own = listener.try_clone().unwrap();
        command::hand_over(&mut command, listener);
        (command, own)
    }

    fn attach(&self) -> Outcome {
        let mut command = Command::new(LONGSHORE);
        run(command.arg("attach").arg(self.model()).env("LONGSHORE_SOCKET", self.socket()))
    }
}

/// Returns the values of a key of a unit.
fn values(unit: &str, key: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd").join(unit);
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.map(str::to_owned).collect()
}

/// Returns the arguments that a unit gives to `longshore serve`, with the directories of the fixture.
fn arguments(fixture: &Fixture, unit: &str) -> Vec<String> {
    let [line] = &values(unit, "ExecStart")[..] else { panic!("one ExecStart in {unit}") };
    let line = line.strip_prefix("/usr/local/bin/longshore serve ").unwrap();
    let [root, published] = ["root", "published"].map(|it| fixture.path(it).display().to_string());
    let line = line.replace("/srv/models", &root).replace("/models", &published);
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_service_manager_passes_the_socket_and_is_notified() {
    let fixture = Fixture::new();
    let root = fixture.path("root");
    let (command, _listener) = fixture.activated(&["--root", root.to_str().unwrap()], "longshore");
    let serving = Serving::start(command);
    assert_eq!(fixture.hear(), "READY=1");
    fixture.attach().expect(0, &[]);
    let rest = serving.stop();
    assert_eq!(fixture.hear(), "STOPPING=1");
    assert!(rest.iter().any(|event| event["event"] == "stopping"), "{rest:?}");
    assert!(fixture.socket().exists(), "the socket is the manager's");
    // Clients that connect now wait for the next server.
    longshore_sys::packet_socket::connect(&fixture.socket()).unwrap();
}

#[test]
fn an_inherited_socket_of_another_type_is_refused() {
    let fixture = Fixture::new();
    let root = fixture.path("root");
    let (mut command, _listener) = fixture.activated(&["--root", root.to_str().unwrap()], "");
    let other = std::os::unix::net::UnixListener::bind(fixture.path("other")).unwrap();
    command::hand_over(&mut command, other.into());
    run(&mut command).expect(1, &["sequenced packets", "ListenSequentialPacket="]);
}

#[test]
fn the_unit_of_the_server_serves_its_socket() {
    let fixture = Fixture::new();
    assert_eq!(values("longshore.socket", "ListenSequentialPacket"), ["/run/longshore/serve.sock"]);
    let arguments = arguments(&fixture, "longshore.service");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (command, _listener) = fixture.activated(&arguments, "longshore.socket");
    let serving = Serving::start(command);
    assert_eq!(fixture.hear(), "READY=1");
    fixture.attach().expect(0, &[]);
    serving.stop();
}

#[test]
fn the_unit_of_published_models_publishes_into_its_mount() {
    let fixture = Fixture::new();
    assert_eq!(values("models.mount", "Where"), ["/models"]);
    assert_eq!(values("longshore-publish.service", "ReadWritePaths"), ["/models"]);
    let arguments = arguments(&fixture, "longshore-publish.service");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut server = fixture.serve(&arguments).spawn().unwrap();
    assert_eq!(fixture.hear(), "READY=1");
    let published = fixture.path("published/llama/model.safetensors");
    assert!(fs::read(published).unwrap() == fs::read(fixture.model()).unwrap());
    command::signal(&server, "TERM");
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn the_units_are_valid_and_permit_openat2() {
    let units =
        ["longshore.socket", "longshore.service", "models.mount", "longshore-publish.service"];
    for unit in units {
        // It refuses openat2, because a filter cannot see the mode in its arguments.
        assert!(values(unit, "RestrictSUIDSGID").is_empty(), "{unit}");
    }
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        println!("SKIPPED: there is no systemd-analyze");
        return;
    };
    assert!(version.status.success());
    // The program of the units is not installed here.
    let dir = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd");
    for unit in units {
        let text = fs::read_to_string(from.join(unit)).unwrap();
        fs::write(dir.path().join(unit), text.replace("/usr/local/bin/longshore", LONGSHORE))
            .unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify").args(units.map(|unit| dir.path().join(unit)));
    let verified = run(verify.env("SYSTEMD_UNIT_PATH", format!("{}:", dir.path().display())));
    let about_ours =
        verified.stderr.lines().filter(|line| units.iter().any(|it| line.contains(it)));
    assert_eq!(about_ours.collect::<Vec<_>>(), [""; 0], "{}", verified.stderr);
    verified.expect(0, &[]);
}
