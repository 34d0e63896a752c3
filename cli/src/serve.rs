//! `longshore serve`.

use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::RangedU64ValueParser;
use longshore::Heap;
use longshore::load::FormatChoice;
use longshore::serve::{Event, Keep, Listener, Options, Peer, Server, Stop, Users};
use serde_json::{Value, json};

use crate::choices;
use crate::exit::failure;
use crate::rate_limit::{RateLimit, Verdict};
use crate::serve_log::{Line, Log, LogHandle};
use crate::serve_publishing::{self, PublishingArgs};
use crate::serve_remote::Sources;
use crate::signals::{self, ServerSignal};
use crate::sources::{self, FilterArgs};
use crate::units::{Alignment, Period, Size};

/// Load models into memory once, and share them with all processes of this machine.
///
/// The server loads a file when the first process attaches it, into sealed memory that no process can
/// change. Every process that can open the file itself and connect to the socket can attach the
/// memory. The server frees the memory after the last process releases it, unless --keep or
/// --idle-free says otherwise.
///
/// Give at least one --root DIR (files that clients may attach), one FILE (loaded at the start and kept
/// for as long as the server runs), or --publish DIR (models as files in a tmpfs, for programs that do
/// not know Longshore).
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Share the models of a directory between your own processes:
    longshore serve --root ~/models
  Load one model at the start, and keep others for ten minutes after their last use:
    longshore serve --root /srv/models --idle-free 10m /srv/models/llama.safetensors
  Let all users attach the models that they can read, in at most 64 GiB:
    longshore serve --root /srv/models --socket-mode 0666 --memory-mode 0444 \\
        --memory-max 64GiB --keep
  In another shell:
    longshore attach llama.safetensors --exec python3 infer.py
    longshore ls
  Share the models of a bucket, and attach one in another shell:
    longshore serve --root s3://my-bucket/models/
    longshore attach s3://my-bucket/models/llama/ --exec python3 infer.py
  Keep two models published for all engines of the machine, and follow their sources (as root):
    longshore serve --publish /models --mount --preload /srv/llama --preload /srv/qwen
  In another shell:
    longshore ls --published /models

Several users:
  The --...-per-user limits and their defaults do not apply to root and to the user that runs the
  server. A user's ids of /etc/subuid count as that user. Clients of other users attach only if they
  trust the server's user: root, 'longshore', or one that they name with --trust-uid, an option of
  'longshore attach' and 'longshore ls'.

Signals:
  SIGINT and SIGTERM end the server; clients keep the memory that they have attached. SIGHUP is
  logged and ignored.

Under systemd, a .socket unit with ListenSequentialPacket= passes its socket to the server, and the
.service unit may have Type=notify.

The exit codes are listed by 'longshore --help'.
")]
pub(crate) struct ServeArgs {
    /// A file to load at the start and to keep; the index of a model loads all its shards. A directory
    /// stands for the model in it. Also a model on a server, as for --root; hf://ORG/NAME is taken from the
    /// local cache of the Hugging Face Hub if it is there.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    filter: FilterArgs,

    /// Let clients attach files in this directory and below. May be repeated. A file system that is
    /// mounted below it is not entered: name its mount point, too. Also a place on a server:
    /// s3://BUCKET/PREFIX/, gs://…, az://…, https://HOST/PATH/, hf://ORG or hf://ORG/NAME. Every process
    /// that can connect may attach the models below it, with the credentials of this server.
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,

    /// Refuse a model on a server if all requests of its load together take longer. The requests that look
    /// it up may take 30 seconds at most.
    #[arg(long, value_name = "SECONDS", value_parser = sources::seconds)]
    timeout: Option<Duration>,

    /// The path of the socket [default: $LONGSHORE_SOCKET; else /run/longshore/serve.sock for root
    /// and $XDG_RUNTIME_DIR/longshore/serve.sock for other users].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// The permissions of the socket: 0600 lets only this user connect, 0660 also the group, 0666 all
    /// users.
    #[arg(long, value_name = "MODE", default_value = "0600")]
    socket_mode: Mode,

    /// The permissions of the memory when a client opens it by its name in /proc/PID/fd: 0444 lets
    /// clients of other users do that. The memory can never be written.
    #[arg(long, value_name = "MODE", default_value = "0400")]
    memory_mode: Mode,

    /// The most bytes of models at once. To make room, the server frees unused models, those that
    /// were not used for longest first.
    #[arg(long, value_name = "SIZE")]
    memory_max: Option<Size>,

    /// The most bytes of models that one user may have at once [default: half of what others do not
    /// have of --memory-max, or of the memory that is available at the start; with --heap hugetlb, of
    /// the pages that the pool has left then]. Not for root and the server's own user.
    #[arg(long, value_name = "SIZE")]
    memory_max_per_user: Option<Size>,

    /// The most attachments of one user, including clients that wait for a model.
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least_one())]
    max_attachments: usize,

    /// The most clients at once. The server lowers it to half of its limit of open files.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = at_least_one())]
    max_clients: usize,

    /// The most clients of one user at once [default: half of --max-clients]. Not for root and the
    /// server's own user.
    #[arg(long, value_name = "N")]
    max_clients_per_user: Option<usize>,

    /// The most models that are loaded at once for one user, 1 or 2 [default: 1]. Two are loaded at
    /// once in all. Not for root and the server's own user.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    max_loads_per_user: Option<u8>,

    /// Keep an unused model for this long: 500ms, 30s, 10m, 2h. A number without a unit is in seconds.
    #[arg(long, value_name = "DURATION", conflicts_with = "keep")]
    idle_free: Option<Period>,

    /// Keep unused models until the memory is needed.
    #[arg(long)]
    keep: bool,

    /// The kind of memory.
    #[arg(long, default_value = "memfd", value_parser = choices::HEAPS_OF_SERVER)]
    heap: Heap,

    /// The format of each FILE; auto: by its name.
    #[arg(long, default_value = "auto", value_parser = choices::FORMATS)]
    format: FormatChoice,

    /// Place every tensor of each FILE at a multiple of this many bytes: 64, 256, 4096, 2M. A client
    /// that attaches another file chooses its alignment itself.
    #[arg(long, value_name = "N", requires = "files")]
    align: Option<Alignment>,

    #[command(flatten)]
    publishing: PublishingArgs,

    /// Print each event as a JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
}

/// The permissions of a file, in octal digits.
#[derive(Clone, Copy, Debug)]
struct Mode(u32);

impl FromStr for Mode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(word, 8).ok().filter(|mode| *mode <= 0o777);
        mode.map(Self).ok_or_else(|| {
            format!("'{word}' is not a file mode (expected octal digits such as 0660)")
        })
    }
}

/// Returns a parser of numbers from 1.
fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

impl ServeArgs {
    /// Returns `true` if clients can attach models. Otherwise no socket is needed.
    fn serves_clients(&self) -> bool {
        !self.root.is_empty() || !self.files.is_empty()
    }

    /// Returns a message if these options contradict each other.
    fn contradiction(&self) -> Option<String> {
        let exceeds =
            |user: Option<u64>, all: Option<u64>| user.zip(all).is_some_and(|(u, a)| u > a);
        let size = |size: &Option<Size>| size.as_ref().map(|size| size.0);
        if !self.serves_clients() && self.publishing.publish.is_none() {
            let what = "--root DIR (files that clients may attach), FILE (to load now) or --publish \
                        DIR (models as files)";
            Some(format!("nothing to serve: give at least one {what}"))
        } else if exceeds(size(&self.memory_max_per_user), size(&self.memory_max)) {
            Some("--memory-max-per-user is larger than --memory-max".to_owned())
        } else if self.max_clients_per_user.is_some_and(|clients| clients > self.max_clients) {
            let all = self.max_clients;
            Some(format!("--max-clients-per-user is larger than --max-clients ({all})"))
        } else {
            None
        }
    }
}

pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    if let Some(contradiction) = args.contradiction() {
        return Err(failure(2, format!("{contradiction}; see 'longshore serve --help'")));
    }
    // First of all, because inherited descriptors have fixed numbers.
    let inherited = Listener::inherited()?;
    let stop = Stop::new()?;
    let log = Log::start()?;
    handle_signals(&args, stop.clone(), log.handle())?;
    let manager = serve_publishing::manager(&args.publishing, args.timeout, args.quiet, &stop)?;
    if !args.serves_clients() {
        let (json, quiet, handle) = (args.json, args.quiet, log.handle());
        let managed = manager.map_or(Ok(()), |manager| {
            manager.run(|event| serve_publishing::log(event, &handle, json, quiet))
        });
        log.end();
        return Ok(managed?);
    }
    let listener = match (inherited, &args.socket) {
        (Some(inherited), _) => inherited,
        (None, Some(socket)) => Listener::bind(socket, args.socket_mode.0)?,
        (None, None) => Listener::bind_default(args.socket_mode.0)?,
    };
    let keep = match args.idle_free {
        Some(Period(time)) => Keep::Idle(time),
        None if args.keep => Keep::Always,
        None => Keep::Attached,
    };
    let (roots, files) = (&args.root, &args.files);
    let sources = Sources::find(roots, files, &args.filter, args.format, args.timeout)?;
    let mut options = Options::new()
        .format(args.format)
        .align(args.align.map(|align| align.0))
        .memory_max(args.memory_max.map(|size| size.0))
        .memory_per_user(args.memory_max_per_user.map(|size| size.0))
        .attachments_max(args.max_attachments)
        .clients_max(args.max_clients)
        .clients_per_user(args.max_clients_per_user)
        .loads_per_user(args.max_loads_per_user.map(usize::from))
        .keep(keep)
        .heap(args.heap)
        .memory_mode(args.memory_mode.0);
    options.roots = sources.roots;
    options.files = sources.files;
    options.remote = sources.remote;
    let server = Server::new(listener, options, stop.clone())?;
    let managing = manager.map(|manager| {
        let stop = stop.clone();
        let (json, quiet, handle) = (args.json, args.quiet, log.handle());
        let thread = thread::Builder::new().name("publishing".to_owned());
        thread.spawn(move || {
            let managed = manager.run(|event| serve_publishing::log(event, &handle, json, quiet));
            // If it failed, the server ends, too.
            stop.stop();
            managed
        })
    });
    let managing = managing.transpose()?;
    let (mut limit, users) = (RateLimit::default(), Users::of_system());
    let served = server.run(|event| {
        if args.quiet && !args.json && !matches!(event, Event::Trouble { .. }) {
            return;
        }
        let say = |event: &Event| match event {
            Event::Trouble { problem } if !args.json => log.say(Line::Error(problem.to_string())),
            _ if args.json => log.say(Line::Out(as_json(event).to_string())),
            _ => log.say(Line::Out(event.to_string())),
        };
        if matches!(event, Event::RemoteRoots { .. } | Event::Ready { .. } | Event::Stopping) {
            return say(event);
        }
        let user = event.uid().map(|uid| users.owner_of(uid));
        match limit.count(user, Instant::now()) {
            Verdict::Print { suppressed: 0 } => say(event),
            Verdict::Print { suppressed } => {
                log.say(suppression(user, Some(suppressed), args.json));
                say(event);
            }
            Verdict::Announce => log.say(suppression(user, None, args.json)),
            Verdict::Suppress => {}
        }
    });
    stop.stop();
    let managed = managing.map(|thread| {
        let failed = || failure(1, "the thread that publishes models has failed");
        thread.join().map_err(|_| failed())
    });
    log.end();
    served?;
    managed.transpose()?.transpose()?;
    Ok(())
}

/// Ends the server on SIGINT and SIGTERM, and logs every signal.
fn handle_signals(args: &ServeArgs, stop: Stop, log: LogHandle) -> anyhow::Result<()> {
    let (json, quiet) = (args.json, args.quiet);
    let say = move |signal: &str, message: &str| {
        if json {
            let event = json!({ "event": "signal", "signal": signal, "message": message });
            log.say(Line::Out(event.to_string()));
        } else if !quiet {
            log.say(Line::Out(format!("{signal}: {message}")));
        }
    };
    let mut signals = signals::of_server()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        loop {
            match signals.wait() {
                Some(ServerSignal::HangUp) => {
                    say("SIGHUP", "ignored, there is nothing to reload; SIGTERM ends the server");
                }
                Some(ServerSignal::End(signal)) => {
                    say(signal, "the server ends");
                    return stop.stop();
                }
                None => return stop.stop(),
            }
        }
    })?;
    Ok(())
}

/// Returns the line that reports `lines` suppressed lines of a user or of the server itself, or, if
/// `None`, that suppression begins.
fn suppression(user: Option<u32>, lines: Option<u64>, json: bool) -> Line {
    if json {
        let event = json!({ "event": "suppressed", "uid": user, "lines": lines });
        return Line::Out(event.to_string());
    }
    let who = user.map_or_else(|| "the server".to_owned(), |uid| format!("user {uid}"));
    Line::Out(match lines {
        Some(lines) => format!("{lines} lines about {who} were not printed"),
        None => format!("too many lines about {who}: they are counted, not printed"),
    })
}

fn as_json(event: &Event) -> Value {
    let of_peer = |peer: &Peer| json!({ "pid": peer.pid, "uid": peer.uid, "gid": peer.gid });
    match event {
        Event::RemoteRoots { roots } => json!({
            "event": "remote_roots", "message": event.to_string(),
            "roots": roots.iter().map(|root| root.to_string_lossy()).collect::<Vec<_>>(),
        }),
        Event::Ready { socket } => json!({
            "event": "ready", "pid": std::process::id(),
            "socket": socket.as_ref().map(|socket| socket.to_string_lossy()),
        }),
        Event::Loading { id, path, len_bytes, .. } => json!({
            "event": "loading", "id": id, "path": path.to_string_lossy(), "bytes": len_bytes,
        }),
        Event::Loaded { id, path, len_bytes, elapsed, pages, .. } => json!({
            "event": "loaded", "id": id, "path": path.to_string_lossy(), "bytes": len_bytes,
            "seconds": elapsed.as_secs_f64(), "pages": pages.to_string(),
        }),
        Event::LoadFailed { id, path, why, .. } => json!({
            "event": "load_failed", "id": id, "path": path.to_string_lossy(), "message": why.to_string(),
        }),
        Event::Attached { id, peer, attachments } => json!({
            "event": "attached", "id": id, "client": of_peer(peer), "attachments": attachments,
        }),
        Event::Released { id, peer, attachments } => json!({
            "event": "released", "id": id, "client": of_peer(peer), "attachments": attachments,
        }),
        Event::KeptByClients { id, path, len_bytes, .. } => json!({
            "event": "kept_by_clients", "id": id, "path": path.to_string_lossy(),
            "bytes": len_bytes,
        }),
        Event::Freed { id, path, len_bytes, .. } => json!({
            "event": "freed", "id": id, "path": path.to_string_lossy(), "bytes": len_bytes,
        }),
        Event::Refused { peer, message, .. } => json!({
            "event": "refused", "client": of_peer(peer), "message": message,
        }),
        Event::Disconnected { peer, why } => json!({
            "event": "disconnected", "client": of_peer(peer), "message": why.to_string(),
        }),
        Event::Trouble { problem } => {
            json!({ "event": "trouble", "message": problem.to_string() })
        }
        Event::Stopping => json!({ "event": "stopping" }),
        other => json!({ "event": "other", "message": other.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_parsed() {
        assert_eq!("0640".parse::<Mode>().unwrap().0, 0o640);
        for word in ["", "0888", "rw", "17777"] {
            assert!(word.parse::<Mode>().is_err(), "{word}");
        }
    }
}
