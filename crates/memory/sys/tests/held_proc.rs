//! Servers that start while another user holds the lock of `/proc/sys/vm` or `/proc/PID`. A FIFO without a
//! writer in the place of a file delays an `open(2)` in the same way, and so does a file system whose daemon
//! does not answer in the place of a directory.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]

use std::env;
use std::fs::{self, OpenOptions};
use std::hint;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::{descriptors, disposal, mapping, namespace};
use rustix::fs::{CWD, FileType, Mode};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "../../../devices/vfio-user/tests/server/fuse.rs"]
mod fuse;

/// The variables with the folder of the child's FIFO, and the path of the file that it hides.
const FOLDER: &str = "LONGSHORE_TEST_FOLDER";
const HIDDEN: &str = "LONGSHORE_TEST_HIDDEN";
const PATIENCE: Duration = Duration::from_secs(60);
/// The time within which a server has started.
const START_TIME: Duration = Duration::from_secs(20);
const THREADS: usize = 4;
/// The beginning of the child's last line.
const END: &str = "ended: ";

/// Hides a file of `/proc/sys/vm` behind a FIFO without a writer, or returns the reason if that is not
/// permitted.
fn hide(folder: &Path, path: &str) -> Result<(), String> {
    let fifo = folder.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    namespace::enter().map_err(|error| format!("no mount namespace: {error}"))?;
    rustix::mount::mount_bind(&fifo, path).map_err(|error| format!("mounting {path}: {error}"))
}

/// Fails after some time, or waits for `thread`.
fn join<T>(thread: thread::JoinHandle<T>, what: &str) -> T {
    let begin = Instant::now();
    while !thread.is_finished() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
    thread.join().unwrap()
}

/// Makes this thread's arena return memory to the kernel.
fn allocate_and_free() {
    let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(256);
    blocks.extend((0..256).map(|_| hint::black_box(vec![1; 64 << 10])));
    while blocks.pop().is_some() {}
}

fn serve_like_a_server(path: &str) {
    let begin = Instant::now();
    // The test's thread would hang if it called this, and could not report it.
    join(thread::spawn(disposal::prepare), "preparing hangs").unwrap();
    assert!(begin.elapsed() < START_TIME, "{:?}", begin.elapsed());
    let begin = Instant::now();
    assert!(mapping::count_max() > 0);
    assert!(begin.elapsed() < Duration::from_secs(1), "it is looked up again");
    let all: Vec<_> = (0..THREADS).map(|_| thread::spawn(allocate_and_free)).collect();
    all.into_iter().for_each(|one| join(one, "a thread that frees memory hangs"));
    // This succeeds only if a thread waits for a writer.
    let writer = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
    if cfg!(target_env = "gnu") || path.ends_with("max_map_count") {
        writer.expect("no look-up hangs, so this tests nothing");
    }
}

#[test]
#[ignore = "a part of the tests below"]
fn starts_and_serves() {
    let (Some(folder), Ok(path)) = (env::var_os(FOLDER), env::var(HIDDEN)) else { return };
    let end = match hide(Path::new(&folder), &path) {
        Ok(()) => {
            serve_like_a_server(&path);
            "passed".to_owned()
        }
        Err(why) => format!("SKIPPED: {why}"),
    };
    println!("\n{END}{end}");
}

fn refuses_to_start_until_the_lock_is_released() -> String {
    if let Err(error) = namespace::enter() {
        return format!("SKIPPED: no mount namespace: {error}");
    }
    let Some((mounted, device)) = fuse::mount(Path::new("/proc/self")) else {
        return "SKIPPED: FUSE cannot be mounted".to_owned();
    };
    let begin = Instant::now();
    let prepared = join(thread::spawn(disposal::prepare), "preparing hangs");
    let refused = prepared.expect_err("threads would look up /proc/self/fd while they serve");
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
    assert!(begin.elapsed() < START_TIME, "{:?}", begin.elapsed());
    drop((mounted, device));
    while let Err(error) = join(thread::spawn(disposal::prepare), "preparing hangs") {
        assert!(begin.elapsed() < PATIENCE, "{error}");
    }
    assert!(join(thread::spawn(descriptors::has_room_for_message), "counting hangs"));
    "passed".to_owned()
}

#[test]
#[ignore = "a part of the last test"]
fn refuses_to_start() {
    if env::var_os(FOLDER).is_some() {
        println!("\n{END}{}", refuses_to_start_until_the_lock_is_released());
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the test with this name, one of the above, in a process of its own.
fn in_child(test: &str, path: &str) {
    if fs::metadata(path).is_err() {
        return println!("SKIPPED: there is no {path}");
    }
    let folder = tempfile::tempdir().unwrap();
    // Without root, the threads of the test runner keep it from entering a user namespace.
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .arg("--test-threads=1")
        .env(FOLDER, folder.path())
        .env(HIDDEN, path)
        // A backtrace reads `/proc/self`.
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Killed(child.unwrap());
    let output = BufReader::new(child.0.stdout.take().unwrap());
    let (send, end) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = output.lines().map_while(Result::ok);
        let _ = send.send(lines.find_map(|line| Some(line.strip_prefix(END)?.to_owned())));
        // The test runner writes more.
        lines.for_each(drop);
    });
    let end = end.recv_timeout(4 * PATIENCE).expect("the process hangs");
    let end = end.expect("the process failed");
    println!("{end}");
}

#[test]
fn a_server_starts_and_frees_memory_while_the_file_of_glibc_is_held() {
    in_child("starts_and_serves", "/proc/sys/vm/overcommit_memory");
}

#[test]
fn a_server_starts_while_the_limit_of_mappings_is_held() {
    in_child("starts_and_serves", "/proc/sys/vm/max_map_count");
}

#[test]
fn a_server_does_not_start_while_the_directory_of_its_process_is_held() {
    in_child("refuses_to_start", "/proc/self");
}
