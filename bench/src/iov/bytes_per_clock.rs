//! Copies, checksums and digests by size, in bytes per cycle of the core.

use std::cell::RefCell;
use std::hint::black_box;
use std::io::IoSlice;

use anyhow::Result;
use longshore_iov::checksum::Checksum;
use longshore_iov::copy::Engine;
use longshore_iov::crc32c::Crc32c;
use longshore_iov::{Cursor, SegmentSource, Sink, Source, kinds::OwnVec};
use longshore_mem::isa::{Isa, IsaToken};

use super::published;
use super::timed::{Repeat, Unit};
use crate::harness::metric::BYTES_PER_CLOCK;
use crate::harness::{Against, Candidate, CommonOptions, Session};

/// The name of each size, and the bytes of one buffer. A copy has two buffers, and both fit in the named
/// cache.
const SIZES: [(&str, usize); 6] = [
    ("1500 B", 1500),
    ("4 KiB", 4096),
    ("L1", 12 << 10),
    ("L2", 256 << 10),
    ("L3", 4 << 20),
    ("DRAM", 256 << 20),
];
const QUICK_BYTES_MAX: usize = 1 << 20;

const MEMCPY: &str = "memcpy";
/// The offset of the target in its page, relative to the source: half a page. With equal offsets, a load
/// waits for an earlier store whose address has the same low bits (4K aliasing), and the bench would
/// measure mainly that.
pub(super) const TARGET_SKEW: usize = 2048;

type Candidates<'a> = Vec<Candidate<'a>>;
type Target<'a> = &'a RefCell<&'a mut [u8]>;

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    for (size, bytes) in SIZES {
        let bytes = if options.quick { bytes.min(QUICK_BYTES_MAX) } else { bytes };
        let source: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(167) >> 3) as u8).collect();
        let mut target = vec![0u8; TARGET_SKEW + bytes];
        let repeat = Repeat::new(options, Unit::BytesPerClock(bytes));
        type Build = for<'a> fn(&'a [u8], Target<'a>, Repeat) -> Candidates<'a>;
        let cases: [(&str, Build); 6] = [
            ("copy", copies),
            ("checksum", checksums),
            ("copy+checksum", checksummed_copies),
            ("crc32c", crcs),
            ("copy+crc32c", crc_copies),
            ("is zero", zero_scans),
        ];
        for (name, build) in cases {
            let case = format!("{name}, {size}");
            if !options.wants(&case) {
                continue;
            }
            // All candidates share one target, so that they use the same memory.
            let target = RefCell::new(&mut target[TARGET_SKEW..TARGET_SKEW + bytes]);
            let measured = session.run(&case, build(&source, &target, repeat));
            let against = [Against::new(BYTES_PER_CLOCK, MEMCPY)];
            let mut rows = measured.rows(&against);
            rows.extend(published::bounds(&case)?);
            session.publish(rows)?;
        }
    }
    Ok(())
}

/// Returns one of our candidates for each instruction set of the machine; the best has the project's
/// name.
fn engines<'a, F: FnMut() + 'a>(
    repeat: Repeat,
    work: impl Fn(Engine) -> F,
) -> impl Iterator<Item = Candidate<'a>> {
    let best = Engine::active().isa();
    Isa::ALL.into_iter().rev().filter_map(move |isa| {
        let engine = Engine::with(isa)?;
        let name = if isa == best { "longshore".to_owned() } else { format!("longshore, {isa}") };
        Some(repeat.of(name, work(engine)).ours())
    })
}

fn memcpy<'a>(source: &'a [u8], target: Target<'a>, repeat: Repeat) -> Candidate<'a> {
    repeat.of(MEMCPY, move || {
        black_box(&mut **target.borrow_mut()).copy_from_slice(black_box(source));
    })
}

/// Returns a candidate that copies, and then computes a digest with another crate.
fn memcpy_then<'a, R>(
    name: &str,
    source: &'a [u8],
    target: Target<'a>,
    repeat: Repeat,
    then: impl Fn(&[u8]) -> R + 'a,
) -> Candidate<'a> {
    repeat.of(format!("memcpy, then {name}"), move || {
        let mut target = target.borrow_mut();
        target.copy_from_slice(black_box(source));
        black_box(then(black_box(&target)));
    })
}

fn copies<'a>(source: &'a [u8], target: Target<'a>, repeat: Repeat) -> Candidates<'a> {
    let ours = |engine: Engine| {
        move || {
            let slices = [IoSlice::new(source)];
            let mut cursor = Cursor::from_kind(OwnVec::<Source>::new(&slices), source.len());
            engine
                .read(&mut cursor, black_box(&mut target.borrow_mut()))
                .expect("own memory does not fault");
        }
    };
    let mut candidates = vec![memcpy(source, target, repeat)];
    candidates.extend(engines(repeat, ours));
    candidates.push(repeat.of("bytes", move || {
        use bytes::Buf;
        let mut buffer = black_box(source);
        buffer.copy_to_slice(black_box(&mut target.borrow_mut()));
    }));
    candidates.push(repeat.of("vm-memory", move || {
        use vm_memory::VolatileMemory;
        // A view of the target, like one of a guest's memory.
        let mut target = target.borrow_mut();
        let view = vm_memory::VolatileSlice::from(&mut **target);
        view.as_volatile_slice().copy_from(black_box(source));
    }));
    candidates
}

/// Returns candidates that compute a digest, one for each instruction set.
fn digests<'a, D: Sink + Default, R>(
    source: &'a [u8],
    repeat: Repeat,
    finish: impl Fn(D) -> R + Copy + 'a,
) -> Candidates<'a> {
    let ours = |engine: Engine| {
        move || {
            let mut digest = D::default();
            engine.update(black_box(source), &mut digest);
            black_box(finish(digest));
        }
    };
    engines(repeat, ours).collect()
}

/// Returns candidates that compute a digest while they copy, one for each instruction set, and a copy
/// alone.
fn digested_copies<'a, D: Sink + Default, R>(
    source: &'a [u8],
    target: Target<'a>,
    repeat: Repeat,
    finish: impl Fn(D) -> R + Copy + 'a,
) -> Candidates<'a> {
    let ours = |engine: Engine| {
        move || {
            let slices = [IoSlice::new(source)];
            let mut cursor = Cursor::from_kind(OwnVec::<Source>::new(&slices), source.len());
            let mut digest = D::default();
            let mut into = target.borrow_mut();
            let done = engine.read_into(&mut cursor, black_box(&mut into), &mut digest);
            black_box((done.is_ok(), finish(digest)));
        }
    };
    let mut candidates = vec![memcpy(source, target, repeat)];
    candidates.extend(engines(repeat, ours));
    candidates
}

fn checksums<'a>(source: &'a [u8], _: Target<'a>, repeat: Repeat) -> Candidates<'a> {
    let mut candidates = digests(source, repeat, Checksum::finish);
    candidates.push(repeat.of("internet-checksum", move || {
        black_box(internet_checksum::checksum(black_box(source)));
    }));
    // The crate exports its checksum only as that of a packet, here one with a header of eight bytes.
    let mut packet = source[..source.len().min(60_000)].to_vec();
    let of_packet = Repeat { unit: Unit::BytesPerClock(packet.len()), ..repeat };
    candidates.push(of_packet.of("smoltcp", move || {
        let mut packet = smoltcp::wire::Icmpv4Packet::new_unchecked(black_box(&mut packet[..]));
        packet.fill_checksum();
    }));
    candidates
}

fn checksummed_copies<'a>(source: &'a [u8], target: Target<'a>, repeat: Repeat) -> Candidates<'a> {
    let theirs = internet_checksum::checksum;
    let mut candidates = digested_copies(source, target, repeat, Checksum::finish);
    candidates.push(memcpy_then("internet-checksum", source, target, repeat, theirs));
    candidates
}

fn crcs<'a>(source: &'a [u8], _: Target<'a>, repeat: Repeat) -> Candidates<'a> {
    let mut candidates = digests(source, repeat, Crc32c::finish);
    candidates.push(repeat.of("crc-fast", move || {
        black_box(crc_fast_crc32c(black_box(source)));
    }));
    candidates.push(repeat.of("crc32c", move || {
        black_box(crc32c::crc32c(black_box(source)));
    }));
    candidates
}

fn crc_fast_crc32c(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes)
}

fn crc_copies<'a>(source: &'a [u8], target: Target<'a>, repeat: Repeat) -> Candidates<'a> {
    let mut candidates = digested_copies(source, target, repeat, Crc32c::finish);
    candidates.push(memcpy_then("crc-fast", source, target, repeat, crc_fast_crc32c));
    candidates
}

/// The check for zeros of a block driver, as a step outside the library (see the example `is_zero`).
fn zero_scans<'a>(source: &'a [u8], target: Target<'a>, repeat: Repeat) -> Candidates<'a> {
    target.borrow_mut().fill(0);
    #[inline(always)]
    fn is_zero(bytes: &[u8]) -> bool {
        bytes.iter().fold(0, |ored, byte| ored | byte) == 0
    }
    #[inline(always)]
    fn zeros(bytes: &[u8]) -> bool {
        let (runs, rest) = bytes.as_chunks::<256>();
        runs.iter().all(|run| is_zero(run)) && is_zero(rest)
    }
    let token = IsaToken::active();
    let ours = repeat.of("longshore", move || {
        let target = target.borrow();
        let slices = [IoSlice::new(black_box(&target))];
        let mut cursor = Cursor::from_kind(OwnVec::<Source>::new(&slices), source.len());
        let step = |bytes: &[u8], _| if zeros(bytes) { 0 } else { bytes.len() };
        let walked = token.vectorize(|| cursor.iterate_own_vec(source.len(), step));
        black_box((walked, cursor.remaining()));
    });
    let bare = repeat.of("bare loop", move || {
        let target = target.borrow();
        black_box(token.vectorize(|| zeros(black_box(&target))));
    });
    vec![ours.ours(), bare]
}
