//! Compares every kind with a naive model: an array of bytes, a place in it, and a limit.

mod memory;

use longshore_iov::{Cursor, Dest, Error, Mark, SegmentSource, Source, copy};
use memory::{KINDS, KindOf, Shape, bytes_of, pattern, with_dest, with_source};
use proptest::prelude::*;

/// The operations on a cursor.
#[derive(Clone, Debug)]
enum Op {
    Read(usize),
    ReadFull(usize),
    Walk { len: usize, stop: usize },
    WalkDyn { len: usize, stop: usize },
    Advance(usize),
    Revert(usize),
    Truncate(usize),
    Reexpand(usize),
    Save,
    Restore,
    Take(usize),
    Ask,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let n = || 0usize..400;
    let op = prop_oneof![
        4 => n().prop_map(Op::Read),
        2 => n().prop_map(Op::ReadFull),
        3 => (n(), n()).prop_map(|(len, stop)| Op::Walk { len, stop }),
        1 => (n(), n()).prop_map(|(len, stop)| Op::WalkDyn { len, stop }),
        2 => n().prop_map(Op::Advance),
        3 => n().prop_map(Op::Revert),
        1 => n().prop_map(Op::Truncate),
        2 => n().prop_map(Op::Reexpand),
        1 => Just(Op::Save),
        1 => Just(Op::Restore),
        1 => n().prop_map(Op::Take),
        1 => Just(Op::Ask),
    ];
    prop::collection::vec(op, 0..40)
}

fn shapes() -> impl Strategy<Value = Shape> {
    let len = prop_oneof![2 => 0usize..6, 4 => 0usize..130];
    prop::collection::vec(len, 1..9).prop_map(|lens| Shape { lens })
}

#[derive(Clone, Debug)]
struct Model {
    content: Vec<u8>,
    at: usize,
    left: usize,
    hidden: usize,
}

impl Model {
    fn next(&mut self, len: usize) -> &[u8] {
        let len = len.min(self.left);
        self.at += len;
        self.left -= len;
        &self.content[self.at - len..self.at]
    }
}

/// Returns a step that collects the bytes of the segments, and ends the walk after `stop` bytes.
fn step_until(
    seen: &mut Vec<u8>,
    stop: usize,
) -> impl FnMut(longshore_iov::Segment<'_, Source>, usize) -> usize {
    move |segment, done| {
        assert_eq!(done, seen.len(), "a step gets the number of bytes walked before it");
        assert!(!segment.is_empty(), "no step is called for an empty segment");
        let bytes = bytes_of(&segment);
        let take = bytes.len().min(stop - seen.len());
        seen.extend_from_slice(&bytes[..take]);
        bytes.len() - take
    }
}

fn apply<'m>(
    cursor: &mut Cursor<'m, Source>,
    model: &mut Model,
    saved: &mut Option<(Mark<'m, Source>, Model)>,
    op: &Op,
) {
    match *op {
        Op::Read(len) => {
            let mut into = vec![0; len];
            let done = copy::read(cursor, &mut into).unwrap();
            assert_eq!(&into[..done], model.next(len));
        }
        Op::ReadFull(len) => {
            let mut into = vec![0; len];
            match copy::read_full(cursor, &mut into) {
                Ok(()) => assert_eq!(into, model.next(len)),
                Err(error) => {
                    let expected =
                        Error::TooShort { wanted_bytes: len, available_bytes: model.left };
                    assert_eq!(error, expected);
                    assert!(model.left < len);
                }
            }
        }
        Op::Walk { len, stop } => {
            let mut seen = Vec::new();
            let walked = cursor.iterate(len, step_until(&mut seen, stop));
            assert_eq!(walked, seen.len());
            assert_eq!(seen, model.next(len.min(stop)));
        }
        Op::WalkDyn { len, stop } => {
            let mut seen = Vec::new();
            let walked = cursor.iterate_dyn(len, &mut step_until(&mut seen, stop));
            assert_eq!(walked, seen.len());
            assert_eq!(seen, model.next(len.min(stop)));
        }
        Op::Advance(len) => {
            cursor.advance(len);
            model.next(len);
        }
        Op::Revert(len) => match cursor.revert(len) {
            Ok(()) => {
                model.at -= len;
                model.left += len;
            }
            Err(error) => {
                let expected = Error::OutOfRange { asked_bytes: len, possible_bytes: model.at };
                assert_eq!(error, expected);
                assert!(len > model.at);
            }
        },
        Op::Truncate(len) => {
            cursor.truncate(len);
            let cut = model.left.saturating_sub(len);
            model.left -= cut;
            model.hidden += cut;
        }
        Op::Reexpand(len) => {
            let possible = model.left + model.hidden;
            if cursor.reexpand(len).is_ok() {
                model.left = len;
                model.hidden = possible - len;
            } else {
                assert!(len > possible);
            }
        }
        Op::Save => *saved = Some((cursor.save(), model.clone())),
        Op::Restore => {
            if let Some((mark, before)) = saved {
                cursor.restore(mark).unwrap();
                *model = before.clone();
            }
        }
        Op::Take(len) => {
            let mut taken = cursor.take(len);
            assert_eq!(taken.remaining(), len.min(model.left));
            let mut into = vec![0; len / 2 + 1];
            let done = copy::read(&mut taken, &mut into).unwrap();
            drop(taken);
            assert_eq!(&into[..done], model.next(len.min(len / 2 + 1)));
        }
        Op::Ask => ask(cursor, model),
    }
    assert_eq!((cursor.remaining(), cursor.walked()), (model.left, model.at), "after {op:?}");
}

/// Compares the queries with a walk over all segments.
fn ask(cursor: &mut Cursor<'_, Source>, model: &Model) {
    let mut segments = Vec::new();
    let mark = cursor.save();
    cursor.iterate(usize::MAX, |segment, _| {
        segments.push((segment.start().addr().get(), segment.len()));
        0
    });
    cursor.restore(&mark).unwrap();
    assert_eq!(cursor.segments(), segments.len());
    assert_eq!(cursor.segment_len_bytes(), segments.first().map_or(0, |(_, len)| *len));
    let ored = segments.iter().fold(0, |ored, (start, len)| ored | start | len);
    assert_eq!(cursor.alignment(), ored);
    let gaps = segments.windows(2).fold(0, |ored, two| ored | (two[0].0 + two[0].1) | two[1].0);
    assert_eq!(cursor.gap_alignment(), gaps);
    for page_log2 in [4, 12] {
        let pages: usize = segments
            .iter()
            .map(|(start, len)| ((start + len - 1) >> page_log2) - (start >> page_log2) + 1)
            .sum();
        assert_eq!(cursor.pages(page_log2), pages);
        let mut given = Vec::new();
        assert_eq!(
            cursor.next_pages(usize::MAX, page_log2, usize::MAX, &mut given),
            Ok(model.left)
        );
        assert_eq!(given.len(), pages);
        let lens: usize = given.iter().map(longshore_iov::kinds::PageSegment::len).sum();
        assert_eq!(lens, model.left);
    }
    let mut given = Vec::new();
    let limit = model.left * 2 / 3;
    assert_eq!(cursor.next_segments(limit, usize::MAX, &mut given), limit);
    let bytes: Vec<u8> = given.iter().flat_map(bytes_of).collect();
    assert_eq!(bytes, &model.content[model.at..model.at + limit]);
    let mut given = Vec::new();
    let two = cursor.next_segments(usize::MAX, 2, &mut given);
    assert_eq!(two, segments.iter().take(2).map(|(_, len)| len).sum::<usize>());
    assert_eq!(given.len(), segments.len().min(2));
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_kind_does_what_the_model_does(shape in shapes(), ops in ops()) {
        for kind in KINDS {
            let content = pattern(shape.len_bytes(kind));
            with_source(kind, &shape, &content, &mut |cursor| {
                let left = content.len();
                let mut model = Model { content: content.clone(), at: 0, left, hidden: 0 };
                let mut saved = None;
                for op in &ops {
                    apply(cursor, &mut model, &mut saved, op);
                }
            });
        }
    }

    #[test]
    fn every_kind_holds_the_bytes_written_to_it(
        shape in shapes(), writes in prop::collection::vec((0usize..150, 0u8..4), 1..8),
    ) {
        for kind in KINDS {
            let len_bytes = shape.len_bytes(kind);
            let mut expected = vec![0xcc; len_bytes];
            let written = with_dest(kind, &shape, 0xcc, &mut |dest| {
                let mut at = 0;
                for (len, what) in &writes {
                    let end = len_bytes.min(at + len);
                    let done = match what {
                        0 => copy::zero(dest, *len),
                        1 => copy::fill(dest, 0x5a, *len),
                        2 => copy::write(dest, &pattern(*len)),
                        _ => {
                            dest.advance(*len);
                            Ok(end - at)
                        }
                    };
                    assert_eq!(done, Ok(end - at));
                    match what {
                        0 => expected[at..end].fill(0),
                        1 => expected[at..end].fill(0x5a),
                        2 => expected[at..end].copy_from_slice(&pattern(*len)[..end - at]),
                        _ => {}
                    }
                    at = end;
                    assert_eq!(dest.remaining(), len_bytes - at);
                }
            });
            prop_assert_eq!(&written, &expected, "{:?}", kind);
        }
    }

    #[test]
    fn every_kind_transfers_to_every_kind(from in shapes(), to in shapes(), limit in 0usize..900) {
        for source_kind in KINDS {
            for dest_kind in KINDS {
                let content = pattern(from.len_bytes(source_kind));
                let room = to.len_bytes(dest_kind);
                let done = limit.min(content.len()).min(room);
                with_source(source_kind, &from, &content, &mut |source| {
                    let written = with_dest(dest_kind, &to, 0xdd, &mut |dest| {
                        assert_eq!(copy::transfer(source, dest, limit), Ok(done));
                        assert_eq!(source.walked(), done);
                        assert_eq!(dest.walked(), done);
                        assert_eq!(copy::transfer_full(source, dest, room + 1), Err(Error::TooShort {
                            wanted_bytes: room + 1,
                            available_bytes: (room - done).min(content.len() - done),
                        }));
                        assert_eq!((source.walked(), dest.walked()), (done, done), "no move");
                    });
                    assert_eq!(&written[..done], &content[..done], "{source_kind:?} {dest_kind:?}");
                    assert!(written[done..room.min(content.len())].len() <= room);
                });
            }
        }
    }
}

/// Runs every sequence of three operations that move a cursor, on every list of three segments of
/// at most three bytes.
#[test]
#[cfg_attr(miri, ignore = "hundreds of thousands of runs")]
fn all_short_sequences_of_operations_on_small_shapes() {
    const LEN_MAX: usize = 3;
    let walk = |len, stop| Op::Walk { len, stop };
    let all = [
        walk(9, 9),
        walk(2, 9),
        walk(9, 1),
        walk(9, 4),
        Op::Advance(1),
        Op::Advance(5),
        Op::Revert(1),
        Op::Revert(3),
        Op::Truncate(2),
        Op::Reexpand(4),
        Op::Take(3),
        Op::ReadFull(3),
    ];
    let lens = || 0..=LEN_MAX;
    let mut runs = 0;
    for (one, two, three) in lens()
        .flat_map(|one| lens().flat_map(move |two| lens().map(move |three| (one, two, three))))
    {
        let shape = Shape { lens: vec![one, two, three] };
        for kind in KINDS {
            let content = pattern(shape.len_bytes(kind));
            with_source(kind, &shape, &content, &mut |cursor| {
                let left = content.len();
                let fresh = Model { content: content.clone(), at: 0, left, hidden: 0 };
                let start = cursor.save();
                for first in &all {
                    for second in &all {
                        for third in &all {
                            let mut model = fresh.clone();
                            for op in [first, second, third] {
                                apply(cursor, &mut model, &mut None, op);
                            }
                            cursor.restore(&start).unwrap();
                            runs += 1;
                        }
                    }
                }
            });
        }
    }
    assert_eq!(runs, (LEN_MAX + 1).pow(3) * KINDS.len() * all.len().pow(3));
}

/// As the kernel's tests of its iterators: a pattern per page is copied in and out.
#[test]
fn patterns_of_pages_are_copied_in_and_out() {
    let shape = Shape { lens: vec![64; if cfg!(miri) { 8 } else { 300 }] };
    for kind in KINDS {
        let content = pattern(shape.len_bytes(kind));
        let written = with_dest(kind, &shape, 0, &mut |dest| {
            for (page, bytes) in content.chunks(64).enumerate() {
                copy::write_full(dest, bytes).unwrap();
                assert_eq!(dest.walked(), (page * 64 + bytes.len()));
            }
            assert_eq!(dest.remaining(), 0);
        });
        assert_eq!(written, content, "{kind:?}");
        with_source(kind, &shape, &content, &mut |source| {
            for bytes in content.chunks(61) {
                let mut out = vec![0; bytes.len()];
                copy::read_full(source, &mut out).unwrap();
                assert_eq!(out, bytes, "{kind:?}");
            }
        });
    }
}

/// Uses many segments, so that a queue has several batches.
#[test]
fn a_cursor_goes_from_the_end_back_to_every_byte() {
    let shape = Shape { lens: [3, 0, 1, 2].repeat(40) };
    for kind in KINDS {
        let content = pattern(shape.len_bytes(kind));
        with_source(kind, &shape, &content, &mut |source| {
            let end = content.len();
            source.advance(end);
            let stride = if cfg!(miri) { 31 } else { 1 };
            for at in (0..end).step_by(stride) {
                source.revert(end - at).unwrap();
                let mark = source.save();
                let mut rest = vec![0; end - at];
                for _ in 0..2 {
                    assert_eq!(copy::read(source, &mut rest), Ok(end - at), "{kind:?} {at}");
                    assert_eq!(rest, &content[at..], "{kind:?} {at}");
                    source.restore(&mark).unwrap();
                }
                source.advance(end - at);
            }
            assert!(source.revert(end + 1).is_err());
        });
    }
}

#[test]
fn only_foreign_ranges_can_fault() {
    let shape = Shape { lens: vec![10, 20] };
    for kind in KINDS {
        let content = pattern(shape.len_bytes(kind));
        let foreign = matches!(kind, KindOf::ForeignBuf | KindOf::ForeignVec);
        with_source(kind, &shape, &content, &mut |source| {
            assert_eq!(source.can_fault(), foreign);
            let mut seen = 0;
            let walked = source.iterate_infallible(25, |segment, _| seen += segment.len());
            if foreign {
                assert_eq!(walked, Err(Error::CanFault { kind: source.kind_name() }));
                assert_eq!((seen, source.walked()), (0, 0));
            } else {
                assert_eq!((walked, seen), (Ok(25), 25));
            }
        });
    }
}

#[test]
fn discarded_bytes_are_counted() {
    let mut nowhere = Cursor::<Dest>::discard(100);
    assert_eq!(copy::write(&mut nowhere, &[1; 60]), Ok(60));
    assert_eq!(nowhere.remaining(), 40);
    let shape = Shape { lens: vec![30, 30] };
    with_source(KindOf::OwnVec, &shape, &pattern(60), &mut |source| {
        assert_eq!(copy::transfer(source, &mut nowhere, 60), Ok(40));
        assert_eq!(source.remaining(), 20);
    });
    nowhere.revert(100).unwrap();
    assert_eq!(copy::zero(&mut nowhere, 1000), Ok(100));
    assert_eq!(nowhere.segments(), 0);
}
