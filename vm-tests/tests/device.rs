//! Runs `examples/device` in an unmodified QEMU 11. A small program in the guest drives it: the kernel
//! finds the device, and a process maps its registers and lends it memory.
//!
//! ```text
//!   guest: suite `device` ── BAR 0, rings, buffers ──► QEMU ──► socket ──► longshore_device_example
//! ```
//!
//! Runs only with `LONGSHORE_VM_QEMU11=1`, because QEMU 11 is downloaded.

use std::collections::BTreeSet;
use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use longshore_access::Space;
use longshore_device_example::trace::{Counts, Snapshot};
use longshore_mem::Iova;
use longshore_vfio_user::{ConnectionSummary, DisconnectReason, Listener};
use longshore_vm_tests::protocol::{Event, Outcome};
use longshore_vm_tests::{Machine, Qemu, Task, TestReport, expected, require};

const EXPECTED: &str = include_str!("../expected-tests.txt");
const MEMORY_MIB: u32 = 512;
/// The address of the firmware's first instruction below 1 MiB: a jump to `f000:e05b`.
const RESET_VECTOR: u64 = 0xf_fff0;
const JUMP: [u8; 5] = [0xea, 0x5b, 0xe0, 0x00, 0xf0];

/// The machine, with the device whose server listens at `socket`.
fn machine(qemu: Qemu, socket: &str) -> Machine {
    let device =
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{socket}"}}}}"#);
    let ram = format!("memory-backend-memfd,id=ram,size={MEMORY_MIB}M,share=on");
    Machine::new("device")
        .qemu(qemu)
        .memory_mib(MEMORY_MIB)
        .device(device)
        .qemu_args(["-object", &ram, "-machine", "memory-backend=ram"])
        .restarts(1)
}

/// A session that keeps reading the firmware's copy below 1 MiB, while the memory there is remapped
/// repeatedly.
struct LowMemoryReader {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<[u64; 2]>,
}

impl LowMemoryReader {
    fn start(space: Space) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let for_thread = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let (session, mut read, mut absent) = (space.session(), 0, 0);
            while !for_thread.load(Ordering::Relaxed) {
                let mut bytes = [0; JUMP.len()];
                match session.read(Iova::new(RESET_VECTOR), &mut bytes) {
                    Ok(()) => {
                        // The firmware may be copying itself there at this moment.
                        let is_known = |(byte, jump): (&u8, u8)| *byte == jump || *byte == 0;
                        assert!(bytes.iter().zip(JUMP).all(is_known), "{bytes:x?}");
                        read += 1;
                    }
                    Err(_) => absent += 1,
                }
                // Leaves processor time to the machine.
                thread::sleep(Duration::from_micros(50));
            }
            [read, absent]
        });
        Self { is_over, thread }
    }

    /// Returns how often the memory was read and how often it was unmapped.
    fn stop(self) -> [u64; 2] {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the session read only values that are possible there")
    }
}

/// Returns the failed tests of one boot and the deviations from the list.
fn complaints(tests: &[TestReport], expected: &BTreeSet<String>) -> Vec<String> {
    let ran: Vec<_> = tests.iter().map(|test| (test.name.clone(), test.outcome.clone())).collect();
    let mut complaints = expected::compare(expected, &ran);
    for (name, outcome) in ran {
        if let Outcome::Failed(why) = outcome {
            complaints.push(format!("{name}: {why}"));
        }
    }
    complaints
}

#[test]
fn a_guest_drives_the_device_before_and_after_a_reset() {
    let what = "a device driven by a guest";
    if env::var("LONGSHORE_VM_QEMU11").as_deref() != Ok("1") {
        require::skip(what, &"QEMU 11 is downloaded; set LONGSHORE_VM_QEMU11=1 to run it");
        return;
    }
    let qemu = require::check().and_then(|()| Qemu::v11());
    let Some(qemu) = require::or_skip(what, qemu) else { return };
    let mut expected = expected::parse(EXPECTED).expect("a list");
    expected.retain(|name| name.starts_with(expected::DEVICE));
    let tasks: Vec<_> = expected.iter().map(Task::test).collect();

    let dir = tempfile::tempdir().expect("a folder");
    let listener = Listener::bind(&dir.path().join("device.sock")).expect("a socket");
    let counts = Counts::default();
    let space = Space::new().expect("a space");
    let reader = LowMemoryReader::start(space.clone());
    let mut server = longshore_device_example::server(space, &counts).expect("a server");
    let stop = server.stop_handle();
    let (sender, gone) = mpsc::channel();
    let path = listener.path().to_str().expect("a name in UTF-8").to_owned();
    let server = thread::spawn(move || {
        server.serve_all(&listener, |served| sender.send(served.clone()).expect("it is awaited"))
    });

    // The counts when the kernel of each boot is up.
    let mut up: Vec<Snapshot> = Vec::new();
    let report = machine(qemu, &path).run_observed(&tasks, &mut |event| match event {
        Event::Up { .. } => up.push(counts.snapshot()),
        Event::End { task, outcome, seconds } => println!("{task}: {outcome:?} ({seconds:.2} s)"),
        _ => {}
    });
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    // One connection for each attempt to boot.
    let next = |_| gone.recv_timeout(Duration::from_secs(20)).expect("QEMU has gone");
    let served: Vec<ConnectionSummary> = (0..report.boots).map(next).collect();
    stop.stop();
    server.join().expect("no panic").expect("clients come");
    let end = counts.snapshot();
    let [read, absent] = reader.stop();
    println!("up: {up:#?}\nend: {end}\nserved: {served:?}\nseen {read} times, absent {absent}");

    let (first, second) = report.tests.split_at(report.tests.len() / 2);
    for (boot, tests) in [("first", first), ("second", second)] {
        let complaints = complaints(tests, &expected);
        assert!(complaints.is_empty(), "the {boot} boot: {complaints:#?}");
    }
    // In each boot, the firmware remapped memory before the kernel started; in the second boot, the
    // device had already been in use.
    let [before, after] = up[..] else { panic!("not two boots: {up:?}") };
    assert!(before.unmaps > 0 && before.maps > before.unmaps, "{before:?}");
    assert!(after.maps > before.maps && after.unmaps > before.unmaps, "{after:?}");
    assert!(after.resets > before.resets, "{after:?}");
    // Both boots did the same work, counted in the server; one test alone sends a hundred batches of 1 to 8
    // requests.
    assert_eq!((before.done, before.failed), (0, 0));
    assert!(after.done > 400 && after.failed > 20, "{after:?}");
    assert_eq!((end.done, end.failed), (2 * after.done, 2 * after.failed));
    assert_eq!((end.clients, end.ring_faults), (report.boots.into(), 0));
    assert!(read > 0 && absent > 0, "the concurrent session read nothing, or missed no unmap");
    assert_eq!(end.maps, end.unmaps, "a map is left");
    for served in &served {
        let is_orderly = matches!(
            served.ended,
            DisconnectReason::ClosedByClient | DisconnectReason::ClosedInMessage
        );
        let is_clean = (served.refused_count, served.maps_left_count) == (0, 0);
        assert!(is_orderly && is_clean, "{served:?}");
    }
}
