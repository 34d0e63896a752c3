//! Replays the fuzzing corpus, and runs random operations in the same way.

#![cfg(not(loom))]

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "the fuzz targets need it public")]
#[path = "../../../../fuzz/src/page_table.rs"]
mod page_table;

#[test]
#[cfg_attr(miri, ignore = "files")]
fn the_corpus_of_page_tables_passes() {
    replay::corpus("page_table", page_table::page_table);
}

/// Random inputs, the same in every run, for every format with every option.
#[test]
fn random_operations_pass() {
    let (formats, rounds) = if cfg!(miri) { (1, 1) } else { (27, 1) };
    let mut next = replay::random();
    for format in 0..formats {
        for options in 0..8 {
            for _ in 0..rounds {
                let mut input = vec![format, options];
                for _ in 0..24 {
                    input.extend(&next().to_le_bytes()[2..6]);
                }
                page_table::page_table(&input);
            }
        }
    }
}
