//! Strategies for operations, which can come in any order.

use longshore_domain::{Bounce, Direction};
use proptest::prelude::*;

use crate::memory::PAGE;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Map {
        handle: usize,
        skip: usize,
        len: usize,
        direction: Direction,
        is_reported: bool,
    },
    MapAt {
        page: u64,
        skip: usize,
        pages: usize,
        direction: Direction,
    },
    Access {
        session: usize,
        at: At,
        len: usize,
        byte: Option<u8>,
    },
    SyncForCpu {
        which: usize,
        part: Part,
    },
    SyncForDevice {
        which: usize,
        part: Part,
    },
    Look {
        which: usize,
        part: Part,
    },
    Put {
        which: usize,
        part: Part,
        byte: u8,
    },
    End {
        which: usize,
        how: End,
    },
    /// The unmapping is refused if `refused` is set. `true`: the first range is unmapped anyway.
    Flush {
        handle: usize,
        refused: Option<bool>,
    },
    Lend {
        handle: usize,
        skip: usize,
        len: usize,
        direction: Direction,
        part: Part,
    },
    Coherent {
        len: u64,
    },
    CoherentPut {
        which: usize,
        at: u64,
        byte: u8,
    },
    CoherentDrop {
        which: usize,
    },
    Bounce(Bounce),
    Shrink,
    RefuseMap {
        nth: u32,
    },
    RefuseUnmap {
        nth: u32,
        partly: bool,
    },
}

/// An address, relative to a current or past mapping.
#[derive(Clone, Debug)]
pub(crate) enum At {
    /// `offset` bytes from the start of a transfer.
    Near {
        which: usize,
        offset: i64,
    },
    /// `part` thousandths of the length of a transfer from its start, and `offset` bytes more.
    Within {
        which: usize,
        part: u64,
        offset: i64,
    },
    Past {
        which: usize,
        offset: i64,
    },
    Page(u64),
}

/// A range of a transfer's bytes: in thousandths of its length, and a number of bytes more.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum End {
    Unmap,
    /// Thousandths of the length, and a number of bytes more.
    Complete(u64, u64),
    Drop,
    Defer {
        handle: usize,
    },
}

fn some_len() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0usize),
        6 => 1..300usize,
        6 => 3000..9000usize,
        6 => (1..6usize).prop_map(|pages| pages * PAGE as usize),
        2 => (6..66usize).prop_map(|pages| pages * PAGE as usize),
        2 => 10_000..262_145usize,
        4 => 262_144..290_000usize,
    ]
}

fn some_skip() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0usize), 3 => 0..PAGE as usize, 1 => Just(1usize), 1 => Just(4095usize)]
}

fn some_direction() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::ToDevice),
        Just(Direction::FromDevice),
        Just(Direction::Bidirectional)
    ]
}

pub(crate) fn some_bounce() -> impl Strategy<Value = Bounce> {
    prop_oneof![
        2 => Just(Bounce::Never),
        3 => (0..40_000u64).prop_map(Bounce::Below),
        2 => Just(Bounce::Always),
    ]
}

fn some_at() -> impl Strategy<Value = At> {
    let which = 0..64usize;
    let offset = prop_oneof![-5000..5000i64, -9..9i64, Just(0)];
    prop_oneof![
        5 => (which.clone(), offset.clone())
            .prop_map(|(which, offset)| At::Near { which, offset }),
        5 => (which.clone(), 0..=1000u64, offset.clone())
            .prop_map(|(which, part, offset)| At::Within { which, part, offset }),
        2 => (which, offset).prop_map(|(which, offset)| At::Past { which, offset }),
        1 => (0..1u64 << 40).prop_map(At::Page),
    ]
}

fn some_part() -> impl Strategy<Value = Part> {
    let start = prop_oneof![Just(0), 0..=1000u64];
    let len = prop_oneof![Just(0), 1..100u64, 4000..5000u64, Just(u64::MAX)];
    (start, len).prop_map(|(start, len)| Part { start, len })
}

pub(crate) fn some_op() -> impl Strategy<Value = Op> {
    let (which, handle, direction) = (0..64usize, 0..3usize, some_direction);
    let end = prop_oneof![
        4 => Just(End::Unmap),
        4 => (0..=1000u64, 0..3u64).prop_map(|(part, more)| End::Complete(part, more)),
        2 => Just(End::Drop),
        4 => (0..3usize).prop_map(|handle| End::Defer { handle }),
    ];
    let access_len = prop_oneof![4 => 0..64usize, 3 => 3000..9000usize, 1 => Just(300_000usize)];
    let byte = prop::option::of(0..0x80u8);
    let bytes = || (0..64usize, some_part());
    prop_oneof![
        16 => (handle.clone(), some_skip(), some_len(), direction(), any::<bool>()).prop_map(
            |(handle, skip, len, direction, is_reported)| {
                Op::Map { handle, skip, len, direction, is_reported }
            }
        ),
        2 => (0..40u64, prop_oneof![6 => Just(0usize), 1 => Just(5usize)], 0..6usize, direction())
            .prop_map(|(page, skip, pages, direction)| Op::MapAt { page, skip, pages, direction }),
        24 => (0..2usize, some_at(), access_len, byte)
            .prop_map(|(session, at, len, byte)| Op::Access { session, at, len, byte }),
        4 => bytes().prop_map(|(which, part)| Op::SyncForCpu { which, part }),
        4 => bytes().prop_map(|(which, part)| Op::SyncForDevice { which, part }),
        2 => bytes().prop_map(|(which, part)| Op::Look { which, part }),
        4 => (bytes(), any::<u8>())
            .prop_map(|((which, part), byte)| Op::Put { which, part, byte: byte | 0x80 }),
        14 => (which.clone(), end).prop_map(|(which, how)| Op::End { which, how }),
        6 => (handle.clone(), prop::option::weighted(0.25, any::<bool>()))
            .prop_map(|(handle, refused)| Op::Flush { handle, refused }),
        2 => (handle, some_skip(), some_len(), direction(), some_part()).prop_map(
            |(handle, skip, len, direction, part)| Op::Lend { handle, skip, len, direction, part }
        ),
        1 => (1..9000u64).prop_map(|len| Op::Coherent { len }),
        1 => (which.clone(), 0..9000u64, any::<u8>())
            .prop_map(|(which, at, byte)| Op::CoherentPut { which, at, byte }),
        1 => which.prop_map(|which| Op::CoherentDrop { which }),
        2 => some_bounce().prop_map(Op::Bounce),
        2 => Just(Op::Shrink),
        2 => (0..4u32).prop_map(|nth| Op::RefuseMap { nth }),
        1 => (0..3u32, any::<bool>()).prop_map(|(nth, partly)| Op::RefuseUnmap { nth, partly }),
    ]
}
