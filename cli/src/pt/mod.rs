//! `longshore pt`: decodes IO page tables.

pub(crate) mod args;
mod dump;
mod entry;
mod format;
mod formats;
mod image;
mod walk;

use anyhow::Result;
use longshore::mem::Iova;
use longshore::pagetable::format::{Format, Window};
use longshore::pagetable::table_memory::TableAddr;
use serde_json::Value;

use crate::exit::failure;
use crate::output::print;
use args::{Address, PtArgs, PtCommand};

pub(crate) fn run(args: &PtArgs) -> Result<()> {
    match &args.command {
        PtCommand::Formats(args) => formats::run(args),
        PtCommand::Decode(args) => entry::decode(args),
        PtCommand::Index(args) => entry::index(args),
        PtCommand::Walk(args) => walk::run(args),
        PtCommand::Dump(args) => dump::run(args),
    }
}

/// Prints `json` if `as_json`, and `text` if not.
fn tell(as_json: bool, text: &str, json: &Value) -> Result<()> {
    if as_json { print(&format!("{json}\n")) } else { print(text) }
}

/// Formats a number as a JSON string, because many parsers round numbers above 2^53.
fn hex(number: u64) -> Value {
    format!("{number:#x}").into()
}

/// Checks that the root table is aligned to its size.
fn root_table<F: Format>(format: &F, root: Address) -> Result<TableAddr> {
    let geometry = format.geometry();
    let align = 8u64 << geometry.slots_log2(geometry.root_level());
    if !root.0.is_multiple_of(align) {
        let message =
            format!("--root: {:#x} is not a multiple of the table's {align} bytes", root.0);
        return Err(failure(2, message));
    }
    Ok(TableAddr::new(root.0))
}

/// Checks that `iova` is in the input address range of `format`.
fn check_iova<F: Format>(format: &F, iova: Iova) -> Result<()> {
    let geometry = format.geometry();
    if geometry.va(iova).is_some() {
        return Ok(());
    }
    let last_va = geometry.last_va();
    let middle = last_va / 2;
    let (first, last) = (geometry.iova(0), geometry.iova(last_va));
    let windows = if geometry.window() == Window::Signed {
        let (low, high) = (geometry.iova(middle), geometry.iova(middle + 1));
        format!("{first:#x} to {low:#x} and {high:#x} to {last:#x}")
    } else {
        format!("{first:#x} to {last:#x}")
    };
    let bits = geometry.input_bits();
    Err(failure(
        2,
        format!("{iova:#x} is not translated: {} with {bits} bits has {windows}", F::NAME),
    ))
}
