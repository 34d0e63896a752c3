//! `longshore serve`.

use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use clap::Args;
use longshore::Heap;
use longshore::load::FormatChoice;
use longshore::serve::{Event, Keep, Listener, Options, Peer, Server, Stop};
use serde_json::{Value, json};

use crate::serve_log::{Line, Log};
use crate::signals;
use crate::units::{Alignment, Size};

/// Hold models in memory, once for all processes of this machine.
///
/// Each file is loaded once, when the first process attaches it, into memory that nobody can change;
/// every process that may read the file is given it. The memory goes with the last attachment, unless
/// it is kept. Files that are named here are loaded at once and kept for as long as the server runs.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Share the models of a directory between your own processes:
    longshore serve --root ~/models
  Load one at once, and keep others for ten minutes after they were used:
    longshore serve --root /srv/models --idle-free 10m /srv/models/llama.safetensors
  Let all users attach what they may read, in at most 64 GiB:
    longshore serve --root /srv/models --socket-mode 0666 --memory-max 64GiB --keep
  In another shell:
    longshore attach llama.safetensors --exec python3 infer.py
    longshore ls

Under systemd, a .socket unit with ListenSequentialPacket= hands over its socket, and the .service
unit may be of Type=notify. $LONGSHORE_SOCKET is the socket where --socket is not given.
")]
pub(crate) struct ServeArgs {
    /// Files to load at once and to keep; an index stands for its shards.
    #[arg(value_name = "FILE", required_unless_present = "root")]
    files: Vec<PathBuf>,

    /// A directory beneath which any file may be attached. May be repeated.
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,

    /// Where to listen [default: $XDG_RUNTIME_DIR/longshore/serve.sock, for root
    /// /run/longshore/serve.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Who may connect, as the permissions of a file: 0660 is the group too, 0666 everybody.
    #[arg(long, value_name = "MODE", default_value = "0600")]
    socket_mode: Mode,

    /// Who may open the memory by its name in /proc/PID/fd; nobody can write to it. 0444 lets clients
    /// of other users use such names.
    #[arg(long, value_name = "MODE", default_value = "0400")]
    memory_mode: Mode,

    /// Hold no more than this: what nobody has attached goes first, least recently used.
    #[arg(long, value_name = "SIZE")]
    memory_max: Option<Size>,

    /// The most attachments of one user, those that wait for a model included.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_attachments: usize,

    /// The most clients at once; no more than half the descriptors that the server may have.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_clients: usize,

    /// Keep what nobody has attached for so long: 30s, 10m, 2h.
    #[arg(long, value_name = "DURATION", conflicts_with = "keep")]
    idle_free: Option<Period>,

    /// Keep what nobody has attached until its room is needed.
    #[arg(long)]
    keep: bool,

    /// Where memory comes from: memfd, memfd:4k, hugetlb.
    #[arg(long, default_value = "memfd")]
    heap: Heap,

    /// What the files named here are: auto (by name), raw, safetensors, gguf.
    #[arg(long, default_value = "auto")]
    format: FormatChoice,

    /// Place every tensor of the files named here at a multiple of this: 64, 256, 4096, 2M.
    #[arg(long, value_name = "N")]
    align: Option<Alignment>,

    /// Print each event as a JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing but errors.
    #[arg(long, short)]
    quiet: bool,
}

/// Permissions, in octal digits.
#[derive(Clone, Copy, Debug)]
struct Mode(u32);

impl FromStr for Mode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(word, 8).ok().filter(|mode| *mode <= 0o777);
        mode.map(Self).ok_or_else(|| format!("'{word}' is no permissions such as 0660"))
    }
}

/// A time, as 500ms, 30s, 10m, 2h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period(Duration);

impl FromStr for Period {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let refused = || format!("'{word}' is no time such as 500ms, 30s, 10m or 2h");
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        let number: u64 = number.parse().map_err(|_| refused())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" | "" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            _ => return Err(refused()),
        };
        number.checked_mul(unit_ms).map(Duration::from_millis).map(Self).ok_or_else(refused)
    }
}

pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    // First of all: its descriptors have fixed numbers.
    let inherited = Listener::inherited()?;
    let stop = Stop::new()?;
    let stopper = stop.clone();
    let signals = signals::ends()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals.wait();
        stopper.stop();
    })?;
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
    let options = Options {
        roots: args.root,
        files: args.files,
        format: args.format,
        align: args.align.map(|align| align.0),
        memory_max: args.memory_max.map(|size| size.0),
        attachments_max: args.max_attachments,
        clients_max: args.max_clients,
        keep,
        heap: args.heap,
        memory_mode: args.memory_mode.0,
    };
    let server = Server::new(listener, options, stop)?;
    let log = Log::start()?;
    let served = server.run(|event| match event {
        Event::Trouble { message } if !args.json => log.say(Line::Error(message.clone())),
        _ if args.json => log.say(Line::Out(as_json(event).to_string())),
        _ if args.quiet => {}
        _ => log.say(Line::Out(event.to_string())),
    });
    log.end();
    Ok(served?)
}

fn as_json(event: &Event) -> Value {
    let of_peer = |peer: &Peer| json!({ "pid": peer.pid, "uid": peer.uid, "gid": peer.gid });
    match event {
        Event::Ready { socket } => json!({
            "event": "ready", "pid": std::process::id(),
            "socket": socket.as_ref().map(|socket| socket.to_string_lossy()),
        }),
        Event::Loading { id, path, len_bytes } => json!({
            "event": "loading", "id": id, "path": path.to_string_lossy(), "bytes": len_bytes,
        }),
        Event::Loaded { id, path, len_bytes, elapsed, pages } => json!({
            "event": "loaded", "id": id, "path": path.to_string_lossy(), "bytes": len_bytes,
            "seconds": elapsed.as_secs_f64(), "pages": pages,
        }),
        Event::LoadFailed { id, path, message } => json!({
            "event": "load_failed", "id": id, "path": path.to_string_lossy(), "message": message,
        }),
        Event::Attached { id, peer, attachments } => json!({
            "event": "attached", "id": id, "client": of_peer(peer), "attachments": attachments,
        }),
        Event::Released { id, peer, attachments } => json!({
            "event": "released", "id": id, "client": of_peer(peer), "attachments": attachments,
        }),
        Event::Freed { id, path, len_bytes } => json!({
            "event": "freed", "id": id, "path": path.to_string_lossy(), "bytes": len_bytes,
        }),
        Event::Refused { peer, message } => json!({
            "event": "refused", "client": of_peer(peer), "message": message,
        }),
        Event::Disconnected { peer, why } => json!({
            "event": "disconnected", "client": of_peer(peer), "message": why,
        }),
        Event::Trouble { message } => json!({ "event": "trouble", "message": message }),
        Event::Stopping => json!({ "event": "stopping" }),
        other => json!({ "event": "other", "message": other.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_permissions_are_read_as_people_write_them() {
        for (word, ms) in [("500ms", 500), ("30s", 30_000), ("7", 7000), ("10m", 600_000)] {
            assert_eq!(word.parse(), Ok(Period(Duration::from_millis(ms))), "{word}");
        }
        for word in ["", "s", "-1s", "1.5h", "1d", "99999999999999999999s"] {
            assert!(word.parse::<Period>().is_err(), "{word}");
        }
        assert_eq!("0640".parse::<Mode>().unwrap().0, 0o640);
        for word in ["", "0888", "rw", "17777"] {
            assert!(word.parse::<Mode>().is_err(), "{word}");
        }
    }
}
