//! The lists of system calls on the manual's page.
//!
//! A section with a table whose first column is `system call` is the list of the workload in its
//! heading. Each row is a call. Each phase has a column with `always`, `sometimes` or nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::Call;
use crate::run::Phase;

/// The text of the page.
const PAGE: &str = include_str!("../../docs/system-calls.md");

/// The section with the calls of the standard library and of the C library.
pub(crate) const BASE: &str = "The base";
/// A row with this text in the first column stands for all calls of the base.
const BASE_ROW: &str = "the base";

const COLUMNS: [&str; 5] = ["system call", "setup", "steady state", "teardown", "for"];

/// A list: the calls of a workload by phase.
#[derive(Default)]
pub(crate) struct List {
    phases: BTreeMap<Phase, Calls>,
}

/// The calls of one phase.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    pub(crate) always: BTreeSet<Call>,
    pub(crate) sometimes: BTreeSet<Call>,
    pub(crate) has_base: bool,
}

impl Calls {
    /// Returns all calls that the phase may make, without those of the base.
    pub(crate) fn listed(&self) -> BTreeSet<Call> {
        self.always.union(&self.sometimes).copied().collect()
    }
}

impl List {
    pub(crate) fn phase(&self, phase: Phase) -> Calls {
        self.phases.get(&phase).cloned().unwrap_or_default()
    }
}

/// Reads the page. Returns the base, and the other lists by their headings.
pub(crate) fn read() -> Result<(BTreeSet<Call>, BTreeMap<String, List>), String> {
    parse(PAGE)
}

fn parse(page: &str) -> Result<(BTreeSet<Call>, BTreeMap<String, List>), String> {
    let (mut base, mut lists) = (BTreeSet::new(), BTreeMap::new());
    let (mut heading, mut is_list) = (String::new(), false);
    for (number, line) in (1..).zip(page.lines()) {
        let at = |reason: String| format!("docs/system-calls.md:{number}: {reason}");
        if let Some(text) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            (heading, is_list) = (text.replace('`', ""), false);
            continue;
        }
        let Some(cells) = cells(line) else {
            is_list = false;
            continue;
        };
        if cells[0] == COLUMNS[0] {
            let columns: &[&str] =
                if heading == BASE { &[COLUMNS[0], COLUMNS[4]] } else { &COLUMNS };
            if cells != columns {
                return Err(at(format!("the columns are not {columns:?}")));
            }
            is_list = true;
            if lists.insert(heading.clone(), List::default()).is_some() {
                return Err(at(format!("a second list for {heading}")));
            }
        } else if is_list && !cells[0].starts_with('-') {
            if heading == BASE {
                for text in cells[0].split(", ") {
                    base.insert(quoted(text).map_err(at)?);
                }
            } else {
                let list = lists.get_mut(&heading).expect("it was inserted with its columns");
                row(list, &cells).map_err(at)?;
            }
        }
    }
    for (name, list) in &lists {
        for (phase, calls) in &list.phases {
            if let Some(call) = calls.listed().intersection(&base).next() {
                let permits_base = *phase != Phase::Steady || calls.has_base;
                if permits_base {
                    return Err(format!("{name}, {phase}: the base permits {call} already"));
                }
            }
        }
    }
    Ok((base, lists))
}

fn row(list: &mut List, cells: &[&str]) -> Result<(), String> {
    if cells.len() != COLUMNS.len() {
        return Err(format!("the row has {} cells and not {}", cells.len(), COLUMNS.len()));
    }
    // The only row of a table without calls.
    if cells[0] == "none" {
        return Ok(());
    }
    for (phase, cell) in Phase::ALL.into_iter().zip(&cells[1..]) {
        let calls = list.phases.entry(phase).or_default();
        if cells[0] == BASE_ROW {
            calls.has_base |= !cell.is_empty();
            continue;
        }
        let call = quoted(cells[0])?;
        let is_new = match *cell {
            "" => true,
            "always" => calls.always.insert(call),
            "sometimes" => calls.sometimes.insert(call),
            other => return Err(format!("'{other}' is neither 'always' nor 'sometimes'")),
        };
        if !is_new {
            return Err(format!("a second row for {call}"));
        }
    }
    Ok(())
}

/// Returns the cells of a table row; `None` if the line is not one.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    // A `|` within a cell is written `\|`.
    let mut cells = Vec::new();
    let (mut start, bytes) = (0, inner.as_bytes());
    for at in 0..bytes.len() {
        if bytes[at] == b'|' && (at == 0 || bytes[at - 1] != b'\\') {
            cells.push(inner[start..at].trim());
            start = at + 1;
        }
    }
    cells.push(inner[start..].trim());
    Some(cells)
}

fn quoted(text: &str) -> Result<Call, String> {
    let call = text.strip_prefix('`').and_then(|text| text.strip_suffix('`'));
    call.ok_or_else(|| format!("{text} is not in backticks"))?.replace('\\', "").parse()
}
