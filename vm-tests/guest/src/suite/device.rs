//! `examples/device`, which the host serves over vfio-user, executes its driver's commands.

mod driver;

use std::{os::unix::fs::FileExt, time::Duration};

use longshore_device_example::layout::{
    DESCRIPTOR_BYTES_MAX, Descriptor, MSIX_TABLE, SEGMENTS_MAX, control, opcode, outcome, register,
    status,
};
use longshore_vm_tests::pattern;

use self::driver::{BUFFERS, Driver, ENTRIES, PAGE_BYTES, Part, Result};
use super::{Suite, Test};
use crate::outcome::{Passed, TestResult, ensure};

pub(super) const SUITE: Suite = Suite {
    name: "device",
    tests: &[
        Test { name: "copies_arrive", run: copies_arrive },
        Test { name: "sums_are_right", run: sums_are_right },
        Test { name: "bad_descriptors_fail_and_the_device_goes_on", run: bad_descriptors_fail },
        Test { name: "memory_without_a_descriptor_is_reached", run: memory_without_a_descriptor },
        Test { name: "the_rings_wrap", run: the_rings_wrap },
        Test { name: "interrupts_arrive", run: interrupts_arrive },
        Test { name: "it_needs_to_be_bus_master", run: it_needs_to_be_bus_master },
    ],
};

/// The target of copies.
const TARGET: u64 = PAGE_BYTES / 2;
/// The content of the target before a copy.
const UNTOUCHED: u8 = 0xa5;
/// An address without memory.
const NOWHERE: u64 = 1 << 40;
/// The firmware's copy of itself, which it has write-protected.
const LOCKED: u64 = 0xf_0000;
/// The first instruction, in the ROM: a jump to `f000:e05b`.
const RESET_VECTOR: u64 = 0xffff_fff0;
const JUMP: [u8; 5] = [0xea, 0x5b, 0xe0, 0x00, 0xf0];

fn copies_arrive() -> TestResult {
    let mut driver = Driver::new()?;
    ensure!(driver::is_ours(&driver), "the device has another identity");
    let lists: &[&[u64]] =
        &[&[1], &[4096], &[3, 5, 7], &[70_000, 1, 0, 65_535], &[300_000, 100_000]];
    for (seed, lens) in (1..).zip(lists) {
        copy(&mut driver, seed, lens)?;
    }
    Ok(Passed::Yes)
}

/// Copies scattered parts of these lengths, and checks the target and the bytes after it.
fn copy(driver: &mut Driver, seed: u64, lens: &[u64]) -> Result<()> {
    let (list, content) = scattered(driver, seed, lens)?;
    let end = content.len();
    let mut there = vec![UNTOUCHED; end + 64];
    driver.memory.view_mut().write(TARGET as usize, &there)?;
    let target = driver.iova(TARGET);
    let completion = driver.run(opcode::COPY, &list, target)?;
    ensure!(completion.outcome == outcome::DONE, "{completion:?}");
    ensure!(completion.done_bytes as usize == end, "{completion:?} of {end} bytes");
    driver.memory.view().read(TARGET as usize, &mut there)?;
    ensure!(there[..end] == content, "{lens:?}: the copy differs from the source");
    ensure!(there[end..].iter().all(|byte| *byte == UNTOUCHED), "{lens:?}: more was written");
    Ok(())
}

/// Returns a scatter list of parts of these lengths with a hole after each, and the content of all
/// parts.
fn scattered(driver: &mut Driver, seed: u64, lens: &[u64]) -> Result<(Vec<Part>, Vec<u8>)> {
    let (mut list, mut content) = (Vec::new(), Vec::new());
    let mut at = BUFFERS + 1;
    for len in lens {
        let mut part = vec![0; *len as usize];
        pattern::fill(seed, content.len() as u64, &mut part);
        driver.memory.view_mut().write(at as usize, &part)?;
        list.push((driver.iova(at), *len));
        content.extend(part);
        at += len + 333;
    }
    Ok((list, content))
}

fn sums_are_right() -> TestResult {
    let mut driver = Driver::new()?;
    // The published check value, from four parts.
    driver.memory.view_mut().write(BUFFERS as usize, b"123456789")?;
    let parts = [(0, 2), (2, 3), (5, 0), (5, 4)].map(|(at, len)| (driver.iova(BUFFERS + at), len));
    let completion = driver.run(opcode::CRC32C, &parts, 0)?;
    ensure!(completion.value == 0xe306_9283, "CRC-32C: {completion:x?}");
    for (seed, lens) in (11..).zip([&[0][..], &[1], &[3, 1, 2], &[70_001, 9, 3000]]) {
        let (list, content) = scattered(&mut driver, seed, lens)?;
        let sum = driver.run(opcode::CHECKSUM, &list, 0)?;
        ensure!(sum.outcome == outcome::DONE, "{sum:?}");
        ensure!(sum.value == naive_checksum(&content), "{lens:?}: checksum {:#x}", sum.value);
        let crc = driver.run(opcode::CRC32C, &list, 0)?;
        ensure!(crc.value == naive_crc32c(&content), "{lens:?}: CRC {:#x}", crc.value);
    }
    Ok(Passed::Yes)
}

/// Computes the checksum as RFC 1071 describes it.
fn naive_checksum(bytes: &[u8]) -> u32 {
    let pair = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    let mut sum: u64 = bytes.chunks(2).map(pair).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u32::from(!(sum as u16))
}

fn naive_crc32c(bytes: &[u8]) -> u32 {
    let mut register = !0_u32;
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !register
}

/// A descriptor that must fail, and the expected failure.
#[derive(Debug)]
struct Case {
    opcode: u32,
    list: Vec<Part>,
    target: u64,
    outcome: u32,
    fault: u64,
}

fn bad_descriptors_fail() -> TestResult {
    let mut driver = Driver::new()?;
    let (good, target) = (driver.iova(BUFFERS), driver.iova(TARGET));
    let huge = DESCRIPTOR_BYTES_MAX + 1;
    let (copy_it, sum_it) = (opcode::COPY, opcode::CHECKSUM);
    let (good_part, lost_part) = ((good, 8), (NOWHERE, 8));
    let case = |opcode, list: &[Part], target, outcome, fault| Case {
        opcode,
        list: list.to_vec(),
        target,
        outcome,
        fault,
    };
    let cases = [
        case(0, &[good_part], target, outcome::UNKNOWN_OPCODE, 0),
        case(4, &[good_part], target, outcome::UNKNOWN_OPCODE, 0),
        case(copy_it, &[(good, huge)], target, outcome::TOO_LONG, 0),
        case(copy_it, &[(u64::MAX, 2)], target, outcome::TOO_LONG, 0),
        case(sum_it, &[good_part, lost_part], 0, outcome::UNMAPPED, NOWHERE),
        case(copy_it, &[good_part], NOWHERE, outcome::UNMAPPED, NOWHERE),
        case(copy_it, &[good_part], LOCKED, outcome::NOT_PERMITTED, LOCKED),
    ];
    for round in 0..3 {
        for case in &cases {
            let completion = driver.run(case.opcode, &case.list, case.target)?;
            let found = (completion.outcome, completion.fault);
            ensure!(found == (case.outcome, case.fault), "{case:x?}: {completion:x?}");
        }
        for (segments, list, expected) in
            [(1, NOWHERE, outcome::UNMAPPED), (SEGMENTS_MAX + 1, good, outcome::TOO_LONG)]
        {
            let opcode = opcode::COPY;
            driver.submit_raw(Descriptor { opcode, segments, list, target, cookie: 7 })?;
            driver.ring();
            let completion = driver.completion()?;
            let found = (completion.outcome, completion.cookie);
            ensure!(found == (expected, 7), "{completion:x?}");
        }
        copy(&mut driver, 100 + round, &[5000, 77])?;
    }
    // A doorbell value beyond the ring stops the device, and it can be enabled again.
    driver.write(register::DOORBELL, 10_000);
    let found = driver.read(register::STATUS);
    ensure!(found == status::BAD_REGISTERS, "its status is {found}");
    driver.enable(0)?;
    copy(&mut driver, 200, &[123])?;
    Ok(Passed::Yes)
}

/// Reads the firmware's ROM, which QEMU makes accessible only by messages.
fn memory_without_a_descriptor() -> TestResult {
    let mut driver = Driver::new()?;
    let target = driver.iova(TARGET);
    let completion = driver.run(opcode::COPY, &[(RESET_VECTOR, 16)], target)?;
    ensure!(completion.outcome == outcome::DONE, "{completion:x?}");
    let mut there = [0; 5];
    driver.memory.view().read(TARGET as usize, &mut there)?;
    ensure!(there == JUMP, "the firmware begins with {there:x?}");
    let source = driver.iova(BUFFERS);
    let completion = driver.run(opcode::COPY, &[(source, 16)], RESET_VECTOR)?;
    ensure!(completion.outcome == outcome::NOT_PERMITTED, "{completion:x?}");
    copy(&mut driver, 300, &[123])?;
    Ok(Passed::Yes)
}

fn the_rings_wrap() -> TestResult {
    let mut driver = Driver::new()?;
    let mut content = [0; 64];
    for batch in 0..100_u64 {
        let count = batch % u64::from(ENTRIES) + 1;
        for index in 0..count {
            pattern::fill(batch, index * 64, &mut content);
            let (from, to) = (BUFFERS + index * 64, TARGET + index * 64);
            driver.memory.view_mut().write(from as usize, &content)?;
            let (from, to) = (driver.iova(from), driver.iova(to));
            driver.submit(opcode::COPY, &[(from, 64)], to)?;
        }
        driver.ring();
        for index in 0..count {
            let completion = driver.completion()?;
            ensure!(completion.outcome == outcome::DONE, "batch {batch}: {completion:x?}");
            driver.memory.view().read((TARGET + index * 64) as usize, &mut content)?;
            let difference = pattern::first_difference(batch, index * 64, &content);
            ensure!(difference.is_none(), "batch {batch}, copy {index}: at {difference:?}");
        }
    }
    Ok(Passed::Yes)
}

/// An MSI-X message is a write to memory; here it goes to memory of this test.
fn interrupts_arrive() -> TestResult {
    const MESSAGE_AT: u64 = 0;
    let mut driver = Driver::new()?;
    let table = u64::from(MSIX_TABLE);
    let address = driver.iova(MESSAGE_AT);
    for (at, value) in [(0, address as u32), (4, (address >> 32) as u32), (8, 0xcafe), (12, 0)] {
        driver.write(table + at, value);
    }
    let control_at = msix_control(&driver)?;
    let mut word = [0; 2];
    driver.config().read_exact_at(&mut word, control_at)?;
    let enabled = u16::from_le_bytes(word) | 1 << 15;
    driver.config().write_all_at(&enabled.to_le_bytes(), control_at)?;
    driver.enable(control::INTERRUPT)?;
    let mut seen = [0; 4];
    for round in 0..5 {
        driver.memory.view_mut().zero(MESSAGE_AT as usize, 4)?;
        copy(&mut driver, 400 + round, &[100])?;
        for _ in 0..2000 {
            driver.memory.view().read(MESSAGE_AT as usize, &mut seen)?;
            if seen != [0; 4] {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        ensure!(u32::from_le_bytes(seen) == 0xcafe, "interrupt {round}: {seen:x?}");
    }
    driver.config().write_all_at(&word, control_at)?;
    Ok(Passed::Yes)
}

/// Returns the offset in the configuration space of MSI-X's control word.
fn msix_control(driver: &Driver) -> Result<u64> {
    const FIRST: u64 = 0x34;
    const MSIX: u8 = 0x11;
    let mut capability = [0; 2];
    driver.config().read_exact_at(&mut capability[1..], FIRST)?;
    while capability[1] != 0 {
        let at = u64::from(capability[1]);
        driver.config().read_exact_at(&mut capability, at)?;
        if capability[0] == MSIX {
            return Ok(at + 2);
        }
    }
    Err("it has no MSI-X".into())
}

fn it_needs_to_be_bus_master() -> TestResult {
    let mut driver = Driver::new()?;
    driver.set_bus_master(false)?;
    let found = driver.read(register::STATUS);
    ensure!(found == status::OFF, "it continues with status {found}");
    ensure!(driver.enable(0).is_err(), "it was enabled");
    driver.set_bus_master(true)?;
    driver.enable(0)?;
    copy(&mut driver, 500, &[123])?;
    Ok(Passed::Yes)
}
