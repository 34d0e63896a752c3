//! `longshore-access` serves a device to a real client, an unmodified QEMU 11. QEMU's firmware maps,
//! unmaps and remaps memory while the device's threads read and write it.
//!
//! ```text
//!    QEMU ── SeaBIOS ── registers, maps ──► socket ──► Server ──► Doorbell, a device
//!      ▲                                                  │
//!      └─ qtest ── the test looks into memory             └─► SpaceDma ──► Space ◄── sessions
//! ```
//!
//! Runs only with `LONGSHORE_VM_QEMU11=1`, because QEMU 11 is downloaded.

mod device;
mod events;

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_access::{Fault, Reason, Session, Space};
use longshore_mem::Iova;
use longshore_vfio_user::pci::MSIX_IRQ;
use longshore_vfio_user::{ConnectionSummary, DisconnectReason, Link, Listener, Server, SpaceDma};
use longshore_vm_tests::{Qemu, Qtest, require};

use device::{Doorbell, MSIX_TABLE};
use events::{Event, Events, Kind, Observed};

const RAM_BYTES: u64 = 256 << 20;
/// The address of the firmware's last 256 KiB. QEMU passes no descriptor for them.
const ROM: u64 = 0xfffc_0000;
/// The address of the firmware's first instruction below 1 MiB: a jump to `f000:e05b`.
const RESET_VECTOR: u64 = 0xf_fff0;
const JUMP: [u8; 5] = [0xea, 0x5b, 0xe0, 0x00, 0xf0];
/// Memory that the firmware does not touch.
const UNUSED: u64 = 128 << 20;
/// The device's slot on the bus.
const SLOT: u32 = 3;

/// A machine with the device, and the state that the test inspects.
struct Machine {
    qtest: Qtest,
    events: Events,
    space: Space,
    link: Link,
    server: JoinHandle<ConnectionSummary>,
}

/// Returns QEMU 11, or prints the reason and returns `None`.
fn qemu_11(what: &str) -> Option<Qemu> {
    if env::var("LONGSHORE_VM_QEMU11").as_deref() != Ok("1") {
        require::skip(what, &"QEMU 11 is downloaded; set LONGSHORE_VM_QEMU11=1 to run it");
        return None;
    }
    require::or_skip(what, Qemu::v11())
}

impl Machine {
    /// Starts QEMU with the device; `first` runs with the space before QEMU connects.
    fn start(qemu: &Qemu, dir: &Path, first: impl FnOnce(&Space)) -> Self {
        let path = dir.join("device.sock");
        let listener = Listener::bind(&path).expect("a socket");
        let space = Space::new().expect("a space");
        let (events, links) = (Events::default(), device::Links::default());
        let dma = Observed::new(SpaceDma::new(space.clone()), events.clone());
        let device = Doorbell::new(space.clone(), links.clone());
        let mut server = Server::new(device, dma).expect("a server");
        let stop = server.stop_handle();
        let server = thread::spawn(move || {
            let stream = listener.accept(&stop).expect("a client").expect("not stopped");
            server.serve(stream).expect("a client is served")
        });
        first(&space);
        let mut qtest = start_qemu(qemu, &path);
        // QEMU answers once the device is realized.
        qtest.read(0, 1).expect("QEMU runs");
        let link = links.newest().expect("QEMU has settled the version");
        Self { qtest, events, space, link, server }
    }

    /// Waits until the firmware has finished: it has mapped its copy in low memory read-only, and then
    /// changed no map for a second.
    fn wait_for_firmware(&mut self) -> Vec<Event> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(120) {
            thread::sleep(Duration::from_millis(100));
            let events = self.events.all();
            let is_locked = events.iter().any(Event::locks_low_memory);
            let is_quiet =
                events.last().is_some_and(|last| last.at.elapsed() > Duration::from_secs(1));
            if is_locked && is_quiet {
                return events;
            }
        }
        panic!("the firmware did not finish: {:#?}", self.events.all());
    }

    fn read_config(&mut self, register: u32) -> u32 {
        self.qtest.write_port_u32(0xcf8, 1 << 31 | SLOT << 11 | register).expect("a port");
        self.qtest.read_port_u32(0xcfc).expect("a port")
    }

    fn write_config(&mut self, register: u32, value: u32) {
        self.qtest.write_port_u32(0xcf8, 1 << 31 | SLOT << 11 | register).expect("a port");
        self.qtest.write_port_u32(0xcfc, value).expect("a port");
    }

    /// Ends QEMU, and returns the server's summary of the connection and the space.
    fn quit(self) -> (ConnectionSummary, Space) {
        drop(self.qtest);
        (self.server.join().expect("the server ends"), self.space)
    }
}

/// Starts QEMU with the device whose server listens at `path`.
fn start_qemu(qemu: &Qemu, path: &Path) -> Qtest {
    let device = format!(
        r#"{{"driver":"vfio-user-pci","addr":"{SLOT:02x}.0","socket":{{"type":"unix","path":"{}"}}}}"#,
        path.display()
    );
    let ram = format!("memory-backend-memfd,id=ram,size={RAM_BYTES},share=on");
    let size = format!("{}M", RAM_BYTES >> 20);
    let args = ["-M", "q35,memory-backend=ram", "-m", &size, "-object", &ram, "-device", &device];
    Qtest::start(qemu, args).expect("QEMU starts")
}

/// The results of the accesses of one thread of the device.
#[derive(Debug, Default)]
struct Seen {
    done: u64,
    unmapped: u64,
    refused: u64,
    revoked: u64,
}

impl Seen {
    /// Counts an access, and asserts that a failed one transferred nothing.
    fn count(&mut self, done: Result<(), Fault>) -> bool {
        match done.map_err(|fault| (fault.done, fault.reason)) {
            Ok(()) => self.done += 1,
            Err((0, Reason::Unmapped)) => self.unmapped += 1,
            // The guest has not enabled bus mastering, or the memory is read-only.
            Err((0, Reason::Permission)) => self.refused += 1,
            Err((0, Reason::Revoked)) => self.revoked += 1,
            Err(other) => panic!("{other:?}"),
        }
        done.is_ok()
    }
}

/// Starts a thread of the device that repeats `access` until `is_over` is set.
fn device_thread(
    space: &Space,
    is_over: &Arc<AtomicBool>,
    access: impl Fn(&Session, &mut Seen) + Send + 'static,
) -> JoinHandle<Seen> {
    let (space, is_over) = (space.clone(), Arc::clone(is_over));
    thread::spawn(move || {
        let (session, mut seen) = (space.session(), Seen::default());
        while !is_over.load(Ordering::Relaxed) {
            access(&session, &mut seen);
        }
        seen
    })
}

#[test]
fn firmware_remaps_memory_while_the_device_uses_it() {
    let Some(qemu) = qemu_11("a device served to QEMU") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let is_over = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    let mut machine = Machine::start(&qemu, dir.path(), |space| {
        // The memory there is either zero or the firmware.
        let reads = |session: &Session, seen: &mut Seen| {
            let mut bytes = [0; 5];
            let read = session.read(Iova::new(RESET_VECTOR), &mut bytes);
            if seen.count(read) {
                // The firmware may be copying itself there at this moment.
                let is_known = |(byte, jump): (&u8, u8)| *byte == jump || *byte == 0;
                assert!(bytes.iter().zip(JUMP).all(is_known), "{bytes:x?}");
            }
        };
        // A read returns the last write, or the memory is unmapped.
        let writes = |session: &Session, seen: &mut Seen| {
            let (iova, mut bytes) = (Iova::new(UNUSED), [0; 64]);
            let value = [seen.done as u8; 64];
            if seen.count(session.write(iova, &value)) && seen.count(session.read(iova, &mut bytes))
            {
                assert_eq!(bytes, value);
            }
        };
        threads.push(device_thread(space, &is_over, reads));
        threads.push(device_thread(space, &is_over, writes));
    });
    let events = machine.wait_for_firmware();
    is_over.store(true, Ordering::Relaxed);
    let seen: Vec<Seen> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    events.iter().for_each(|event| println!("{event}"));
    println!("{seen:?}, {:?}", machine.space.counters());

    // The first two maps are all memory and the firmware, which has no descriptor.
    let whole = Kind::Map { writable: true, by_messages: false, offset: 0 };
    let rom = Kind::Map { writable: false, by_messages: true, offset: 0 };
    assert_eq!((events[0].start, events[0].len_bytes, events[0].kind), (0, RAM_BYTES, whole));
    assert_eq!((events[1].start, events[1].kind), (ROM, rom));
    let unmaps = events.iter().filter(|event| event.kind == Kind::Unmap).count();
    let maps = events.len() - unmaps;
    assert!(maps >= 12 && unmaps >= 8, "{maps} maps, {unmaps} unmaps");
    let in_pages = |event: &&Event| (event.start | event.len_bytes) & 0x7fff != 0;
    assert!(events.iter().any(|event| in_pages(&event)), "low memory is split at 4 KiB edges");
    // Each map of memory has the same offset in the file as in the machine.
    for event in &events {
        if let Kind::Map { by_messages: false, offset, .. } = event.kind {
            assert_eq!(offset, event.start);
        }
    }
    assert!(seen.iter().all(|seen| seen.done > 0), "{seen:?}");
    assert!(machine.space.counters().barriers > 0, "memory was unmapped while sessions used it");

    let (served, space) = machine.quit();
    assert_eq!(served.ended, DisconnectReason::ClosedByClient);
    assert_eq!((served.refused_count, served.stray_replies_count), (0, 0), "{served:?}");
    assert_eq!(served.maps_left_count, 0);
    let fault = space.session().read(Iova::new(UNUSED), &mut [0]).unwrap_err();
    assert_eq!(fault.reason, Reason::Unmapped);
}

#[test]
fn the_device_and_the_machine_see_the_same_memory() {
    let Some(qemu) = qemu_11("a device that shares memory with QEMU") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let mut machine = Machine::start(&qemu, dir.path(), |_| ());
    machine.wait_for_firmware();
    assert_eq!(machine.read_config(0), Doorbell::IDENTITY);
    let session = machine.space.session();
    let mut bytes = [0; 16];

    // Memory with a descriptor, both ways.
    session.write(Iova::new(UNUSED + 0xff8), b"from the device!").unwrap();
    assert_eq!(machine.qtest.read(UNUSED + 0xff8, 16).unwrap(), b"from the device!");
    machine.qtest.write(UNUSED, b"from the machine").unwrap();
    session.read(Iova::new(UNUSED), &mut bytes).unwrap();
    assert_eq!(&bytes, b"from the machine");
    // Memory that the firmware has locked is read-only.
    session.read(Iova::new(RESET_VECTOR), &mut bytes).unwrap();
    assert_eq!(bytes[..5], JUMP);
    let fault = session.write(Iova::new(RESET_VECTOR), &bytes).unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::Permission));

    // Memory without a descriptor. QEMU refuses requests for it until the device is bus master.
    machine.write_config(4, 0b010);
    let reset_vector = Iova::new(ROM + 0x3_fff0);
    let fault = session.read(reset_vector, &mut bytes).unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::Permission));
    machine.write_config(4, 0b110);
    session.read(reset_vector, &mut bytes).unwrap();
    assert_eq!(bytes[..], machine.qtest.read(reset_vector.raw(), 16).unwrap());
    let mut rom = vec![0; 0x4_0000];
    session.read(Iova::new(ROM), &mut rom).unwrap();
    for at in (0..rom.len()).step_by(0x8000) {
        let part = machine.qtest.read(ROM + at as u64, 0x8000).unwrap();
        assert!(rom[at..at + 0x8000] == part, "the firmware at {at:#x}");
    }
    let fault = session.write(Iova::new(ROM), &bytes).unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::Permission));
    // QEMU also accepts message writes to memory that it passed a descriptor for.
    machine.link.write(Iova::new(UNUSED + 0x2000), b"by a message").unwrap();
    assert_eq!(machine.qtest.read(UNUSED + 0x2000, 12).unwrap(), b"by a message");

    // The driver writes the doorbell. The device copies within the machine's memory, and raises an
    // interrupt, which is also a write to memory.
    let registers = u64::from(machine.read_config(0x10) & !0xf);
    let interrupt_at = UNUSED + 0x4000;
    machine.qtest.write_u64(registers + MSIX_TABLE, interrupt_at).unwrap();
    machine.qtest.write_u32(registers + MSIX_TABLE + 8, 0xcafe).unwrap();
    machine.qtest.write_u32(registers + MSIX_TABLE + 12, 0).unwrap();
    let msix = Doorbell::MSIX_CAPABILITY;
    let control = machine.read_config(msix);
    assert_eq!(control & 0xff, 0x11);
    machine.write_config(msix, control | 1 << 31);
    machine.qtest.write_u64(registers + device::SOURCE, UNUSED).unwrap();
    machine.qtest.write_u64(registers + device::TARGET, UNUSED + 0x5ffc).unwrap();
    machine.qtest.write_u32(registers + device::RING, 16).unwrap();
    // QEMU posts register writes; a later read waits for them, as on a real bus.
    assert_eq!(machine.qtest.read_u32(registers + device::RUNG).unwrap(), 1);
    assert_eq!(machine.qtest.read(UNUSED + 0x5ffc, 16).unwrap(), b"from the machine");
    let has_arrived = (0..10_000).any(|_| {
        // Each read lets QEMU's main loop run.
        machine.qtest.read_u32(interrupt_at).unwrap() == 0xcafe
    });
    assert!(has_arrived, "the interrupt did not arrive");
    assert_eq!(
        machine.link.interrupts().raise(MSIX_IRQ, 1),
        Ok(false),
        "the interrupt is not enabled"
    );

    let (served, _) = machine.quit();
    assert_eq!((served.refused_count, served.maps_left_count), (0, 0), "{served:?}");
}

#[test]
fn after_a_machine_is_killed_the_next_one_is_served() {
    let Some(qemu) = qemu_11("a device that outlives QEMU") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("device.sock");
    let listener = Listener::bind(&path).expect("a socket");
    let (space, links) = (Space::new().expect("a space"), device::Links::default());
    let device = Doorbell::new(space.clone(), links.clone());
    let mut server = Server::new(device, SpaceDma::new(space.clone())).expect("a server");
    let stop = server.stop_handle();
    let server = thread::spawn(move || {
        let mut all = Vec::new();
        server.serve_all(&listener, |served| all.push(served.clone())).expect("clients come");
        all
    });
    for round in 0..3_u8 {
        let mut qtest = start_qemu(&qemu, &path);
        // The firmware has only just started.
        qtest.write(UNUSED, &[round; 8]).expect("QEMU runs");
        let (session, mut bytes) = (space.session(), [0xff; 8]);
        // The firmware may be remapping it at this moment.
        let mut read = (0..1_000_000).map(|_| session.read(Iova::new(UNUSED), &mut bytes));
        assert!(read.any(|read| read.is_ok()));
        assert_eq!(bytes, [round; 8]);
        let link = links.newest().expect("a link");
        drop(qtest);
        let mut is_gone = (0..20_000).map(|_| {
            thread::sleep(Duration::from_millis(1));
            !link.is_connected()
        });
        assert!(is_gone.any(|is_gone| is_gone), "the server has not noticed the disconnect");
    }
    stop.stop();
    let all = server.join().expect("the server ends");
    assert_eq!(all.len(), 3);
    for served in all {
        let ended = matches!(
            served.ended,
            DisconnectReason::ClosedByClient | DisconnectReason::ClosedInMessage
        );
        assert!(ended && served.refused_count == 0 && served.maps_left_count == 0, "{served:?}");
    }
    let fault = space.session().read(Iova::new(UNUSED), &mut [0]).unwrap_err();
    assert_eq!(fault.reason, Reason::Unmapped);
}
