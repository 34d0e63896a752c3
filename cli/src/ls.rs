//! `longshore ls`.

use std::path::PathBuf;

use clap::Args;
use longshore::CancelToken;
use longshore::formats::printable;
use longshore::serve::{Client, Held, HeldState, Listing, Trust};
use serde_json::{Value, json};

use crate::ls_published;
use crate::output::print;
use crate::units::{Decimal, age};

/// List the models that `longshore serve` holds, or that are published in a directory.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Columns:
  number    the model's number, which 'longshore attach' accepts
  bytes     the length of its memory
  attached  the number of attachments
  age       the time since it was loaded, or since its load was requested
  state     see below
  file      its path, as the server sees it

States:
  loading N%     N percent are loaded
  ready          it can be attached
  aligned to N   its tensors are at multiples of N bytes
  stale          its file was changed or deleted: clients keep it, but it is not attached again
  kept           the server loaded it at its start, and keeps it for as long as it runs

Columns with --published:
  bytes     the length of its files
  used      the time since a program last read it, or since it was published
  state     see below
  model     its directory

States with --published:
  in use         a program has a file of it open or mapped
  unused         no program has
  pinned         a server does not evict it
  incomplete     some of its files are missing

The exit codes are listed by 'longshore --help'.
")]
pub(crate) struct LsArgs {
    /// The server's socket [default: $LONGSHORE_SOCKET; else $XDG_RUNTIME_DIR/longshore/serve.sock,
    /// if it exists; else /run/longshore/serve.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// List the models that are published in this directory of a tmpfs, without a server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["socket", "trust_uid"])]
    published: Option<PathBuf>,

    /// Trust the server of this user id. May be repeated. Always trusted: root, your own user, the
    /// user `longshore`, and the ids in $LONGSHORE_TRUST_UID.
    #[arg(long, value_name = "UID")]
    trust_uid: Vec<u32>,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &LsArgs) -> anyhow::Result<()> {
    if let Some(directory) = &args.published {
        return ls_published::run(directory, args.json);
    }
    let trust = Trust::from_env()?.and(args.trust_uid.iter().copied());
    let socket = args.socket.as_deref();
    let mut client = Client::connect_with(socket, &trust, &CancelToken::new())?;
    let server_pid = client.server_pid();
    let listing = client.list()?;
    if args.json {
        return print(&format!("{}\n", as_json(&listing, server_pid)));
    }
    let mut text = String::new();
    for root in &listing.roots {
        text += &format!("serves {}\n", printable(&root.to_string_lossy()));
    }
    text += &table(&listing.held);
    print(&text)
}

fn table(held: &[Held]) -> String {
    if held.is_empty() {
        return "nothing is held\n".to_owned();
    }
    let titles = ["number", "bytes", "attached", "age", "state", "file"].map(String::from);
    let rows: Vec<[String; 6]> = held
        .iter()
        .map(|held| {
            [
                held.id.to_string(),
                Decimal(held.len_bytes as f64).to_string(),
                held.attachments.to_string(),
                age(held.age_ms / 1000),
                state(held),
                printable(&held.path.to_string_lossy()).into_owned(),
            ]
        })
        .collect();
    let width = |column: usize| {
        rows.iter().chain([&titles]).map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    for row in [&titles].into_iter().chain(&rows) {
        let [id, bytes, attached, age, state, file] = row;
        let [w_id, w_bytes, w_attached, w_age, w_state, _] = widths;
        text += &format!(
            "{id:>w_id$}  {bytes:>w_bytes$}  {attached:>w_attached$}  {age:>w_age$}  \
             {state:<w_state$}  {file}\n"
        );
    }
    text
}

fn state(held: &Held) -> String {
    let mut words = match held.state {
        HeldState::Loading => {
            vec![format!("loading {}%", percent(held))]
        }
        state => vec![state.to_string()],
    };
    if held.align_bytes > 0 {
        words.push(format!("aligned to {}", held.align_bytes));
    }
    if held.is_stale {
        words.push("stale".to_owned());
    }
    if held.is_pinned {
        words.push("kept".to_owned());
    }
    words.join(", ")
}

fn percent(held: &Held) -> u128 {
    u128::from(held.done_bytes) * 100 / u128::from(held.len_bytes.max(1))
}

fn as_json(listing: &Listing, server_pid: u32) -> Value {
    let held: Vec<Value> = listing
        .held
        .iter()
        .map(|held| {
            json!({
                "id": held.id,
                "path": held.path.to_string_lossy(),
                "format": held.format,
                "align": held.align_bytes,
                "bytes": held.len_bytes,
                "done_bytes": held.done_bytes,
                "attachments": held.attachments,
                "state": held.state.to_string(),
                "stale": held.is_stale,
                "kept": held.is_pinned,
                "age_seconds": held.age_ms as f64 / 1000.0,
            })
        })
        .collect();
    let roots: Vec<_> = listing.roots.iter().map(|root| root.to_string_lossy()).collect();
    json!({ "server_pid": server_pid, "roots": roots, "held": held })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_lists_all_flags() {
        let mut held = Held::new(1, "/m/\x1b");
        (held.align_bytes, held.len_bytes, held.done_bytes) = (64, 200, 50);
        (held.is_stale, held.is_pinned) = (true, true);
        assert_eq!(state(&held), "loading 25%, aligned to 64, stale, kept");
        assert!(table(&[held]).contains("/m/\\u{1b}"));
        assert_eq!(table(&[]), "nothing is held\n");
    }
}
