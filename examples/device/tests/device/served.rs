//! The device, served to a driver in this process.

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

/// Bytes of which no two stretches are alike.
fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Copies some bytes, and looks whether they arrived.
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
    // With holes between the parts, which are longer and shorter than what is moved at once.
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

    // The value that every description of it gives.
    driver.source.write_all_at(b"123456789", 0).unwrap();
    let crc = driver.run(opcode::CRC32C, &[(SOURCE, 4), (SOURCE + 4, 5)], 0);
    assert_eq!((crc.value, crc.done_bytes), (0xe306_9283, 9));
    assert_eq!(driver.run(opcode::CRC32C, &[], 0).value, 0);
    assert_eq!(driver.read(register::DONE), 4);
    drop(driver);
    assert_eq!(host.stop()[0].refused_count, 0);
}

#[test]
fn a_bad_descriptor_fails_and_the_next_one_is_done() {
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
    // Memory that the device may only read.
    driver.client.dma_unmap(TARGET, PIECE_BYTES).unwrap();
    driver.client.dma_map(TARGET, PIECE_BYTES, Some((driver.target.as_fd(), 0)), false).unwrap();
    let found = driver.run(opcode::COPY, &[(SOURCE, 8)], TARGET);
    assert_eq!((found.outcome, found.fault), (outcome::NOT_PERMITTED, TARGET));
    // Lists that are too long, or nowhere. One of zeros lists nothing.
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
fn bad_registers_and_rings_out_of_reach_stop_it() {
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
    // More than there is room for.
    driver.enable(0);
    driver.write(register::DOORBELL, ENTRIES + 1);
    assert_eq!(driver.read(register::STATUS), status::BAD_REGISTERS);
    // A ring that is nowhere, and one whose completions are: those are 4 KiB behind descriptors.
    for at in [0x7000_0000, RINGS + PIECE_BYTES - 0x1000] {
        driver.enable_at(at, 8, 0);
        assert_eq!(driver.read(register::STATUS), status::RUNNING);
        driver.write(register::DOORBELL, 1);
        wait_until("a fault", || driver.read(register::STATUS) == status::RING_FAULT);
    }
    driver.enable(0);
    works(&mut driver);
    assert_eq!(host.counts.snapshot().ring_faults, 2);
    // Accesses that are no whole words have no effect, and what is behind the registers is zero.
    driver.client.region_write(0, register::CONTROL, &[0]).unwrap();
    driver.client.region_write(0, register::CONTROL + 2, &[0; 4]).unwrap();
    driver.client.region_write(0, 0x3ffc, &[0xff; 4]).unwrap();
    assert_eq!((driver.read(register::STATUS), driver.read(0x3ffc)), (status::RUNNING, 0));
}

#[test]
fn it_works_only_as_master_of_the_bus() {
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
fn what_stops_it_leaves_memory_alone() {
    let host = Host::start();
    let mut driver = host.driver();
    let half = PIECE_BYTES as usize / 2;
    driver.source.write_all_at(&vec![0x11; half], 0).unwrap();
    // Copies that take longer than a turn of the processor: the target is there eight times.
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
        // By the time that this is done, whatever went on would be over.
        assert_eq!(driver.run(opcode::CRC32C, &[(SOURCE, 1 << 20)], 0).outcome, outcome::DONE);
        let mut there = vec![0; half];
        driver.target.read_exact_at(&mut there, 0).unwrap();
        assert!(there == mark, "round {round}");
        driver.enable(0);
    }
    assert!(is_cut_short, "it was always done before it was stopped");
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
    // It is over, interrupt and all, when it is stopped.
    driver.write(register::CONTROL, 0);
    assert_eq!(count(), 0, "nobody asked for interrupts");
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
fn what_is_unmapped_is_left_alone_and_what_is_remapped_is_found() {
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
        // By turns out of it and into it, for long enough to be met in the midst of it.
        for index in 0..count {
            let (from, to) = if index % 2 == 0 { (SOURCE, TARGET) } else { (TARGET, SOURCE) };
            driver.submit(opcode::COPY, &[(from, half)], to + half);
        }
        driver.ring();
        // Rounds are cut short, at different places.
        let early = round % count;
        let mut outcomes: Vec<_> = (0..early).map(|_| driver.completion().outcome).collect();
        driver.client.dma_unmap(SOURCE, PIECE_BYTES).unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == outcome::DONE));
        // From here on nobody writes there.
        let mark = vec![byte; PIECE_BYTES as usize];
        memory.write_all_at(&mark, 0).unwrap();
        outcomes.extend((early..count).map(|_| driver.completion().outcome));
        let count_of =
            |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count() as u64;
        assert_eq!(count_of(outcome::DONE) + count_of(outcome::UNMAPPED), count, "{outcomes:?}");
        done += count_of(outcome::DONE);
        unmapped += count_of(outcome::UNMAPPED);
        // One that is submitted now finds nothing, and the memory is as it was left.
        let late = driver.run(opcode::COPY, &[(SOURCE, 8)], TARGET);
        assert_eq!((late.outcome, late.fault), (outcome::UNMAPPED, SOURCE));
        let mut there = vec![0; PIECE_BYTES as usize];
        memory.read_exact_at(&mut there, 0).unwrap();
        assert!(there == mark, "round {round}: written after it was unmapped");
        // What was copied out is of this round's memory.
        if outcomes[0] == outcome::DONE {
            driver.target.read_exact_at(&mut there, 0).unwrap();
            assert!(there[half as usize..] == mark[half as usize..], "round {round}: another's");
        }
    }
    assert_eq!(done + unmapped, 100 * count);
    assert!(unmapped > 0, "no round was cut short");
    let counts = host.counts.snapshot();
    assert_eq!((counts.done, counts.failed), (done, unmapped + 100));
}

/// Memory that a client reads out by messages: each byte follows from its address.
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
fn memory_without_a_descriptor_is_asked_for() {
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
fn a_reset_is_answered_while_the_device_waits_for_the_client() {
    let host = Host::start();
    let stream = UnixStream::connect(&host.path).unwrap();
    let mut socket = stream.try_clone().unwrap();
    let mut driver = Driver::over(stream, NoDmaMemory);
    driver.client.dma_map(SPOKEN, PIECE_BYTES, None, true).unwrap();
    driver.submit(opcode::CRC32C, &[(SPOKEN, 100)], 0);
    // It waits for no answer, as it would answer what it is asked meanwhile: what comes from here on
    // is only looked at.
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
fn clients_die_and_the_next_one_finds_it_as_new() {
    let host = Host::start();
    for round in 0..10 {
        let mut driver = Driver::over(UnixStream::connect(&host.path).unwrap(), NoDmaMemory);
        assert_eq!(driver.read(register::DONE), 0);
        works(&mut driver);
        // It dies in the midst of work, and of being asked.
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
