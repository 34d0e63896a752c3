//! The trait that every candidate implements, so that all of them run the same loops.

use std::hint::black_box;

use super::stream::{Op, Work};

/// One thread's access to memory. A failed access fails the bench.
pub(super) trait Accessor {
    fn read(&self, at: u64, into: &mut [u8]);
    fn write(&self, at: u64, from: &[u8]);
    fn read_word(&self, at: u64) -> u64;
    fn write_word(&self, at: u64, word: u64);
}

/// The private buffer of an access.
#[repr(C, align(4096))]
pub(super) struct Buffer([u8; 4096]);

impl Buffer {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self([0x5a; 4096]))
    }
}

/// Makes each access of a list once. Except in the mix, lengths are known at compile time, as in a
/// device model that reads descriptors and data.
pub(super) fn pass<D: Accessor>(work: Work, accessor: &D, ops: &[Op], buffer: &mut Buffer) {
    match work {
        Work::Mix => mix(accessor, ops, buffer),
        Work::Read(8) => read_words(accessor, ops),
        Work::Read(64) => read::<64, D>(accessor, ops, buffer),
        Work::Read(512) => read::<512, D>(accessor, ops, buffer),
        Work::Read(1024) => read::<1024, D>(accessor, ops, buffer),
        Work::Read(4096) => read::<4096, D>(accessor, ops, buffer),
        Work::Write(8) => write_words(accessor, ops),
        Work::Write(64) => write::<64, D>(accessor, ops, buffer),
        Work::Write(512) => write::<512, D>(accessor, ops, buffer),
        Work::Write(1024) => write::<1024, D>(accessor, ops, buffer),
        Work::Write(4096) => write::<4096, D>(accessor, ops, buffer),
        Work::Read(len) | Work::Write(len) => panic!("there is no loop for {len} bytes"),
    }
}

#[inline(never)]
fn mix<D: Accessor>(accessor: &D, ops: &[Op], buffer: &mut Buffer) {
    for op in ops {
        let part = &mut buffer.0[..op.len as usize];
        if op.write {
            accessor.write(op.at, part);
        } else {
            accessor.read(op.at, part);
        }
        black_box(&mut *buffer);
    }
}

#[inline(never)]
fn read<const N: usize, D: Accessor>(accessor: &D, ops: &[Op], buffer: &mut Buffer) {
    for op in ops {
        accessor.read(op.at, &mut buffer.0[..N]);
        black_box(&mut *buffer);
    }
}

#[inline(never)]
fn write<const N: usize, D: Accessor>(accessor: &D, ops: &[Op], buffer: &mut Buffer) {
    for op in ops {
        accessor.write(op.at, &buffer.0[..N]);
        black_box(&mut *buffer);
    }
}

#[inline(never)]
fn read_words<D: Accessor>(accessor: &D, ops: &[Op]) {
    let sum = ops.iter().fold(0u64, |sum, op| sum.wrapping_add(accessor.read_word(op.at)));
    black_box(sum);
}

#[inline(never)]
fn write_words<D: Accessor>(accessor: &D, ops: &[Op]) {
    let mut word = black_box(1u64);
    for op in ops {
        accessor.write_word(op.at, word);
        word = word.wrapping_add(1);
    }
}
