//! 64 processes attach, read, release, misbehave, exit and are killed at random, for a minute (or
//! `LONGSHORE_STRESS_SECONDS`). Then the server has freed all memory and closed all descriptors.
//!
//! It runs only by name, because it takes long: `cargo test -p longshore-serve --test stress -- --ignored`.

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use longshore_load::CancelToken;
use longshore_load::FormatChoice;
use longshore_serve::protocol::{Request, Target, VERSION};
use longshore_serve::{Client, Error, Event, Listener, Options, Reason, Server, Stop, Wanted};
use longshore_sys::packet_socket;

const ROLE: &str = "LONGSHORE_STRESS_ROLE";
const CLIENTS: usize = 64;
const MODELS: u64 = 6;
const MODEL_BYTES: u64 = 24 << 20;
/// Not all models fit at once, so that some clients are refused, and unused models are freed.
const MEMORY_MAX_BYTES: u64 = 4 * MODEL_BYTES;

#[test]
#[ignore = "takes a minute"]
fn clients_come_and_die_and_nothing_is_left() {
    match env::var(ROLE).as_deref() {
        Ok("server") => return serve(),
        Ok("client") => return be_a_client(),
        _ => {}
    }
    let seconds = env::var("LONGSHORE_STRESS_SECONDS").ok().and_then(|it| it.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(60));
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::create_dir(dir.path().join("root")).unwrap();
    for number in 0..MODELS {
        let content: Vec<u8> =
            (0..MODEL_BYTES / 8).flat_map(|at| word(number, at).to_le_bytes()).collect();
        fs::write(model(dir.path(), number), content).unwrap();
    }
    let mut server = role("server", dir.path(), 0).stdin(Stdio::piped()).spawn().unwrap();
    let socket = dir.path().join("socket");
    wait_until(|| connect(&socket).is_ok());
    let at_rest = Rest::of(&server, &socket);

    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut clients: Vec<Child> = Vec::new();
    let (mut started, mut killed) = (0u64, 0u64);
    let begin = Instant::now();
    let mut turn = begin;
    while begin.elapsed() < time {
        // From time to time all clients are killed at once, so that models are freed and loaded again.
        if Instant::now() > turn {
            turn = Instant::now() + Duration::from_millis(50 + random.below(800));
            for client in &mut clients {
                client.kill().unwrap();
            }
            killed += clients.len() as u64;
            clients.drain(..).for_each(|mut client| _ = client.wait().unwrap());
        }
        while clients.len() < CLIENTS {
            started += 1;
            clients.push(role("client", dir.path(), started).spawn().unwrap());
        }
        thread::sleep(Duration::from_millis(2));
        clients.retain_mut(|client| client.try_wait().unwrap().is_none());
        if random.below(4) == 0 && !clients.is_empty() {
            let mut client = clients.swap_remove(random.below(clients.len() as u64) as usize);
            client.kill().unwrap();
            client.wait().unwrap();
            killed += 1;
        }
        assert_eq!(server.try_wait().unwrap(), None, "the server has ended");
    }
    for mut client in clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    let mut now = Rest::of(&server, &socket);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !now.is_as(&at_rest) {
        assert!(Instant::now() < deadline, "{now:?} is left of {at_rest:?}");
        thread::sleep(Duration::from_millis(20));
        now = Rest::of(&server, &socket);
    }
    // The last line of the server has its counts.
    drop(server.stdin.take());
    let mut counts = String::new();
    server.stderr.take().unwrap().read_to_string(&mut counts).unwrap();
    assert!(server.wait().unwrap().success(), "{counts}");
    println!("{started} clients, of which {killed} were killed; {counts}");
    let count = |name: &str| -> u64 {
        let words: Vec<&str> = counts.split_whitespace().collect();
        let at = words.iter().position(|word| *word == name).unwrap();
        words[at + 1].parse().unwrap()
    };
    assert!(started > CLIENTS as u64 && killed > 0);
    assert!(count("attached") > 0 && count("disconnected") > 0);
    assert_eq!(count("attached"), count("released"), "{counts}");
    assert_eq!(count("loaded"), count("freed"), "{counts}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the root is left");
}

/// The state of a server without clients.
#[derive(Debug, PartialEq, Eq)]
struct Rest {
    held: usize,
    descriptors: usize,
    threads: u64,
    shared_kib: u64,
    private_kib: u64,
}

impl Rest {
    fn of(server: &Child, socket: &Path) -> Self {
        let held = connect(socket).unwrap().list().unwrap().held.len();
        let of_process = |name: &str| PathBuf::from(format!("/proc/{}/{name}", server.id()));
        let status = fs::read_to_string(of_process("status")).unwrap();
        let number = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        Self {
            held,
            descriptors: fs::read_dir(of_process("fd")).unwrap().count(),
            threads: number("Threads:"),
            shared_kib: number("RssShmem:"),
            private_kib: number("RssAnon:"),
        }
    }

    /// Returns `true` if the server holds no more than at rest, except memory that the allocator keeps.
    fn is_as(&self, rest: &Self) -> bool {
        self.held == 0
            && self.descriptors <= rest.descriptors
            && self.threads <= rest.threads
            && self.shared_kib <= rest.shared_kib
            && self.private_kib <= rest.private_kib + (32 << 10)
    }
}

fn role(role: &str, dir: &Path, seed: u64) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "clients_come_and_die_and_nothing_is_left"]);
    command.arg("--nocapture").env(ROLE, role).env("LONGSHORE_STRESS_DIR", dir);
    command.env("LONGSHORE_STRESS_SEED", seed.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    if role == "server" {
        command.stderr(Stdio::piped());
    }
    command
}

fn dir() -> PathBuf {
    env::var_os("LONGSHORE_STRESS_DIR").unwrap().into()
}

fn model(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("root/{number}.bin"))
}

/// Returns the eight bytes of a model at offset `8 * at`.
fn word(number: u64, at: u64) -> u64 {
    (number << 56 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn serve() {
    let stop = Stop::new().unwrap();
    let stopper = stop.clone();
    thread::spawn(move || {
        // This returns when the test closes its end.
        let _ = std::io::stdin().read(&mut [0]);
        stopper.stop();
    });
    let options = Options::new().root(dir().join("root")).memory_max(MEMORY_MAX_BYTES);
    let listener = Listener::bind(&dir().join("socket"), 0o600).unwrap();
    let (mut loaded, mut failed, mut attached, mut released) = (0u64, 0u64, 0u64, 0u64);
    let (mut freed, mut refused, mut disconnected) = (0u64, 0u64, 0u64);
    let server = Server::new(listener, options, stop).unwrap();
    server
        .run(|event| match event {
            Event::Loaded { .. } => loaded += 1,
            Event::LoadFailed { .. } => failed += 1,
            Event::Attached { .. } => attached += 1,
            Event::Released { .. } => released += 1,
            Event::Freed { .. } => freed += 1,
            Event::Refused { .. } => refused += 1,
            Event::Disconnected { .. } => disconnected += 1,
            _ => {}
        })
        .unwrap();
    eprintln!(
        "loaded {loaded} given_up {failed} attached {attached} released {released} freed {freed} \
         refused {refused} disconnected {disconnected}"
    );
}

fn be_a_client() {
    let seed: u64 = env::var("LONGSHORE_STRESS_SEED").unwrap().parse().unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let socket = dir().join("socket");
    for _ in 0..random.below(12) + 1 {
        let number = random.below(MODELS);
        let path = model(&dir(), number).canonicalize().unwrap();
        match random.below(8) {
            0 => misbehave(&socket, &path, &mut random),
            1 => {
                // The client disconnects while the model is looked up, loaded or attached.
                let raw = packet_socket::connect(&socket);
                let Ok(raw) = raw else { continue };
                let file = File::open(&path).unwrap();
                let hello = Request::Hello { version: VERSION }.encode();
                let target = Target::Path(path);
                let attach =
                    Request::Attach { target, format: "raw".to_owned(), align_bytes: 0 }.encode();
                let _ = packet_socket::send(&raw, &hello, None);
                let _ = packet_socket::send(&raw, &attach, Some(file.as_fd()));
                thread::sleep(Duration::from_millis(random.below(8)));
            }
            behaviour => {
                let cancel = CancelToken::new();
                let gives_up = behaviour == 2;
                let mut observe = |_| {
                    if gives_up {
                        cancel.cancel();
                    }
                };
                let wanted = Wanted::Path(path);
                let attached = Client::connect(Some(&socket), &cancel)
                    .and_then(|it| it.attach(&wanted, FormatChoice::Raw, &mut observe));
                let attachment = match attached {
                    Ok(attachment) => attachment,
                    Err(Error::Cancelled { .. } | Error::ServerGone | Error::NoServer { .. }) => {
                        continue;
                    }
                    Err(Error::Refused { reason: Reason::NoMemory | Reason::TooMany, .. }) => {
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                };
                let bytes = attachment.as_slice();
                assert_eq!(bytes.len() as u64, MODEL_BYTES);
                for _ in 0..64 {
                    let at = random.below(MODEL_BYTES / 8);
                    let found = &bytes[at as usize * 8..][..8];
                    assert_eq!(found, word(number, at).to_le_bytes(), "model {number} at {at}");
                }
                thread::sleep(Duration::from_millis(random.below(60)));
                match behaviour {
                    3 => std::process::abort(),
                    4 => std::process::exit(0),
                    5 => drop(attachment),
                    _ => attachment.release().unwrap(),
                }
            }
        }
    }
}

fn misbehave(socket: &Path, path: &Path, random: &mut Random) {
    let Ok(raw) = packet_socket::connect(socket) else { return };
    let hello = Request::Hello { version: VERSION }.encode();
    let file = File::open(path).unwrap();
    for _ in 0..random.below(6) {
        let garbage: Vec<u8> = (0..random.below(40)).map(|_| random.below(256) as u8).collect();
        let with = (random.below(3) == 0).then_some(file.as_fd());
        let bytes = if random.below(2) == 0 { &hello } else { &garbage };
        // The server may have ended the connection.
        let _ = packet_socket::send(&raw, bytes, with);
    }
}

fn connect(socket: &Path) -> longshore_serve::Result<Client> {
    Client::connect(Some(socket), &CancelToken::new())
}

fn wait_until(mut is_it: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_it() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the condition does not become true");
        thread::sleep(Duration::from_millis(5));
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % end
    }
}
