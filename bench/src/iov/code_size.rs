//! The machine code size of the walks, beside the kernel's, from this program's own symbols.
//!
//! A function here contains the walk of every kind that its cursor may have, or of one named kind, once
//! for each instruction set. The functions of `longshore-iov` that it calls are included, except for the
//! blocks of assembly and the code after a fault, because those are separate functions in the kernel,
//! too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hint::black_box;

use anyhow::{Context, Result};
use longshore_iov::checksum::Checksum;
use longshore_iov::crc32c::Crc32c;
use longshore_iov::kinds::{QueuedPages, SparsePages};
use longshore_iov::{
    Cursor, Dest, Error, Segment, SegmentSource, Source, copy,
    kinds::{ForeignBuf, ForeignVec, OwnVec, PageVec},
};
use object::{Object, ObjectSection, ObjectSymbol};

use crate::harness::metric::CODE;
use crate::harness::{CommonOptions, Row, Session, published};

const CASE: &str = "code size";
/// The kernel's functions, and their counterparts here.
const SAME: [(&str, &str); 6] = [
    ("_copy_from_iter", "read"),
    ("_copy_to_iter", "write"),
    ("_copy_mc_to_iter", "write"),
    ("csum_and_copy_from_iter", "read_checksummed"),
    ("csum_and_copy_to_iter", "write_checksummed"),
    ("iov_iter_zero", "zero"),
];

type Done = Result<usize, Error>;
type Reading<'a, 'm> = &'a mut Cursor<'m, Source>;
type Writing<'a, 'm> = &'a mut Cursor<'m, Dest>;
type Known<'a, 'm, K> = &'a mut Cursor<'m, Source, K>;

/// Defines the functions to measure, and [`names`]. Their addresses are taken, so that the linker keeps
/// them.
macro_rules! measured {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty $body:block)*) => {
        $(
            #[inline(never)]
            fn $name($($argument: $kind),*) -> $result $body
        )*

        fn names() -> Vec<&'static str> {
            vec![$({
                black_box($name as *const ());
                stringify!($name)
            }),*]
        }
    };
}
measured! {
    fn read(cursor: Reading<'_, '_>, into: &mut [u8]) -> Done { copy::read(cursor, into) }
    fn write(cursor: Writing<'_, '_>, from: &[u8]) -> Done { copy::write(cursor, from) }
    fn zero(cursor: Writing<'_, '_>, len_bytes: usize) -> Done { copy::zero(cursor, len_bytes) }
    fn transfer(from: Reading<'_, '_>, to: Writing<'_, '_>) -> Done {
        copy::transfer(from, to, usize::MAX)
    }
    fn read_checksummed(cursor: Reading<'_, '_>, into: &mut [u8], sum: &mut Checksum) -> Done {
        copy::read_into(cursor, into, sum)
    }
    fn write_checksummed(cursor: Writing<'_, '_>, from: &[u8], sum: &mut Checksum) -> Done {
        copy::write_into(cursor, from, sum)
    }
    fn read_crc32c(cursor: Reading<'_, '_>, into: &mut [u8], crc: &mut Crc32c) -> Done {
        copy::read_into(cursor, into, crc)
    }
    fn write_crc32c(cursor: Writing<'_, '_>, from: &[u8], crc: &mut Crc32c) -> Done {
        copy::write_into(cursor, from, crc)
    }
    fn read_foreign_buf(
        cursor: Known<'_, '_, ForeignBuf<'_, Source>>,
        into: &mut [u8]
    ) -> Done { copy::read(cursor, into) }
    fn read_foreign_vec(
        cursor: Known<'_, '_, ForeignVec<'_, Source>>,
        into: &mut [u8]
    ) -> Done { copy::read(cursor, into) }
    fn read_own_vec(cursor: Known<'_, '_, OwnVec<'_, Source>>, into: &mut [u8]) -> Done {
        copy::read(cursor, into)
    }
    fn read_page_vec(cursor: Known<'_, '_, PageVec<'_, Source>>, into: &mut [u8]) -> Done {
        copy::read(cursor, into)
    }
    fn read_sparse_pages(
        cursor: Known<'_, '_, SparsePages<'_, Source>>,
        into: &mut [u8]
    ) -> Done { copy::read(cursor, into) }
    fn read_page_queue(
        cursor: Known<'_, '_, QueuedPages<'_, Source>>,
        into: &mut [u8]
    ) -> Done { copy::read(cursor, into) }
    fn empty_step(cursor: Reading<'_, '_>) -> usize {
        cursor.iterate(usize::MAX, |segment, _| {
            black_box(segment.len());
            0
        })
    }
    fn empty_step_through_a_pointer(
        cursor: Reading<'_, '_>,
        step: &mut dyn FnMut(Segment<'_, Source>, usize) -> usize
    ) -> usize { cursor.iterate_dyn(usize::MAX, step) }
}

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    if !options.wants(CASE) {
        return Ok(());
    }
    let file = fs::read("/proc/self/exe").context("this program's own file")?;
    let program = Program::read(&file).context("this program's own file")?;
    let mut rows = Vec::new();
    for name in names() {
        rows.push(match program.code_bytes(name) {
            Some(bytes) if cfg!(target_arch = "x86_64") => row(name, bytes as f64),
            _ => Row::not_run(CASE, name, "no symbols, or not x86-64"),
        });
    }
    rows.extend(published_rows()?);
    session.publish(rows)
}

/// The functions of a program by their addresses: name and code.
struct Program<'a>(BTreeMap<u64, (&'a str, &'a [u8])>);

impl<'a> Program<'a> {
    fn read(file: &'a [u8]) -> object::Result<Self> {
        let file = object::File::parse(file)?;
        let code_of = |symbol: &object::Symbol<'a, '_>| {
            let section = file.section_by_index(symbol.section_index()?).ok()?;
            let code = section.data_range(symbol.address(), symbol.size()).ok()??;
            (symbol.size() > 0).then_some((symbol.address(), (symbol.name().ok()?, code)))
        };
        Ok(Self(file.symbols().filter_map(|symbol| code_of(&symbol)).collect()))
    }

    /// Returns the size in bytes of this module's function `name`, with the functions that it calls.
    fn code_bytes(&self, name: &str) -> Option<u64> {
        // The compiler mangles a path as names, each after its length.
        let path = format!("9code_size{}{name}", name.len());
        let (start, _) = self.0.iter().find(|(_, (symbol, _))| symbol.contains(&path))?;
        let mut counted = BTreeSet::from([*start]);
        let mut to_visit = vec![*start];
        while let Some(address) = to_visit.pop() {
            let (_, code) = self.0[&address];
            for target in called(address, code) {
                let is_counted = |symbol: &str| {
                    symbol.contains("longshore_iov")
                        && !symbol.contains("kernels")
                        && !symbol.contains("go_on")
                };
                if self.0.get(&target).is_some_and(|(symbol, _)| is_counted(symbol))
                    && counted.insert(target)
                {
                    to_visit.push(target);
                }
            }
        }
        Some(counted.iter().map(|address| self.0[address].1.len() as u64).sum())
    }
}

/// Returns the targets of calls and jumps of the five-byte form (Intel SDM, volume 2, CALL and JMP: E8
/// and E9 with a 32-bit displacement from the next instruction). If other bytes look like one, their
/// target is not the start of a function.
fn called(address: u64, code: &[u8]) -> impl Iterator<Item = u64> {
    code.windows(5).enumerate().filter_map(move |(at, bytes)| {
        let [0xe8 | 0xe9, distance @ ..] = bytes else { return None };
        let distance = i32::from_le_bytes(distance.try_into().ok()?);
        address.checked_add(at as u64 + 5)?.checked_add_signed(distance.into())
    })
}

fn row(candidate: &str, bytes: f64) -> Row {
    Row { median: Some(bytes), runs: 1, ..Row::of(CASE, candidate, CODE) }
}

/// Returns the published sizes of the kernel's always-inlined functions, under the names used here.
fn published_rows() -> Result<Vec<Row>> {
    let csv = published::read("iov_code_size")?;
    let of_function = |line: &Vec<&'static str>| {
        let (kernels, here) = SAME.iter().find(|(kernels, _)| *kernels == line[0])?;
        Some(row(&format!("{here}, published ({kernels})"), csv.number(line, "after")?))
    };
    Ok(csv.lines.iter().filter_map(of_function).collect())
}
