//! Exit codes, and the output of errors.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::ExitCode;

use longshore::formats::directory::DirectoryProblem;
use longshore::load::{Error, HubName, HubProblem, PublishProblem};
use longshore::remote::{is_remote, without_secrets};
use longshore::{heap, serve};
use serde_json::json;

use crate::output::print;
use crate::signals;

/// The exit codes for `--help`; [`code`] assigns them.
pub(crate) const CODES_HELP: &str = "\
Exit codes:
    0  done
    1  another error
    2  the command line is not valid
   10  no such file or directory       20  not enough memory
   11  not a regular file              21  the heap is not available, or no tmpfs
   12  no permission                   22  the read mode is not available
   13  the disk failed or is full      23  the model is in use, or pinned
   14  the file changed or shrank      24  a server failed or did not answer in time
   15  not a valid file of its format 126  the program cannot be run
   16  a checksum differs             127  the program was not found
   17  the file is empty, or the      130  Ctrl-C (128 + the signal's number)
       directory has no files or no model
   18  the address is not mapped
   19  the name of the model, or of its copy, exists already

   30  no server listens, or it has ended
   31  the model is not served, held or published
   32  a limit of the server is reached
   33  another server has the socket or the directory, or the path is not a socket
   34  the user that runs the server is not trusted";

/// An error of the command itself, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Returns an error with an exit code.
pub(crate) fn failure(code: u8, message: impl Into<String>) -> anyhow::Error {
    Failure { code, message: message.into() }.into()
}

/// An error that the command's output on standard output contains already.
#[derive(Debug)]
struct Told(Failure);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Told {}

/// Returns an error with an exit code, for a command whose output contains the error already.
pub(crate) fn told(code: u8, message: impl Into<String>) -> anyhow::Error {
    Told(Failure { code, message: message.into() }).into()
}

/// Prints an error to standard error, and with `json` also to standard output; returns its exit code.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let code = code(error);
    let mut message = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // A transparent error has the same message as its cause.
        if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    // A message may contain the source as it was given.
    let message = without_secrets(&message);
    if json && !error.is::<Told>() {
        // If this cannot be written, standard error still has the error.
        let _ = print(&format!("{}\n", json!({ "error": message, "exit_code": code })));
    }
    eprintln!("longshore: {}", printable(&message));
    ExitCode::from(code)
}

/// Prints an error of the command line, or the help that was requested, and ends the process.
pub(crate) fn command_line(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    let shown = without_secrets(&text);
    if shown == text || !error.use_stderr() {
        error.exit();
    }
    eprint!("{shown}");
    std::process::exit(error.exit_code());
}

/// Escapes control characters, because a message may contain a path that another user chose.
fn printable(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    for char in message.chars() {
        match char {
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                shown.extend(char.escape_unicode());
            }
            _ if char.is_control() => shown.extend(char.escape_default()),
            _ => shown.push(char),
        }
    }
    shown
}

fn code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.code;
    }
    if let Some(Told(failure)) = error.downcast_ref::<Told>() {
        return failure.code;
    }
    if let Some(error) = error.downcast_ref::<serve::Error>() {
        return code_of_serving(error);
    }
    if let Some(error) = error.downcast_ref::<Error>() {
        return code_of_loading(error);
    }
    error.chain().find_map(|cause| cause.downcast_ref()).map_or(1, code_of_system)
}

/// Returns the exit code for the error of a system call.
fn code_of_system(error: &io::Error) -> u8 {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => 10,
        ErrorKind::PermissionDenied => 12,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => 13,
        _ => 1,
    }
}

/// Returns `true` for a path that is a URL.
fn is_on_server(path: &Path) -> bool {
    is_remote(path) || HubName::is_one(path) || path.to_string_lossy().contains("://")
}

/// Returns the exit code for the error of a server.
fn code_of_server(error: &io::Error) -> u8 {
    match error.kind() {
        ErrorKind::InvalidInput => 2,
        _ => match code_of_system(error) {
            1 => 24,
            code => code,
        },
    }
}

fn code_of_serving(error: &serve::Error) -> u8 {
    use serve::{Error, Reason};
    match error {
        Error::Load(error) => code_of_loading(error),
        Error::NoServer { .. }
        | Error::NoDefaultServer { .. }
        | Error::ServerGone
        | Error::TimedOut { .. } => 30,
        Error::NotAUserId { .. } => 2,
        Error::NoSocketDirectory { .. } => 10,
        Error::SocketDenied { .. } => 12,
        // The file is not a regular one: the client opens no other.
        Error::Open { source, .. } if source.kind() == ErrorKind::InvalidInput => 11,
        Error::Open { source, .. } => code_of_system(source),
        Error::Refused { reason, .. } => match reason {
            Reason::NotServed | Reason::NotHeld => 31,
            Reason::Unreadable | Reason::Malformed => 15,
            Reason::Changed => 14,
            Reason::NoMemory => 20,
            Reason::TooMany => 32,
            Reason::Stopping => 30,
            Reason::NoSuchFile => 10,
            Reason::Denied => 12,
            Reason::RemoteFailed => 24,
            Reason::NoModel => 17,
            Reason::SeveralModels => 2,
            _ => 1,
        },
        Error::NotFound { .. } | Error::Ambiguous { .. } | Error::OtherUser { .. } => 31,
        Error::NothingToServe => 2,
        Error::CannotServe { source, .. } => match source.kind() {
            ErrorKind::InvalidData => 15,
            ErrorKind::OutOfMemory => 20,
            ErrorKind::InvalidInput => 2,
            _ => code_of_system(source),
        },
        Error::Cancelled { .. } => signals::received().map_or(130, |signal| 128 + signal),
        Error::AlreadyServed { .. } | Error::NotASocket { .. } => 33,
        Error::Kernel { source, .. } if source.kind() == ErrorKind::PermissionDenied => 12,
        Error::TooFewDescriptors { .. } => 32,
        Error::UntrustedServer { .. } => 34,
        _ => 1,
    }
}

fn code_of_loading(error: &Error) -> u8 {
    match error {
        Error::Open { path, source } if is_on_server(path) => code_of_server(source),
        Error::Open { source, .. } => code_of_system(source),
        Error::Write { source, .. } if source.kind() == ErrorKind::AlreadyExists => 19,
        Error::Write { source, .. } => match code_of_system(source) {
            1 => 13,
            code => code,
        },
        Error::NotRegular { .. } => 11,
        Error::Read { path, .. } if is_on_server(path) => 24,
        Error::Read { .. } => 13,
        Error::Truncated { .. } | Error::Changed { .. } => 14,
        Error::Format { .. }
        | Error::Manifest { .. }
        | Error::NoTensors { .. }
        | Error::Refused { .. } => 15,
        Error::Mismatch { .. } => 16,
        Error::NotEnoughMemory { .. } | Error::StreamFull { .. } => 20,
        Error::Stream { .. } => 2,
        Error::Directory { reason, .. } => code_of_directory(reason),
        Error::Hub { reason, .. } => match reason {
            HubProblem::Name(_) | HubProblem::Nested => 2,
            _ => 10,
        },
        Error::Heap(heap::Error::TmpfsFull { .. }) => 20,
        Error::Publish { reason, .. } => code_of_publishing(reason),
        Error::Heap(heap::Error::OutOfMemory { .. } | heap::Error::TooLong { .. }) => 20,
        Error::Heap(
            heap::Error::NoSuchHeap { .. }
            | heap::Error::Unavailable { .. }
            | heap::Error::AboveUdmabufLimit { .. }
            | heap::Error::CannotSealContent { .. },
        ) => 21,
        Error::ModeUnavailable { .. } => 22,
        Error::Cancelled { .. } => signals::received().map_or(130, |signal| 128 + signal),
        _ => 1,
    }
}

fn code_of_directory(problem: &DirectoryProblem) -> u8 {
    match problem {
        DirectoryProblem::Several { .. }
        | DirectoryProblem::Separate { .. }
        | DirectoryProblem::File
        | DirectoryProblem::TwoVariants => 2,
        DirectoryProblem::Incomplete { .. } | DirectoryProblem::NoComponent { .. } => 15,
        _ => 17,
    }
}

fn code_of_publishing(reason: &PublishProblem) -> u8 {
    match reason {
        PublishProblem::InvalidName { .. } => 2,
        PublishProblem::LeavesModel | PublishProblem::NotADirectory => 11,
        PublishProblem::OtherOwner { .. }
        | PublishProblem::ModelsOfOther { .. }
        | PublishProblem::WritableByOthers
        | PublishProblem::SeveralOwners { .. }
        | PublishProblem::Link => 12,
        PublishProblem::Empty => 17,
        PublishProblem::NameExists | PublishProblem::NotAModel => 19,
        PublishProblem::NoRoom { .. } | PublishProblem::NoInodes { .. } => 20,
        PublishProblem::NotTmpfs | PublishProblem::NoModels => 21,
        PublishProblem::NotPublished => 31,
        PublishProblem::InUse | PublishProblem::UseUnknown { .. } | PublishProblem::Pinned => 23,
        PublishProblem::Managed => 33,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_occurs_once_in_the_help() {
        let mut codes: Vec<u8> = CODES_HELP
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .filter(|code| *code != 128)
            .collect();
        let told = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!((codes.len(), told), (26, 26));
    }

    #[test]
    fn the_manual_lists_every_code() {
        let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/loading-models.md");
        let manual = std::fs::read_to_string(manual).unwrap();
        let rows = manual.lines().skip_while(|line| !line.starts_with("| code | meaning"));
        let rows = rows.take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let codes = cells.flat_map(|cell| cell.split(',').map(str::trim));
        let mut listed: Vec<u8> = codes.filter_map(|code| code.parse().ok()).collect();
        let mut helped: Vec<u8> = CODES_HELP
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .filter(|code| *code != 128)
            .collect();
        // SIGTERM, which the help includes in the rule for signals.
        helped.push(143);
        listed.sort_unstable();
        helped.sort_unstable();
        assert_eq!(listed, helped);
    }

    #[test]
    fn a_full_disk_has_one_code() {
        let full = || io::Error::from(ErrorKind::StorageFull);
        let made = anyhow::Error::new(full()).context("writing m.gguf").context("making a model");
        let repacked = Error::Write { path: "m.gguf".into(), source: full() };
        let served = serve::Error::Open { path: "m.gguf".into(), source: full() };
        assert_eq!([code(&made), code(&repacked.into()), code(&served.into())], [13; 3]);
    }

    #[test]
    fn a_system_call_without_permission_exits_with_12() {
        let failed = |kind| {
            let (operation, source) = ("locking a file", io::Error::from(kind));
            code_of_serving(&serve::Error::Kernel { operation, path: None, source })
        };
        assert_eq!(failed(ErrorKind::PermissionDenied), 12);
        assert_eq!(failed(ErrorKind::OutOfMemory), 1);
    }

    #[test]
    fn control_characters_in_a_message_are_escaped() {
        let message = "cannot open 'a\u{1b}[2J\u{7}\u{9b}\u{202e}b': größer\nlongshore: note";
        let shown = r"cannot open 'a\u{1b}[2J\u{7}\u{9b}\u{202e}b': größer\nlongshore: note";
        assert_eq!(printable(message), shown);
    }
}
