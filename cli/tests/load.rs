//! `longshore load`: its output, the memory that programs get, and its errors.

mod command;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use command::{LONGSHORE, Outcome, longshore, run};

/// A folder in `/var/tmp`, because `/tmp` may be a tmpfs.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        // Other users must be able to reach the files.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }
}

fn content(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

#[test]
fn the_summary_and_the_json_describe_the_load() {
    let fixture = Fixture::new();
    let path = fixture.file("model.bin", &content(5_000_000));
    let plain = longshore(&["load", path.to_str().unwrap(), "--verify", "crc32c"]);
    assert_eq!(plain.code, 0, "{}", plain.stderr);
    for word in ["5.00 MB in", "memory", "page cache", "crc32c", "--hold"] {
        assert!(plain.stdout.contains(word), "{word} in {}", plain.stdout);
    }
    let json = longshore(&["load", path.to_str().unwrap(), "--json", "--heap", "memfd"]).json();
    assert_eq!((&json["bytes"], &json["bytes_read"]), (&5_000_000.into(), &5_000_000.into()));
    assert_eq!(json["heap"], "memfd");
    assert_eq!(json["files"][0]["path"], path.to_str().unwrap());
    let modes = json["bytes_by_mode"].as_object().unwrap();
    let read: u64 = modes.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(read, 5_000_000);
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
    assert!(json["memfd"].is_null(), "the memory is gone with the process");
}

#[test]
fn a_program_gets_the_content_as_a_descriptor() {
    let fixture = Fixture::new();
    let path = fixture.file("model.bin", &content(3_000_001));
    let script = "cmp /proc/self/fd/$LONGSHORE_FD \"$0\" && echo $LONGSHORE_BYTES and $1";
    let name = path.to_str().unwrap();
    let outcome = longshore(&[
        "load", name, "--quiet", "--heap", "memfd", "--exec", "sh", "-c", script, name, "--json",
    ]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "3000001 and --json\n"));

    let write = "echo x 1<>/proc/self/fd/$LONGSHORE_FD";
    let refused = longshore(&["load", name, "--quiet", "--read-only", "--exec", "sh", "-c", write]);
    assert_ne!(refused.code, 0, "the content is sealed");
}

#[test]
fn a_program_is_checked_before_anything_is_loaded() {
    let fixture = Fixture::new();
    let model = fixture.path("vast");
    // A load of this file fails, because there is not enough memory.
    File::create(&model).unwrap().set_len(8 << 40).unwrap();
    let plain = fixture.file("plain", b"#!/bin/sh\n");
    let exec = |program: &str| longshore(&["load", model.to_str().unwrap(), "--exec", program]);
    exec("true").expect(20, &["MemAvailable"]);
    exec("no-such-program").expect(127, &["cannot run 'no-such-program'", "No such file"]);
    exec("/no/such/program").expect(127, &["cannot run '/no/such/program'"]);
    exec("echo hi").expect(127, &["'echo hi'", "separate words: --exec echo hi"]);
    exec(plain.to_str().unwrap()).expect(126, &["plain", "Permission denied"]);
    let attach = ["attach", "model", "--socket", "/no/such/socket", "--exec", "no-such-program"];
    longshore(&attach).expect(127, &["cannot run 'no-such-program'"]);
}

#[test]
fn an_executed_program_has_standard_output_to_itself() {
    let fixture = Fixture::new();
    let path = fixture.file("model.bin", &content(100_000));
    let name = path.to_str().unwrap();
    let plain = longshore(&["load", name, "--exec", "echo", "from the program"]);
    assert_eq!((plain.code, plain.stdout.as_str()), (0, "from the program\n"));
    assert!(plain.stderr.contains("100.00 kB in"), "{}", plain.stderr);
    let json = longshore(&["load", name, "--json", "--exec", "echo", "from the program"]);
    assert_eq!((json.code, json.stdout.as_str()), (0, "from the program\n"));
    let line = json.stderr.lines().find(|line| line.starts_with('{')).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["bytes"], 100_000);
}

#[test]
fn other_processes_can_open_a_held_buffer() {
    let fixture = Fixture::new();
    let content = content(2_500_000);
    let path = fixture.file("model.bin", &content);
    let mut child = Command::new(LONGSHORE)
        .args(["load", "--hold", "--json", "--heap", "memfd"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    let mut shared = Vec::new();
    let memfd_path = json["memfd_path"].as_str().unwrap();
    File::open(memfd_path).unwrap().read_to_end(&mut shared).unwrap();
    assert!(shared == content);
    command::signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!std::path::Path::new(memfd_path).exists());
}

#[test]
fn signals_that_the_parent_ignores_stay_ignored() {
    let fixture = Fixture::new();
    let path = fixture.file("model.bin", &content(100_000));
    let script = "trap '' HUP; exec \"$0\" load --hold --json --heap memfd \"$1\"";
    let mut child = Command::new("sh")
        .args(["-c", script, LONGSHORE])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    command::signal(&child, "HUP");
    thread::sleep(Duration::from_millis(100));
    assert_eq!(child.try_wait().unwrap(), None, "it goes on, as under nohup");
    assert!(File::open(json["memfd_path"].as_str().unwrap()).is_ok());
    command::signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_content_is_compared_with_a_manifest() {
    let fixture = Fixture::new();
    let path = fixture.file("model.bin", b"123456789");
    let good = fixture.file("good", b"e3069283  model.bin\n");
    let bad = fixture.file("bad", b"e3069284  model.bin\n");
    let load = |manifest: &PathBuf| {
        longshore(&["load", path.to_str().unwrap(), "--manifest", manifest.to_str().unwrap()])
    };
    assert_eq!(load(&good).code, 0);
    load(&bad).expect(16, &["model.bin", "crc32c is e3069283", "but e3069284 was expected"]);
}

#[test]
fn paths_that_are_not_regular_files_are_refused() {
    let fixture = Fixture::new();
    let fifo = fixture.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let load = |path: &str| longshore(&["load", path]);
    load("/no/such/file").expect(10, &["/no/such/file", "No such file"]);
    longshore(&["load", "/var/tmp", "--format", "raw"])
        .expect(11, &["/var/tmp is a directory", "name the files in it"]);
    load(fifo.to_str().unwrap()).expect(11, &["is a FIFO", "copy it into a file"]);
    load("/dev/null").expect(11, &["is a device"]);
    let socket = fixture.path("socket");
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    load(socket.to_str().unwrap()).expect(11, &["is a socket"]);
    let empty = fixture.file("empty", b"");
    load(empty.to_str().unwrap()).expect(17, &["is empty"]);
}

#[test]
fn a_file_without_permission_is_refused() {
    let fixture = Fixture::new();
    let path = fixture.file("secret", b"weights");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // Other users may not be able to reach the build folder.
    let program = fixture.path("longshore");
    command::copy_longshore(&program);
    let mut command = Command::new(program);
    command.arg("load").arg(&path);
    command::as_nobody(&mut command);
    run(&mut command).expect(12, &["secret", "Permission denied"]);
}

#[test]
fn files_of_other_users_are_read_directly_too() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let fixture = Fixture::new();
    let path = fixture.file("model.bin", &content(40_000_001));
    let file = File::open(&path).unwrap();
    if longshore_sys::file::status(&file).unwrap().direct.is_none() {
        eprintln!("SKIPPED: no direct I/O in /var/tmp");
        return;
    }
    let program = fixture.path("longshore");
    command::copy_longshore(&program);
    let mut command = Command::new(program);
    command.args(["load", "--json", "--heap", "memfd", "--verify", "crc32c"]).arg(&path);
    command::as_nobody(&mut command);
    // A page that a probe finds missing can arrive before the kernel looks again. Then its range counts
    // as resident, and copying it brings it into the page cache.
    let load_cold = |_: u32| {
        evict_all(&file);
        let cold = run(&mut command).json();
        (cached_pages(&file) < 256).then_some(cold)
    };
    let cold = (0..20).find_map(load_cold).expect("the page cache stays as it is");
    // The kernel reports residency only to the owner, so a few pages were probed by reading them.
    assert!(cold["page_cache_growth_bytes"].is_null(), "{cold}");
    assert!(cold["bytes_by_mode"]["direct"].as_u64().unwrap() > 39_000_000, "{cold}");

    // The kernel may reclaim pages at any time.
    let load_warm = |_: u32| {
        assert_eq!(fs::read(&path).unwrap().len(), 40_000_001);
        let warm = run(&mut command).json();
        (warm["bytes_by_mode"]["page_cache"] == 40_000_001).then_some(warm)
    };
    let warm = (0..20).find_map(load_warm).expect("the page cache has the whole file");
    assert_eq!(warm["files"][0]["digests"], cold["files"][0]["digests"]);
}

#[test]
fn a_file_larger_than_memory_is_refused_before_it_is_read() {
    let fixture = Fixture::new();
    let path = fixture.path("vast");
    // A sparse file, which needs no room on the disk.
    File::create(&path).unwrap().set_len(8 << 40).unwrap();
    longshore(&["load", path.to_str().unwrap()])
        .expect(20, &["8.80 TB are needed", "MemAvailable"]);
    let small = fixture.file("small", &content(100_000));
    longshore(&["load", small.to_str().unwrap(), "--memory-max", "64KiB"])
        .expect(20, &["100.00 kB are needed", "65.54 kB", "34.46 kB too few"]);
}

#[test]
fn the_limits_of_the_process_are_named() {
    let fixture = Fixture::new();
    let path = fixture.path("file");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let limited = |limit: &str| {
        let script = format!("ulimit {limit} && exec \"$0\" load \"$1\" --heap memfd");
        run(Command::new("sh").args(["-c", &script, LONGSHORE]).arg(&path))
    };
    limited("-v 60000").expect(20, &["address space limit"]);
    limited("-f 1000").expect(20, &["file size limit"]);
    limited("-n 4").expect(1, &["Too many open files"]);
    // Loading locks no memory.
    assert_eq!(limited("-l 0").code, 0);
}

#[test]
fn unavailable_heaps_and_modes_are_refused() {
    let fixture = Fixture::new();
    let path = fixture.file("file", &content(10_000));
    let name = path.to_str().unwrap();
    longshore(&["load", name, "--heap", "dma-heap:nowhere"])
        .expect(21, &["no dma-heap named 'nowhere'"]);
    longshore(&["load", name, "--heap", "udmabuf", "--read-only"])
        .expect(21, &["cannot seal its content", "use heap 'memfd'"]);
    longshore(&["load", name, "--heap", "shm"]).expect(2, &["unknown heap 'shm'", "udmabuf"]);
    longshore(&["load", name, "--mode", "mmap"]).expect(2, &["unknown read mode 'mmap'"]);
    if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
        let path = dir.path().join("file");
        fs::write(&path, content(10_000)).unwrap();
        let outcome = longshore(&["load", path.to_str().unwrap(), "--mode", "direct"]);
        // tmpfs reports no alignment for direct I/O.
        outcome.expect(22, &["direct", "use mode auto"]);
    }
}

#[test]
fn hostile_and_truncated_safetensors_are_refused() {
    let fixture = Fixture::new();
    let header = br#"{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let mut whole = (header.len() as u64).to_le_bytes().to_vec();
    whole.extend(header);
    whole.extend([0; 16]);
    let good = fixture.file("good.safetensors", &whole);
    assert_eq!(longshore(&["load", good.to_str().unwrap()]).code, 0);
    let truncated = fixture.file("short.safetensors", &whole[..whole.len() - 3]);
    longshore(&["load", truncated.to_str().unwrap()]).expect(15, &["short.safetensors", "valid"]);
    let vast = fixture.file("vast.safetensors", &(1u64 << 63).to_le_bytes());
    longshore(&["load", vast.to_str().unwrap()]).expect(15, &["vast.safetensors", "valid"]);
    // As a raw file it can be loaded, whatever its name is.
    assert_eq!(longshore(&["load", truncated.to_str().unwrap(), "--format", "raw"]).code, 0);
}

#[test]
fn ctrl_c_cancels_and_reports_the_bytes_done() {
    let fixture = Fixture::new();
    let path = fixture.path("file");
    // Hashing this takes seconds.
    File::create(&path).unwrap().set_len(4 << 30).unwrap();
    let mut command = Command::new(LONGSHORE);
    command.args(["load", "--verify", "sha256", "--heap", "memfd:4k"]).arg(&path);
    command::heed_interrupts(&mut command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The memory is allocated after the signals are caught, and before the first byte is read.
    wait_until("it has memory", || !memfds_of(&child.id().to_string()).is_empty());
    command::signal(&child, "INT");
    let status = child.wait().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let outcome = Outcome { code: status.code().unwrap_or(-1), stdout: String::new(), stderr };
    outcome.expect(130, &["cancelled after", "of 4.29 GB"]);
}

#[test]
fn without_io_uring_threads_read_and_the_reason_is_reported() {
    let fixture = Fixture::new();
    let path = fixture.file("file", &content(20_000_000));
    let file = File::open(&path).unwrap();
    if longshore_sys::file::status(&file).unwrap().direct.is_none() {
        eprintln!("SKIPPED: no direct I/O in /var/tmp");
        return;
    }
    evict_all(&file);
    let mut command = Command::new(LONGSHORE);
    command.args(["load", "--json", "--heap", "memfd", "--verify", "crc32c"]).arg(&path);
    let with_ring = run(&mut command).json();
    evict_all(&file);
    command::refuse_io_uring(&mut command);
    let without = run(&mut command).json();
    assert_eq!(without["engine"], "threads");
    assert!(without["ring_refused"].as_str().unwrap().contains("not permitted"), "{without}");
    assert_eq!(without["bytes_by_mode"]["direct"], 20_000_000);
    assert_eq!(without["files"][0]["digests"], with_ring["files"][0]["digests"]);
}

#[test]
fn a_killed_load_leaves_nothing_behind() {
    let fixture = Fixture::new();
    let path = fixture.path("file");
    File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let mut child = Command::new(LONGSHORE)
        .args(["load", "--quiet", "--hold", "--heap", "memfd"])
        .arg(&path)
        .spawn()
        .unwrap();
    let own = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    wait_until("it has begun", || own() > 200 << 20);
    let memfds = memfds_of(&child.id().to_string());
    assert!(!memfds.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel frees the memory, because no process has it open.
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let kept = memfds_of(&process.file_name().to_string_lossy());
        assert!(kept.is_disjoint(&memfds), "{:?} has the memory", process.file_name());
    }
}

/// Returns the devices and inodes of the memfds that a process has open, which are those it maps.
fn memfds_of(process: &str) -> BTreeSet<(u64, u64)> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let memfds = descriptors.filter(|descriptor| {
        let link = fs::read_link(descriptor.path()).unwrap_or_default();
        link.as_os_str().as_encoded_bytes().starts_with(b"/memfd:")
    });
    let inode = |memfd: fs::DirEntry| fs::metadata(memfd.path()).ok();
    memfds.filter_map(inode).map(|inode| (inode.dev(), inode.ino())).collect()
}

/// Drops a file from the page cache. Pages in use by the kernel stay, and the kernel reads ahead of
/// them, so one attempt may not be enough.
fn evict_all(file: &File) {
    wait_until("the file is evicted", || {
        longshore_sys::page_cache::evict(file).unwrap();
        cached_pages(file) == 0
    });
}

fn cached_pages(file: &File) -> u64 {
    let offset = longshore::mem::FileOffset::new(0);
    let len_bytes = file.metadata().unwrap().len();
    longshore_sys::page_cache::stat(file, offset, len_bytes).unwrap().cached_pages
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let patience = Duration::from_secs(30);
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < patience, "{what}: not within {patience:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
