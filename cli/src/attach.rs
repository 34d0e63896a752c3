//! `longshore attach`.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use longshore::formats::printable;
use longshore::load::FormatChoice;
use longshore::serve::{Attachment, Client, Wanted};
use serde_json::json;

use crate::exit::failure;
use crate::output::print;
use crate::program::become_program;
use crate::progress::Display;
use crate::signals;
use crate::units::{Alignment, Decimal};

/// Attach a model that `longshore serve` holds, or loads for it.
///
/// The memory is the server's: it takes none here, and nobody can change it. This process opens the
/// file, too, to show that it may read it. The attachment counts for as long as this process, or the
/// program it becomes, has its connection.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Run a program with a model that is shared; it finds the memory at descriptor $LONGSHORE_FD:
    longshore attach /srv/models/llama.safetensors --exec python3 infer.py
  By its name beneath what is served, or by its number in 'longshore ls':
    longshore attach llama.safetensors --exec python3 infer.py
    longshore attach 3 --hold
  See what is held:
    longshore ls

A program that --exec starts gets the memory as $LONGSHORE_FD, its length in $LONGSHORE_BYTES, and
the connection as $LONGSHORE_ATTACHMENT_FD. It need not do anything with the last: while it is open,
the attachment counts, and closing it releases the attachment. Where the server ends, the memory
stays with those who have it.
")]
pub(crate) struct AttachArgs {
    /// A path, a name beneath what is served, or a number of `longshore ls`.
    #[arg(value_name = "NAME")]
    name: OsString,

    /// The server's socket [default: that of this user, else the system's].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// What the file is: auto (by name), raw, safetensors, gguf.
    #[arg(long, default_value = "auto")]
    format: FormatChoice,

    /// Have every tensor placed at a multiple of this: 64, 256, 4096, 2M. That is another memory than
    /// the same model's as it is in its file.
    #[arg(long, value_name = "N")]
    align: Option<Alignment>,

    /// Print what was attached as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing but errors.
    #[arg(long, short)]
    quiet: bool,

    /// Keep the attachment until Ctrl-C or SIGTERM.
    #[arg(long, conflicts_with = "exec")]
    hold: bool,

    /// Become this program. It finds the memory at descriptor $LONGSHORE_FD, the length of the
    /// content in $LONGSHORE_BYTES, and the connection at $LONGSHORE_ATTACHMENT_FD. Must come last.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    exec: Vec<OsString>,
}

pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<()> {
    let cancel = signals::cancel_token()?;
    let began = Instant::now();
    let mut client = Client::connect(args.socket.as_deref(), &cancel)?;
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
        let stays = args.hold || !args.exec.is_empty();
        print(&format!("{}\n", as_json(&attachment, server_pid, seconds, stays)))?;
    } else if !args.quiet {
        print(&summary(args, &attachment, server_pid, seconds))?;
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
    become_program(&args.exec, attachment.len_bytes(), &descriptors)
}

fn hold(attachment: &Attachment) -> anyhow::Result<()> {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let mut is_alive = true;
    while signals::received().is_none() {
        if is_alive && !attachment.is_server_alive() {
            is_alive = false;
            eprintln!("longshore: the server is gone; the memory stays for as long as this runs");
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn summary(args: &AttachArgs, attachment: &Attachment, server_pid: u32, seconds: f64) -> String {
    let bytes = Decimal(attachment.len_bytes() as f64);
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
    // Descriptors are worth telling only where they outlive this line.
    let memfd = Some(attachment.memfd()).filter(|_| stays);
    let connection = Some(attachment.connection()).filter(|_| stays);
    json!({
        "id": attachment.id(),
        "bytes": attachment.len_bytes(),
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
