//! `longshore attach`.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use longshore::formats::printable;
use longshore::load::FormatChoice;
use longshore::serve::{Attachment, Client, Trust, Wanted};
use serde_json::json;

use crate::choices;
use crate::exit::failure;
use crate::output::print_result;
use crate::program::{become_program, check_program};
use crate::progress::Display;
use crate::signals;
use crate::units::{Alignment, Decimal};

/// Attach a model that `longshore serve` has loaded, or loads now.
///
/// All processes share the server's memory, and none can change it. This process opens the file, too,
/// to prove that it can read it. A model on another server needs no such proof. The attachment lasts as
/// long as this process, or the program that it executes, has the connection open.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Run a program with a shared model, whose memory is the file descriptor $LONGSHORE_FD:
    longshore attach /srv/models/llama.safetensors --exec python3 infer.py
  Name a file below a --root of the server, or a number of 'longshore ls':
    longshore attach llama.safetensors --exec python3 infer.py
    longshore attach 3 --hold
  List the models of the server:
    longshore ls

A program that --exec executes gets the memory as the file descriptor $LONGSHORE_FD, its length as
$LONGSHORE_BYTES, and the connection as the file descriptor $LONGSHORE_ATTACHMENT_FD. The program
need not use the connection: the attachment lasts until it is closed. If the server ends, clients
keep the memory.

Read or map the descriptor itself. Its name, /proc/self/fd/$LONGSHORE_FD, opens only for the user of
the server, unless the server was started with --memory-mode 0444.

The exit codes are listed by 'longshore --help'.
")]
pub(crate) struct AttachArgs {
    /// A path of a file or of a directory with a model, a name below a --root of the server, a number of
    /// `longshore ls`, or the end of the path of a model that is held. The first of these that exists is
    /// taken, in this order: a file `shared.safetensors` in the current directory comes before the
    /// server's. A name that is the end of several paths is refused. Also the name of a model on another
    /// server, such as s3://BUCKET/PREFIX/, below a --root there. hf://ORG/NAME is one if a --root has it,
    /// and is otherwise a repository in the local cache of the Hugging Face Hub.
    #[arg(value_name = "NAME")]
    name: OsString,

    /// The server's socket [default: $LONGSHORE_SOCKET; else $XDG_RUNTIME_DIR/longshore/serve.sock,
    /// if it exists; else /run/longshore/serve.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Trust the server of this user id with the files that are attached. May be repeated. Always
    /// trusted: root, your own user, the user `longshore`, and the ids in $LONGSHORE_TRUST_UID.
    #[arg(long, value_name = "UID")]
    trust_uid: Vec<u32>,

    /// The format of the file; auto: by its name.
    #[arg(long, default_value = "auto", value_parser = choices::FORMATS)]
    format: FormatChoice,

    /// Place every tensor at a multiple of this many bytes: 64, 256, 4096, 2M. The server holds each
    /// layout of a model in memory of its own.
    #[arg(long, value_name = "N")]
    align: Option<Alignment>,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,

    /// Keep the attachment until Ctrl-C or SIGTERM, and exit with 0 then.
    #[arg(long, conflicts_with = "exec")]
    hold: bool,

    /// Execute this program in place of this one, with the memory as descriptor $LONGSHORE_FD, the
    /// length of the content as $LONGSHORE_BYTES, and the connection as descriptor
    /// $LONGSHORE_ATTACHMENT_FD. Must come last, with the program and its arguments as separate words.
    /// The summary is printed to standard error.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    exec: Vec<OsString>,
}

pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<()> {
    check_program(&args.exec)?;
    let executes = !args.exec.is_empty();
    let cancel = signals::cancel_token()?;
    let began = Instant::now();
    let trust = Trust::from_env()?.and(args.trust_uid.iter().copied());
    let mut client = Client::connect_with(args.socket.as_deref(), &trust, &cancel)?;
    if let Some(Alignment(alignment)) = args.align {
        client = client.align(alignment);
    }
    let server_pid = client.server_pid();
    let mut display = Display::new(args.quiet || args.json);
    let wanted = Wanted::Word(args.name.clone());
    let mut observe = |progress| display.show(progress);
    let attachment = client.attach(&wanted, args.format, &mut observe)?;
    let seconds = began.elapsed().as_secs_f64();
    drop(display);

    if args.json {
        let stays = args.hold || executes;
        let json = as_json(&attachment, server_pid, seconds, stays);
        print_result(&format!("{json}\n"), executes)?;
    } else if !args.quiet {
        print_result(&summary(args, &attachment, server_pid, seconds), executes)?;
    }
    if args.hold {
        return hold(&attachment);
    }
    if let Some(signal) = signals::received() {
        return Err(failure(128 + signal, format!("ended by signal {signal}")));
    }
    if args.exec.is_empty() {
        return Ok(attachment.release()?);
    }
    let descriptors = [
        ("LONGSHORE_FD", Some(attachment.memfd())),
        ("LONGSHORE_ATTACHMENT_FD", Some(attachment.connection())),
        ("LONGSHORE_DMABUF_FD", None),
    ];
    become_program(&args.exec, attachment.len(), &descriptors)
}

fn hold(attachment: &Attachment) -> anyhow::Result<()> {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let mut is_alive = true;
    while signals::received().is_none() {
        if is_alive && !attachment.is_server_alive() {
            is_alive = false;
            eprintln!("longshore: the server has ended; the memory stays valid while this runs");
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn summary(args: &AttachArgs, attachment: &Attachment, server_pid: u32, seconds: f64) -> String {
    let bytes = Decimal(attachment.len() as f64);
    let mut text = format!(
        "{bytes} attached in {:.1} ms, number {} of server {server_pid}\n",
        seconds * 1e3,
        attachment.id()
    );
    for file in attachment.files() {
        let path = file.path.to_string_lossy();
        text += &format!("  at {:<14} {}\n", file.buffer_offset, printable(&path));
    }
    if args.hold {
        let fd = proc_path(attachment.memfd());
        text += &format!("  memfd             {fd}\n");
        text += &format!("held by process {}; Ctrl-C releases it\n", std::process::id());
    } else if args.exec.is_empty() {
        text += "released on exit; --hold keeps it, --exec hands it to a program\n";
    }
    text
}

fn as_json(
    attachment: &Attachment,
    server_pid: u32,
    seconds: f64,
    stays: bool,
) -> serde_json::Value {
    let files: Vec<_> = attachment
        .files()
        .iter()
        .map(|file| {
            json!({
                "path": file.path.to_string_lossy(),
                "buffer_offset": file.buffer_offset,
                "bytes": file.len_bytes,
            })
        })
        .collect();
    // Descriptor numbers are useful only if this process or its program keeps them open.
    let memfd = Some(attachment.memfd()).filter(|_| stays);
    let connection = Some(attachment.connection()).filter(|_| stays);
    json!({
        "id": attachment.id(),
        "bytes": attachment.len(),
        "seconds": seconds,
        "files": files,
        "pid": std::process::id(),
        "server_pid": server_pid,
        "memfd": memfd.map(|fd| fd.as_raw_fd()),
        "memfd_path": memfd.map(proc_path),
        "attachment_fd": connection.map(|fd| fd.as_raw_fd()),
    })
}

fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}
