//! Sequences of operations on a domain and on a simple model, which predicts the content of memory, the
//! results of device accesses, and the errors. At the end nothing is held.
//!
//! Bytes that the CPU writes are 0x80 and above, bytes that a device writes are below, and each memory
//! has other bytes. So a byte in the wrong place is detected.
#![cfg(not(any(loom, miri)))]

mod backend;
mod books;
mod device;
mod memory;
mod ops;
mod oracle;
mod world;

use std::time::Duration;

use longshore_domain::{Bounce, Direction, Domain, WhenFull};
use proptest::prelude::*;

use self::backend::{Scripted, lock};
use self::books::Books;
use self::ops::{Op, some_bounce, some_op};
use self::oracle::Rules;
use self::world::World;

/// The configuration of a domain.
#[derive(Clone, Debug)]
struct Setting {
    bounce: Bounce,
    trusted: bool,
    denies_reads: bool,
    /// The limit of the pools, in chunks.
    chunks: Option<u64>,
    refuses: bool,
    /// The width of addresses in bits. With 24 bits there is room for 8 chunks.
    address_bits: u32,
    guard_bytes: u64,
}

fn some_setting() -> impl Strategy<Value = Setting> {
    let chunks = prop_oneof![3 => Just(None), 2 => (0..4u64).prop_map(Some)];
    let bits = prop_oneof![4 => Just(64), 1 => Just(32), 2 => Just(24)];
    let guard = prop_oneof![3 => Just(0), 1 => Just(1u64)];
    (some_bounce(), any::<[bool; 4]>(), chunks, bits, guard).prop_map(
        |(bounce, [one, other, denies_reads, refuses], chunks, address_bits, guard_bytes)| {
            Setting {
                bounce,
                trusted: one && other,
                denies_reads,
                chunks,
                refuses,
                address_bits,
                guard_bytes,
            }
        },
    )
}

/// Runs rounds of operations; between them all mappings end and all handles are dropped.
fn run(setting: &Setting, rounds: Vec<Vec<Op>>) {
    let backend = Scripted::new(setting.denies_reads);
    let script = backend.script.clone();
    let space = backend.soft.space().clone();
    let sessions = [space.session(), space.session()];
    let limit = setting.chunks.map_or(u64::MAX, |chunks| chunks << 21);
    let when_full = if setting.refuses { WhenFull::Refuse } else { WhenFull::MapDirectly };
    let mut builder = Domain::builder(backend)
        .bounce(setting.bounce)
        .pool_limit(limit, when_full)
        .address_bits(setting.address_bits)
        .guard_bytes(setting.guard_bytes)
        .free_after(None);
    if setting.trusted {
        // SAFETY: the memory around a transfer belongs to the test (`memory.rs`).
        #[allow(unsafe_code, reason = "shows the effect")]
        let trusted = unsafe { builder.trusted() };
        builder = trusted;
    }
    let domain = builder.build();
    let rules = Rules {
        bounce: setting.bounce,
        refuses: setting.refuses,
        trusted: setting.trusted,
        denies_reads: setting.denies_reads,
    };
    let mut books = Books::new(rules, sessions, script.clone(), limit, setting.address_bits);
    for ops in rounds {
        let handles = [domain.local(), domain.local()];
        let mut world = World::new(&domain, &handles, &mut books);
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.finish();
        drop(handles);
        lock(&script).relent();
        domain.shrink(Duration::ZERO).unwrap();
        books.check_rest(&domain);
    }
    drop(domain);
    books.check_end();
}

/// Two transfers of each number of granules, in adjacent slots.
#[test]
fn slots_of_each_size_match_the_model() {
    let setting = Setting {
        bounce: Bounce::Always,
        trusted: false,
        denies_reads: false,
        chunks: None,
        refuses: false,
        address_bits: 64,
        guard_bytes: 0,
    };
    for granules in 1..=64 {
        let map = |len| Op::Map {
            handle: 0,
            skip: 0,
            len,
            direction: Direction::ToDevice,
            is_reported: false,
        };
        let len = granules * memory::PAGE as usize;
        run(&setting, vec![vec![map(len - 1), map(len)]]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_domain_matches_the_model(
        setting in some_setting(),
        rounds in prop::collection::vec(
            prop::collection::vec(some_op(), 1..60), 1..4,
        ),
    ) {
        run(&setting, rounds);
    }
}
