//! The second process of a test that needs two: this program again, in a role.
//!
//! ```text
//!   test ── Unix socket, as the peer's standard input ──► peer
//!           one message: its parameters, and a descriptor (SCM_RIGHTS)
//!   test ◄── exit status, and errors on standard error ── peer
//! ```

mod passing;

use std::{
    error::Error,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    thread,
};

use longshore_heap::Heap;
use longshore_load::{Loader, Plan};
use longshore_sys::dma_buf::{self, CpuAccess, SyncPhase};
use serde_json::{Value, json};

use crate::{
    mapped::Mapped,
    outcome::{described, ensure},
    suite::passthrough::owner,
};

const CHECK_CONTENT: &str = "check-content";
const ALLOCATE: &str = "allocate";
const LOAD: &str = "load";

/// The user of roles for an ordinary user.
pub(crate) const ORDINARY_USER: u32 = 1000;

/// Makes another process map `dma_buf` and compare it with the `len_bytes` of content with `seed`.
///
/// # Errors
///
/// Returns the differences that the process found.
pub(crate) fn check_content(
    dma_buf: BorrowedFd<'_>,
    len_bytes: u64,
    seed: u64,
) -> Result<(), Box<dyn Error>> {
    let told = json!({"len_bytes": len_bytes, "seed": seed});
    let output = start(CHECK_CONTENT, &told, Some(dma_buf), None)?.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("another process: {} ({})", said.trim(), output.status).into())
}

/// Makes a process of an ordinary user allocate `len_bytes` from `heap`.
///
/// # Errors
///
/// Returns an error if that process cannot be started. The heap's error is the inner value.
pub(crate) fn allocate_as_ordinary_user(
    heap: &Heap,
    len_bytes: u64,
) -> Result<Result<(), String>, Box<dyn Error>> {
    let told = json!({"heap": heap.to_string(), "len_bytes": len_bytes});
    let output = start(ALLOCATE, &told, None, Some(ORDINARY_USER))?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(said) })
}

/// Starts another process that loads a file into `heap` and keeps it for as long as it lives.
///
/// # Errors
///
/// Returns an error if that process cannot be started.
pub(crate) fn start_load(path: &Path, heap: &Heap) -> Result<Child, Box<dyn Error>> {
    let told = json!({"heap": heap.to_string(), "path": path});
    start(LOAD, &told, None, None)
}

/// Runs the role called `role`.
pub(crate) fn run(role: &str) -> ExitCode {
    let play = match role {
        CHECK_CONTENT => play_check_content,
        ALLOCATE => play_allocate,
        LOAD => play_load,
        owner::OPEN => owner::play_open,
        owner::PIN => owner::play_pin,
        owner::TRANSFER => owner::play_transfer,
        _ => {
            eprintln!("there is no role called {role}");
            return ExitCode::from(2);
        }
    };
    let received = passing::receive(io::stdin());
    match received.map_err(Into::into).and_then(|(told, fd)| play(&told, fd)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", described(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Starts another process in a role, with parameters and a descriptor.
///
/// # Errors
///
/// Returns an error if that process cannot be started.
pub(crate) fn start(
    role: &str,
    told: &Value,
    fd: Option<BorrowedFd<'_>>,
    user: Option<u32>,
) -> Result<Child, Box<dyn Error>> {
    let (ours, theirs) = passing::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["--peer", role]).stdin(theirs).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let child = command.spawn()?;
    // The command holds a copy of the peer's end; as long as it is open, the early end of a peer is not
    // detected.
    drop(command);
    passing::send(&ours, told, fd)?;
    Ok(child)
}

fn play_check_content(told: &Value, fd: Option<OwnedFd>) -> Result<(), Box<dyn Error>> {
    let dma_buf = fd.ok_or("no descriptor was received")?;
    let len_bytes = number(told, "len_bytes")?;
    let has_bytes = dma_buf::size_bytes(&dma_buf)?;
    let expected_bytes = len_bytes.next_multiple_of(4096);
    ensure!(has_bytes == expected_bytes, "the dma-buf has {has_bytes} bytes");
    dma_buf::sync(dma_buf.as_fd(), CpuAccess::Read, SyncPhase::Start)?;
    let content = Mapped::new(&dma_buf, len_bytes)?.first_difference(number(told, "seed")?)?;
    let mut tail = vec![0; usize::try_from(has_bytes - len_bytes)?];
    Mapped::new(&dma_buf, has_bytes)?.view().read(usize::try_from(len_bytes)?, &mut tail)?;
    dma_buf::sync(dma_buf.as_fd(), CpuAccess::Read, SyncPhase::End)?;
    ensure!(content.is_none(), "byte {content:?} of {len_bytes} is not the file's");
    let dirty = tail.iter().position(|byte| *byte != 0);
    ensure!(dirty.is_none(), "byte {dirty:?} after the content is not zero");
    Ok(())
}

fn play_allocate(told: &Value, _: Option<OwnedFd>) -> Result<(), Box<dyn Error>> {
    let heap: Heap = told["heap"].as_str().ok_or("no heap is named")?.parse()?;
    heap.allocate(number(told, "len_bytes")?)?;
    Ok(())
}

fn play_load(told: &Value, _: Option<OwnedFd>) -> Result<(), Box<dyn Error>> {
    let heap: Heap = told["heap"].as_str().ok_or("no heap is named")?.parse()?;
    let plan = Plan::from_path(told["path"].as_str().ok_or("no file is named")?)?;
    let _loaded = Loader::new().heap(heap).load(&plan)?;
    loop {
        thread::park();
    }
}

fn number(told: &Value, name: &str) -> Result<u64, Box<dyn Error>> {
    told[name].as_u64().ok_or_else(|| format!("{name} is missing").into())
}
