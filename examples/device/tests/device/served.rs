//! Tests of the device with a driver in this process.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::driver::{
    Driver, ENTRIES, Host, PATIENCE, PIECE_BYTES, Part, RINGS, SOURCE, TARGET, piece, wait_until,
};
use longshore::iov::checksum;
use longshore::vfio_user::client::{DmaMemory, NoDmaMemory};
use longshore::vfio_user::pci::{BAR0_REGION, MSIX_IRQ};
use longshore::vfio_user::wire::{Command, HEADER_LEN_BYTES, Request};
use longshore::vfio_user::{Errno, MessageHeader};
use longshore_device_example::layout::{
    DESCRIPTOR_BYTES_MAX, Descriptor, IDENTITY, SEGMENTS_MAX, control, opcode, outcome, register,
    status,
};
use rustix::event::{EventfdFlags, eventfd};

/// Returns bytes without a repeating pattern.
fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Asserts that the device copies bytes correctly.
fn works<M: DmaMemory>(driver: &mut Driver<M>) {
    let content = content(5000);
    driver.source.write_all_at(&content, 3).unwrap();
    driver.target.write_all_at(&[0; 5000], 77).unwrap();
    let completion = driver.run(opcode::COPY, &[(SOURCE + 3, 5000)], TARGET + 77);
    assert_eq!((completion.outcome, completion.done_bytes), (outcome::DONE, 5000));
    let mut there = [0; 5000];
    driver.target.read_exact_at(&mut there, 77).unwrap();
    assert!(there[..] == content);
}

#[test]
fn scatter_lists_are_copied_and_summed() {
    let host = Host::start();
    let mut driver = host.driver();
    assert_eq!(driver.read(register::IDENTITY), IDENTITY);
    let content = content(1_000_000);
    // Entries that are shorter and longer than the staging buffer, with gaps between them.
    let (mut list, mut at, mut whole) = (Vec::new(), 0, Vec::new());
    for len in [1, 65_536, 7, 0, 300_001, 4096, 131_071, 3] {
        let part = &content[whole.len()..whole.len() + len];
        driver.source.write_all_at(part, at).unwrap();
        list.push((SOURCE + at, len as u64));
        whole.extend_from_slice(part);
        at += len as u64 + 777;
    }
    let completion = driver.run(opcode::COPY, &list, TARGET + 5);
    assert_eq!((completion.outcome, completion.cookie), (outcome::DONE, 1000));
    assert_eq!(completion.done_bytes as usize, whole.len());
    let mut there = vec![0; whole.len() + 1];
    driver.target.read_exact_at(&mut there, 5).unwrap();
    assert!(there[..whole.len()] == whole && there[whole.len()] == 0);
    let sum = driver.run(opcode::CHECKSUM, &list, 0);
    assert_eq!((sum.outcome, sum.value), (outcome::DONE, checksum::of(&whole).into()));

    // The check value in descriptions of CRC-32C.
    driver.source.write_all_at(b"123456789", 0).unwrap();
    let crc = driver.run(opcode::CRC32C, &[(SOURCE, 4), (SOURCE + 4, 5)], 0);
    assert_eq!((crc.value, crc.done_bytes), (0xe306_9283, 9));
    assert_eq!(driver.run(opcode::CRC32C, &[], 0).value, 0);
    assert_eq!(driver.read(register::DONE), 4);
    drop(driver);
    assert_eq!(host.stop()[0].refused_count, 0);
}

#[test]
fn an_invalid_descriptor_fails_and_the_next_one_succeeds() {
    let host = Host::start();
    let mut driver = host.driver();
    let nowhere = 0x7000_0000;
    let end = SOURCE + PIECE_BYTES;
    let huge = DESCRIPTOR_BYTES_MAX + 1;
    let (copy, target_end) = (opcode::COPY, TARGET + PIECE_BYTES);
    let mut ends = |opcode, list: &[Part], target, expected| {
        let found = driver.run(opcode, list, target);
        assert_eq!((found.outcome, found.fault, found.done_bytes), expected, "{list:x?}");
        works(&mut driver);
    };
    ends(0, &[(SOURCE, 8)], TARGET, (outcome::UNKNOWN_OPCODE, 0, 0));
    ends(99, &[(SOURCE, 8)], TARGET, (outcome::UNKNOWN_OPCODE, 0, 0));
    ends(copy, &[(SOURCE, huge)], TARGET, (outcome::TOO_LONG, 0, 0));
    ends(copy, &[(SOURCE, u64::MAX)], TARGET, (outcome::TOO_LONG, 0, 0));
    ends(copy, &[(u64::MAX - 3, 8)], TARGET, (outcome::TOO_LONG, 0, 0));
    ends(copy, &[(SOURCE, 8), (nowhere, 8)], TARGET, (outcome::UNMAPPED, nowhere, 8));
    ends(opcode::CRC32C, &[(end - 10, 20)], 0, (outcome::UNMAPPED, end, 10));
    ends(copy, &[(SOURCE, 8)], nowhere, (outcome::UNMAPPED, nowhere, 0));
    ends(copy, &[(SOURCE, 100)], target_end - 60, (outcome::UNMAPPED, target_end, 60));
    // Memory that is read-only for the device.
    driver.client.dma_unmap(TARGET, PIECE_BYTES).unwrap();
    driver.client.dma_map(TARGET, PIECE_BYTES, Some((driver.target.as_fd(), 0)), false).unwrap();
    let found = driver.run(opcode::COPY, &[(SOURCE, 8)], TARGET);
    assert_eq!((found.outcome, found.fault), (outcome::NOT_PERMITTED, TARGET));
    // Lists that are too long, or not mapped. A list of zeros has no bytes.
    let empty = RINGS + PIECE_BYTES / 2;
    for (segments, list, outcome) in [
        (SEGMENTS_MAX, empty, outcome::DONE),
        (SEGMENTS_MAX + 1, empty, outcome::TOO_LONG),
        (u32::MAX, empty, outcome::TOO_LONG),
        (1, nowhere, outcome::UNMAPPED),
        (2, u64::MAX - 15, outcome::UNMAPPED),
    ] {
        let opcode = opcode::CHECKSUM;
        driver.submit_raw(Descriptor { opcode, segments, list, target: 0, cookie: 5 });
        driver.ring();
        let found = driver.completion();
        assert_eq!((found.outcome, found.cookie), (outcome, 5));
    }
    let counts = host.counts.snapshot();
    assert_eq!((counts.done, counts.failed), (10, 14));
}

#[test]
fn invalid_registers_and_unmapped_rings_stop_the_device() {
    let host = Host::start();
    let mut driver = host.driver();
    for (at, entries) in
        [(RINGS, 0), (RINGS, 3), (RINGS, 8192), (RINGS + 8, 8), (u64::MAX << 13, 8)]
    {
        driver.enable_at(at, entries, 0);
        let is_placed = at == u64::MAX << 13;
        let expected = if is_placed { status::RUNNING } else { status::BAD_REGISTERS };
        assert_eq!(driver.read(register::STATUS), expected, "{at:#x}, {entries}");
    }
    // More descriptors than the ring has entries.
    driver.enable(0);
    driver.write(register::DOORBELL, ENTRIES + 1);
    assert_eq!(driver.read(register::STATUS), status::BAD_REGISTERS);
    // A ring that is not mapped, and one whose completions, 4 KiB after the descriptors, are not.
    for at in [0x7000_0000, RINGS + PIECE_BYTES - 0x1000] {
        driver.enable_at(at, 8, 0);
        assert_eq!(driver.read(register::STATUS), status::RUNNING);
        driver.write(register::DOORBELL, 1);
        wait_until("a fault", || driver.read(register::STATUS) == status::RING_FAULT);
    }
    driver.enable(0);
    works(&mut driver);
    assert_eq!(host.counts.snapshot().ring_faults, 2);
    // Writes that are not whole words have no effect, and bytes after the registers read as zero.
    driver.client.region_write(0, register::CONTROL, &[0]).unwrap();
    driver.client.region_write(0, register::CONTROL + 2, &[0; 4]).unwrap();
    driver.client.region_write(0, 0x3ffc, &[0xff; 4]).unwrap();
    assert_eq!((driver.read(register::STATUS), driver.read(0x3ffc)), (status::RUNNING, 0));
}

#[test]
fn the_device_runs_only_while_bus_mastering_is_enabled() {
    let host = Host::start();
    let mut driver = host.driver();
    driver.set_bus_master(false);
    assert_eq!(driver.read(register::STATUS), status::OFF);
    driver.submit(opcode::COPY, &[(SOURCE, 8)], TARGET);
    driver.ring();
    driver.enable(0);
    let control = driver.read(register::CONTROL);
    assert_eq!((driver.read(register::STATUS), control & control::ENABLE), (status::OFF, 0));
    driver.set_bus_master(true);
    driver.enable(0);
    works(&mut driver);
    assert_eq!(host.counts.snapshot().done, 1);
}

#[test]
fn a_stopped_device_does_not_access_memory() {
    let host = Host::start();
    let mut driver = host.driver();
    let half = PIECE_BYTES as usize / 2;
    driver.source.write_all_at(&vec![0x11; half], 0).unwrap();
    // The target is mapped eight times, so that a copy can take longer than a time slice.
    for at in (1..8).map(|time| TARGET + time * PIECE_BYTES) {
        driver.client.dma_map(at, PIECE_BYTES, Some((driver.target.as_fd(), 0)), true).unwrap();
    }
    let list = [(SOURCE, half as u64); 16];
    let mut is_cut_short = false;
    for round in 0..60 {
        for _ in 0..ENTRIES {
            driver.submit(opcode::COPY, &list, TARGET);
        }
        driver.ring();
        if round > 3 {
            driver.completion();
        }
        match round % 3 {
            0 => driver.write(register::CONTROL, 0),
            1 => driver.set_bus_master(false),
            _ => driver.client.reset().unwrap(),
        }
        is_cut_short |= driver.read(register::DONE) < ENTRIES;
        let mark = vec![0x22; half];
        driver.target.write_all_at(&mark, 0).unwrap();
        driver.set_bus_master(true);
        driver.enable(0);
        // When this has completed, an operation that was not stopped would be over.
        assert_eq!(driver.run(opcode::CRC32C, &[(SOURCE, 1 << 20)], 0).outcome, outcome::DONE);
        let mut there = vec![0; half];
        driver.target.read_exact_at(&mut there, 0).unwrap();
        assert!(there == mark, "round {round}");
        driver.enable(0);
    }
    assert!(is_cut_short, "all descriptors completed before each stop");
}

#[test]
fn interrupts_follow_completions() {
    let host = Host::start();
    let mut driver = host.driver();
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    driver.client.set_irq_events(MSIX_IRQ, 0, &[event.as_fd()]).unwrap();
    let count = || {
        let mut count = [0; 8];
        match rustix::io::read(&event, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(error) => panic!("{error}"),
        }
    };
    works(&mut driver);
    // A stopped device raises no more interrupts.
    driver.write(register::CONTROL, 0);
    assert_eq!(count(), 0, "interrupts are not enabled");
    driver.enable(control::INTERRUPT);
    for _ in 0..3 {
        driver.submit(opcode::CRC32C, &[(SOURCE, 100)], 0);
    }
    driver.ring();
    for _ in 0..3 {
        driver.completion();
    }
    driver.write(register::CONTROL, 0);
    assert_eq!(count(), 3);
}

#[test]
fn unmapped_memory_is_not_accessed_and_remapped_memory_is() {
    let host = Host::start();
    let mut driver = host.driver();
    let (first, second) = (piece(), piece());
    first.write_all_at(&vec![0x11; PIECE_BYTES as usize], 0).unwrap();
    second.write_all_at(&vec![0x22; PIECE_BYTES as usize], 0).unwrap();
    driver.client.dma_unmap(SOURCE, PIECE_BYTES).unwrap();
    let (mut done, mut unmapped) = (0, 0);
    let (count, half) = (ENTRIES.into(), PIECE_BYTES / 2);
    for round in 0..100 {
        let (memory, byte) = if round % 2 == 0 { (&first, 0x11) } else { (&second, 0x22) };
        driver.client.dma_map(SOURCE, PIECE_BYTES, Some((memory.as_fd(), 0)), true).unwrap();
        // Copies from the memory and to it take turns. They are long, so that the unmap interrupts one.
        for index in 0..count {
            let (from, to) = if index % 2 == 0 { (SOURCE, TARGET) } else { (TARGET, SOURCE) };
            driver.submit(opcode::COPY, &[(from, half)], to + half);
        }
        driver.ring();
        // Each round is interrupted after another number of descriptors.
        let early = round % count;
        let mut outcomes: Vec<_> = (0..early).map(|_| driver.completion().outcome).collect();
        driver.client.dma_unmap(SOURCE, PIECE_BYTES).unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == outcome::DONE));
        // From here on the device must not write to it.
        let mark = vec![byte; PIECE_BYTES as usize];
        memory.write_all_at(&mark, 0).unwrap();
        outcomes.extend((early..count).map(|_| driver.completion().outcome));
        let count_of =
            |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count() as u64;
        assert_eq!(count_of(outcome::DONE) + count_of(outcome::UNMAPPED), count, "{outcomes:?}");
        done += count_of(outcome::DONE);
        unmapped += count_of(outcome::UNMAPPED);
        // A descriptor that is submitted now fails, and the memory is unchanged.
        let late = driver.run(opcode::COPY, &[(SOURCE, 8)], TARGET);
        assert_eq!((late.outcome, late.fault), (outcome::UNMAPPED, SOURCE));
        let mut there = vec![0; PIECE_BYTES as usize];
        memory.read_exact_at(&mut there, 0).unwrap();
        assert!(there == mark, "round {round}: written after it was unmapped");
        // The copied bytes are from the memory of this round.
        if outcomes[0] == outcome::DONE {
            driver.target.read_exact_at(&mut there, 0).unwrap();
            assert!(there[half as usize..] == mark[half as usize..], "round {round}: other memory");
        }
    }
    assert_eq!(done + unmapped, 100 * count);
    assert!(unmapped > 0, "no round was interrupted");
    let counts = host.counts.snapshot();
    assert_eq!((counts.done, counts.failed), (done, unmapped + 100));
}

/// Memory without a descriptor, which the client reads for the server. Each byte is computed from its
/// address.
struct Spoken;

impl DmaMemory for Spoken {
    fn read(&mut self, iova: u64, into: &mut [u8]) -> Result<(), Errno> {
        for (at, byte) in (iova..).zip(into) {
            *byte = at as u8 ^ 0x5a;
        }
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
}

const SPOKEN: u64 = 0x2_0000_0000;

#[test]
fn memory_without_a_file_descriptor_is_accessed_by_messages() {
    let host = Host::start();
    let mut driver = Driver::over(UnixStream::connect(&host.path).unwrap(), Spoken);
    driver.client.dma_map(SPOKEN, PIECE_BYTES, None, true).unwrap();
    let asks = [(SPOKEN + 1, TARGET, outcome::DONE), (SOURCE, SPOKEN + 9, outcome::NOT_PERMITTED)];
    for (from, to, outcome) in asks {
        driver.submit(opcode::COPY, &[(from, 100_000)], to);
        driver.ring();
        let completion = loop {
            driver.client.serve_memory(Duration::from_millis(1)).unwrap();
            if let Some(completion) = driver.look() {
                break completion;
            }
        };
        assert_eq!(completion.outcome, outcome, "{completion:x?}");
    }
    let mut there = vec![0; 100_000];
    driver.target.read_exact_at(&mut there, 0).unwrap();
    assert!((SPOKEN + 1..).zip(there).all(|(at, byte)| byte == at as u8 ^ 0x5a));
    driver.submit(opcode::CRC32C, &[(SPOKEN, 1 << 20)], 0);
    driver.ring();
    driver.client.reset().unwrap();
    assert_eq!(driver.read(register::STATUS), status::OFF);
    driver.client.serve_memory(Duration::from_millis(1)).unwrap();
    driver.set_bus_master(true);
    driver.enable(0);
    works(&mut driver);
}

#[test]
fn a_reset_gets_a_reply_while_the_device_waits_for_the_client() {
    let host = Host::start();
    let stream = UnixStream::connect(&host.path).unwrap();
    let mut socket = stream.try_clone().unwrap();
    let mut driver = Driver::over(stream, NoDmaMemory);
    driver.client.dma_map(SPOKEN, PIECE_BYTES, None, true).unwrap();
    driver.submit(opcode::CRC32C, &[(SPOKEN, 100)], 0);
    // The write of the doorbell asks for no reply, because the client would serve the device's requests
    // while it waits for one. From here on the test only reads messages.
    let data = &1_u32.to_le_bytes();
    let ring =
        Request::RegionWrite { offset: register::DOORBELL, region: BAR0_REGION, data }.encode();
    let header = MessageHeader::command_without_reply(0x6666, Command::RegionWrite, ring.len());
    driver.client.send(&[&header.encode()[..], &ring].concat(), &[]).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut next = || {
        let mut header = [0; HEADER_LEN_BYTES];
        socket.read_exact(&mut header).expect("a message");
        let header = MessageHeader::decode(header);
        let mut payload = vec![0; header.len_bytes as usize - HEADER_LEN_BYTES];
        socket.read_exact(&mut payload).expect("the rest of it");
        header.command
    };
    assert_eq!(next(), Command::DmaRead.number());
    let reset = MessageHeader::command(0x7777, Command::DeviceReset, 0);
    driver.client.send(&reset.encode(), &[]).unwrap();
    assert_eq!(next(), Command::DeviceReset.number());
    drop(driver);
    drop(socket);
    let counts = host.counts.clone();
    assert_eq!(host.stop().len(), 1);
    let counts = counts.snapshot();
    assert_eq!((counts.done, counts.failed, counts.resets), (0, 0, 1));
}

#[test]
fn the_device_is_as_new_for_the_next_client_after_one_dies() {
    let host = Host::start();
    for round in 0..10 {
        let mut driver = Driver::over(UnixStream::connect(&host.path).unwrap(), NoDmaMemory);
        assert_eq!(driver.read(register::DONE), 0);
        works(&mut driver);
        // The client dies while the device works, or waits for the client.
        driver.client.dma_map(SPOKEN, PIECE_BYTES, None, true).unwrap();
        for _ in 1..ENTRIES {
            let from = if round % 2 == 0 { SOURCE } else { SPOKEN };
            driver.submit(opcode::COPY, &[(from, PIECE_BYTES)], TARGET);
        }
        driver.ring();
    }
    let mut client = host.driver().client;
    let mut command = [0; 2];
    client.region_read(7, 4, &mut command).unwrap();
    assert_eq!(command, [0b110, 0]);
    drop(client);
    wait_until("all maps are gone", || {
        let counts = host.counts.snapshot();
        counts.maps == counts.unmaps
    });
    let counts = host.counts.snapshot();
    assert_eq!((counts.clients, counts.maps, counts.ring_faults), (11, 10 * 4 + 3, 0));
    let all = host.stop();
    assert_eq!(all.len(), 11);
    assert!(all.iter().all(|served| (served.refused_count, served.maps_left_count) == (0, 0)));
}
