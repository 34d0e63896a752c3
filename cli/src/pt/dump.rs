//! `longshore pt dump`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use longshore::mem::Iova;
use longshore::pagetable::dump::{Dump, Next, Node};
use longshore::pagetable::format::Format;
use longshore::pagetable::table_memory::TableAddr;
use serde_json::{Value, json};

use super::args::DumpArgs;
use super::entry::prot_words;
use super::format::{level_label, with_format};
use super::image::FileImage;
use super::{check_iova, hex, root_table};
use crate::exit::{failure, told};
use crate::output::print;

pub(super) fn run(args: &DumpArgs) -> Result<()> {
    let any = args.format.set_up()?;
    let image = FileImage::open(&args.image)?;
    with_format!(&any, format => of_format(args, format, &image))
}

fn of_format<F: Format>(args: &DumpArgs, format: &F, image: &FileImage) -> Result<()> {
    let root = root_table(format, args.image.root)?;
    let mut dump = Dump::new(format, image, root);
    if let Some(range) = args.range {
        let first = Iova::new(range.first);
        check_iova(format, first)?;
        dump = dump.of_range(first, range.len_bytes).ok_or_else(|| {
            let message = format!(
                "--range: {:#x} bytes from {first:#x} end outside of the input address range",
                range.len_bytes
            );
            failure(2, message)
        })?;
    }
    let mut seen = HashSet::from([root]);
    let mut missing = None;
    // Returns `true` for a table that was not shown yet: an untrusted image may have tables that point
    // to themselves.
    let mut meet = |node: &Node| match *node {
        Node::Table { table, .. } => seen.insert(table),
        Node::Missing { level, table, index, .. } => {
            missing.get_or_insert((level, table, index));
            true
        }
        _ => true,
    };
    if args.json {
        let mut nodes = Vec::new();
        let _: ControlFlow<()> = dump.visit(|node| {
            let is_new = meet(&node);
            nodes.push(as_json(format, &node, is_new));
            ControlFlow::Continue(if is_new { Next::Into } else { Next::Over })
        });
        image.check()?;
        let level = F::LEVEL_NAMES[format.geometry().root_level() as usize];
        let missing = missing.map(|(level, table, index)| why(format, image, level, table, index));
        let json = json!({
            "format": F::NAME,
            "root": hex(root.raw()),
            "level": level,
            "nodes": nodes,
            "missing": missing,
        });
        print(&format!("{json}\n"))?;
    } else {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = write_tree(&mut out, format, root, &dump, &mut meet);
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("writing to standard output")?,
        }
        image.check()?;
    }
    match missing {
        Some((level, table, index)) => Err(told(15, why(format, image, level, table, index))),
        None => Ok(()),
    }
}

/// Describes the first table that is not in the image.
fn why<F: Format>(
    format: &F,
    image: &FileImage,
    level: u32,
    table: TableAddr,
    index: usize,
) -> String {
    let (label, table) = (level_label(format, level), table.raw());
    let extent = image.extent();
    match index {
        0 => format!("the table at {table:#x} ({label}) is not in the image: {extent}"),
        _ => format!(
            "the table at {table:#x} ({label}) is in the image only up to entry {}: {extent}",
            index - 1
        ),
    }
}

fn write_tree<F: Format>(
    out: &mut impl Write,
    format: &F,
    root: TableAddr,
    dump: &Dump<'_, F, FileImage>,
    meet: &mut impl FnMut(&Node) -> bool,
) -> io::Result<()> {
    let root_level = format.geometry().root_level();
    writeln!(out, "{}, root {:#x} of {}", F::NAME, root.raw(), level_label(format, root_level))?;
    let done = dump.visit(|node| {
        let is_new = meet(&node);
        let mut line = String::new();
        // Writing to a string never fails.
        let _ = write_node(&mut line, format, &node, is_new);
        match out.write_all(line.as_bytes()) {
            Ok(()) => ControlFlow::Continue(if is_new { Next::Into } else { Next::Over }),
            Err(error) => ControlFlow::Break(error),
        }
    });
    match done {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

fn write_node<F: Format>(
    line: &mut String,
    format: &F,
    node: &Node,
    is_new: bool,
) -> std::fmt::Result {
    let root_level = format.geometry().root_level();
    let indent = |level: u32| 2 * (root_level - level) as usize;
    match *node {
        Node::Table { level, index, iova, table } => {
            let (indent, below) = (indent(level), level_label(format, level - 1));
            let again = if is_new { "" } else { ", shown above" };
            let raw = table.raw();
            writeln!(line, "{:indent$}[{index}] {iova:#x}: table {raw:#x} of {below}{again}", "")
        }
        Node::Leaves(leaves) => writeln!(line, "{:1$}{leaves}", "", indent(leaves.level)),
        Node::Reserved { level, index, iova, entry } => {
            writeln!(line, "{:1$}[{index}] {iova:#x}: reserved {entry:#x}", "", indent(level))
        }
        Node::Missing { level, index, iova, .. } => {
            writeln!(line, "{:1$}[{index}] {iova:#x}: not in the image", "", indent(level))
        }
    }
}

fn as_json<F: Format>(format: &F, node: &Node, is_new: bool) -> Value {
    let name = |level: u32| F::LEVEL_NAMES[level as usize];
    match *node {
        Node::Table { level, index, iova, table } => json!({
            "kind": "table",
            "level": name(level),
            "index": index,
            "iova": hex(iova.raw()),
            "table": hex(table.raw()),
            "shown_above": !is_new,
        }),
        Node::Leaves(leaves) => json!({
            "kind": "leaves",
            "level": name(leaves.level),
            "first": leaves.first,
            "last": leaves.last,
            "iova": hex(leaves.iova.raw()),
            "bus": hex(leaves.bus.raw()),
            "page_bytes": 1u64 << leaves.page_log2,
            "pages": leaves.pages,
            "permissions": prot_words(leaves.prot),
            "dirty": format.dirty_test().map(|_| leaves.dirty),
        }),
        Node::Reserved { level, index, iova, entry } => json!({
            "kind": "reserved",
            "level": name(level),
            "index": index,
            "iova": hex(iova.raw()),
            "entry": hex(entry),
        }),
        Node::Missing { level, index, iova, table } => json!({
            "kind": "missing",
            "level": name(level),
            "index": index,
            "iova": hex(iova.raw()),
            "table": hex(table.raw()),
        }),
    }
}
