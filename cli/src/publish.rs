//! `longshore publish`.

use std::fmt::{self, Write};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use longshore::formats::directory::ModelFilter;
use longshore::formats::printable;
use longshore::load::{DigestKind, Manifest, Outcome, Published, Publisher};
use longshore_sys::{directory, tmpfs};
use serde_json::{Map, Value, json};

use crate::choices;
use crate::exit::failure;
use crate::output::print;
use crate::progress::Display;
use crate::signals;
use crate::sources::{ServerArgs, print_notes};
use crate::units::{Decimal, Size};

/// Publish models as files in a tmpfs, in huge pages, for every program of the machine.
///
/// A source is a directory, a safetensors or GGUF file, the index of a sharded model, or the first of
/// several splits. It becomes the directory DIR/NAME, with files of the same names, which appear when
/// all are complete and verified. The files belong to you, and other users have the access that they
/// have to the source, without write permission. Files from a server can be read by you alone, unless
/// --mode permits more. The files stay until the model is evicted (longshore evict DIR/NAME) or the
/// machine restarts.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Mount a tmpfs with huge pages (as root), and publish a model in it:
    longshore publish ./llama --to /models --mount
  Publish a new version; programs that use the old one keep it:
    longshore publish ./llama --to /models --replace
  Publish a model of the Hugging Face Hub, with its configuration and tokenizer:
    longshore publish hf://Qwen/Qwen3-0.6B --to /models
  Verify the weights first, and permit all users to read them:
    longshore publish ./llama --to /models --manifest SHA256SUMS --mode 0444
")]
pub(crate) struct PublishArgs {
    /// The models: directories or files. On a server: https://HOST/FILE, s3://BUCKET/KEY, gs://BUCKET/KEY,
    /// az://CONTAINER/KEY, or hf://ORG/NAME of the Hugging Face Hub.
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,

    /// The directory to publish in, in a tmpfs.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    #[command(flatten)]
    server: ServerArgs,

    /// The name of the model, instead of that of the source.
    #[arg(long)]
    name: Option<String>,

    /// Replace a model of this name, or another version of it. Programs that use it keep it.
    #[arg(long)]
    replace: bool,

    /// Pin the model, so that 'longshore serve --publish' does not evict it.
    #[arg(long)]
    pin: bool,

    /// The permissions of the files in octal, such as 0444, instead of those of the source.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,

    /// Compute a checksum of each file. May be repeated.
    #[arg(long, value_name = "KIND", value_parser = choices::DIGESTS)]
    verify: Vec<DigestKind>,

    /// Fail unless each safetensors and GGUF file has the checksum in this file, which has the format
    /// of sha256sum.
    #[arg(long, value_name = "MANIFEST")]
    manifest: Option<PathBuf>,

    /// If DIR is not in a tmpfs, make the directory and mount one there with huge pages. Needs root.
    #[arg(long)]
    mount: bool,

    /// The size of the mounted tmpfs. The default is half of the machine's memory.
    #[arg(long, value_name = "SIZE", requires = "mount")]
    size: Option<Size>,

    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn parse_mode(word: &str) -> Result<u32, String> {
    match u32::from_str_radix(word, 8) {
        Ok(mode) if mode & !0o555 == 0 && mode & 0o444 > 0 => Ok(mode),
        Ok(mode) if mode & !0o777 == 0 && mode & 0o222 > 0 => {
            Err("published files cannot be written; use a mode such as 0444 or 0440".to_owned())
        }
        _ => Err("expected permissions in octal, such as 0444 or 0440".to_owned()),
    }
}

pub(crate) fn run(args: &PublishArgs) -> anyhow::Result<()> {
    if args.name.is_some() && args.sources.len() > 1 {
        return Err(failure(2, "--name names one model, but several sources were given"));
    }
    let cancel = signals::cancel_token()?;
    let manifest = args.manifest.as_ref().map(Manifest::open).transpose()?;
    if args.mount {
        mount(&args.to, args.size)?;
    }
    let mut models = Vec::new();
    for source in &args.sources {
        let remote = args.server.remote().cancel(&cancel);
        let mut display = Display::new(args.quiet || args.json);
        let mut publisher = Publisher::new(&args.to)
            .replace(args.replace)
            .pin(args.pin)
            .cancel(&cancel)
            .observe(|progress| display.show(progress));
        if let Some(name) = &args.name {
            publisher = publisher.name(name);
        }
        if let Some(mode) = args.mode {
            publisher = publisher.mode(mode);
        }
        for kind in &args.verify {
            publisher = publisher.digest(*kind);
        }
        if let Some(manifest) = &manifest {
            publisher = publisher.manifest(manifest);
        }
        let found = remote.model(source, &ModelFilter::new())?;
        let published = publisher.publish_found(&found)?;
        drop(display);
        print_notes(&remote.notes(), args.quiet);
        if args.json {
            models.push(as_json(&published));
        } else if !args.quiet {
            print(&summary(&published).context("writing the summary")?)?;
        }
    }
    if args.json {
        print(&format!("{}\n", json!({ "models": models })))?;
    }
    Ok(())
}

/// Mounts a tmpfs at a directory that is not in one, and makes the directory if it is missing.
pub(crate) fn mount(path: &Path, size: Option<Size>) -> anyhow::Result<()> {
    let shown = path.display();
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            let code = if error.kind() == ErrorKind::PermissionDenied { 12 } else { 10 };
            return Err(failure(code, format!("cannot make the directory {shown}: {error}")));
        }
        _ => {}
    }
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::PermissionDenied => {
            let size = size.map_or(String::new(), |Size(bytes)| format!(",size={bytes}"));
            let message = format!(
                "mounting a tmpfs at {shown} needs root. Run as root: mount -t tmpfs -o \
                 huge=always,mode=0755{size} tmpfs {shown}; or publish in a directory of /dev/shm; \
                 or use longshore exec, which needs no privilege"
            );
            failure(12, message)
        }
        _ => failure(1, format!("cannot mount a tmpfs at {shown}: {error}")),
    };
    let opened = directory::open(path).map_err(|error| {
        failure(10, format!("cannot open {shown}, whose path may have no symbolic link: {error}"))
    })?;
    if tmpfs::contains(&opened).map_err(failed)? {
        if size.is_some() {
            eprintln!("longshore: {shown} is in a tmpfs already, whose size is not changed");
        }
        return Ok(());
    }
    if !directory::has_safe_path(&opened).map_err(failed)? {
        let message = format!(
            "a tmpfs is not mounted at {shown}: the directory, or one above it, belongs to another user, or \
             others may write to it, so they could unmount it or put another one in its place"
        );
        return Err(failure(12, message));
    }
    tmpfs::mount(&opened, size.map(|Size(bytes)| bytes)).map_err(failed)
}

fn summary(published: &Published) -> Result<String, fmt::Error> {
    let mut text = String::new();
    let path = published.path.to_string_lossy();
    let size = Decimal(published.content_bytes as f64);
    let seconds = published.elapsed.as_secs_f64();
    let files = match published.files.len() {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    match published.outcome {
        Outcome::AlreadyPublished => writeln!(text, "{size} in {files}: already published")?,
        Outcome::AccessChanged => {
            writeln!(text, "{size} in {files}: already published, permissions changed")?;
        }
        outcome => {
            let speed = Decimal(published.content_bytes as f64 / seconds.max(1e-9));
            let replaced = if outcome == Outcome::Replaced { ", replaced" } else { "" };
            writeln!(text, "{size} in {files} in {seconds:.3} s: {speed}/s{replaced}")?;
            writeln!(text, "  memory      {} pages", published.pages)?;
        }
    }
    writeln!(text, "  path        {}", printable(&path))?;
    let pages = if published.gives_huge_pages { "2 MiB pages" } else { "4 KiB pages" };
    writeln!(text, "  programs    get {pages} when they map the files")?;
    if !published.gives_huge_pages {
        writeln!(text, "  note        a tmpfs mounted with huge=always gives them 2 MiB pages")?;
    }
    let user = published
        .user
        .map(|(user, bits)| format!(", and {} for user {user}", &symbolic(bits)[7..]));
    let user = user.unwrap_or_default();
    writeln!(text, "  access      {}{user}", symbolic(published.mode))?;
    if !published.files.iter().any(|file| is_of_model(&file.path)) {
        let note = "no file is a config.json, or a model file that is known";
        writeln!(text, "  note        {note}: is this the right directory?")?;
    }
    for file in &published.files {
        for (kind, digest) in &file.digests {
            let path = published.directory.join(&file.path);
            writeln!(text, "  {kind:<11} {digest}  {}", printable(&path.to_string_lossy()))?;
        }
    }
    Ok(text)
}

/// Returns `true` if a file belongs to a model, by its name.
fn is_of_model(path: &Path) -> bool {
    const ENDINGS: [&str; 7] = ["safetensors", "gguf", "bin", "pt", "pth", "onnx", "xml"];
    let ending = path.extension().and_then(|ending| ending.to_str());
    path.ends_with("config.json") || ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Formats the permission bits of a directory as `ls -l` does.
fn symbolic(mode: u32) -> String {
    let bit = |index: u32, letter| if mode & (0o400 >> index) > 0 { letter } else { '-' };
    let letters = "rwxrwxrwx".chars().zip(0..).map(|(letter, index)| bit(index, letter));
    std::iter::once('d').chain(letters).collect()
}

pub(crate) fn as_json(published: &Published) -> Value {
    let pages = published.pages;
    let files: Vec<Value> = published
        .files
        .iter()
        .map(|file| {
            let digests: Map<String, Value> = file
                .digests
                .iter()
                .map(|(kind, digest)| (kind.to_string(), digest.as_str().into()))
                .collect();
            json!({
                "path": published.directory.join(&file.path).to_string_lossy(),
                "bytes": file.len_bytes,
                "digests": digests,
            })
        })
        .collect();
    let outcome = match published.outcome {
        Outcome::Replaced => "replaced",
        Outcome::AlreadyPublished => "already published",
        Outcome::AccessChanged => "access changed",
        _ => "new",
    };
    let bytes_read = match published.outcome {
        Outcome::AlreadyPublished | Outcome::AccessChanged => 0,
        _ => published.content_bytes,
    };
    json!({
        "path": published.path.to_string_lossy(),
        "directory": published.directory.to_string_lossy(),
        "outcome": outcome,
        "bytes": published.content_bytes,
        "bytes_read": bytes_read,
        "seconds": published.elapsed.as_secs_f64(),
        "gives_huge_pages": published.gives_huge_pages,
        "page_bytes": {
            "huge_2m": pages.huge_2m_bytes,
            "mid_64k": pages.mid_64k_bytes,
            "base": pages.base_bytes,
        },
        "mode": format!("{:04o}", published.mode),
        "user": published.user.map(|(user, _)| user),
        "files": files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_and_without_write_permission() {
        assert_eq!(parse_mode("0440"), Ok(0o440));
        assert_eq!(parse_mode("555"), Ok(0o555));
        for word in ["", "0644", "999", "7444", "0", "rw"] {
            assert!(parse_mode(word).is_err(), "{word}");
        }
        assert_eq!(symbolic(0o750), "drwxr-x---");
    }
}
