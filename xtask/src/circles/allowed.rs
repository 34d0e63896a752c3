//! The circles that may be.

/// A circle of modules that is allowed.
#[derive(Clone, Copy)]
pub(super) struct Allowed {
    /// One of its files.
    pub(super) file: &'static str,
    /// How many files it has. More need another look, fewer another number.
    pub(super) files: usize,
    /// Why it may be.
    #[expect(dead_code, reason = "for readers")]
    pub(super) reason: &'static str,
}

const fn allowed(file: &'static str, files: usize, reason: &'static str) -> Allowed {
    Allowed { file, files, reason }
}

/// A list of cases has a type, and each case is one: tables of function pointers that name the cases, which
/// name the types beside the table.
const TABLE: &str = "a table names its entries, and they the type of an entry";
/// One state that is changed by the events of several kinds, a file for each kind.
const STATE: &str = "one state, with its methods in a file for each kind of event";

pub(super) const ALLOWED: &[Allowed] = &[
    allowed("bench/src/load/cases.rs", 7, TABLE),
    allowed("bench/src/load/schemes.rs", 4, TABLE),
    allowed("bench/src/main.rs", 25, TABLE),
    allowed("bindings/c/src/buffer.rs", 4, "handles of C that are made from each other"),
    allowed("bindings/c/src/door.rs", 2, "an error is a handle, and calls of handles fail with it"),
    allowed("bindings/python/src/buffer.rs", 3, "classes of Python that return each other"),
    allowed("cli/src/pt/args.rs", 2, "arguments name the format, which is made of the arguments"),
    allowed("cli/src/pt/dump.rs", 5, TABLE),
    allowed("crates/models/serve/src/server/core.rs", 12, STATE),
    allowed("vm-tests/guest/src/init.rs", 6, TABLE),
    allowed("vm-tests/guest/src/suite.rs", 11, TABLE),
    allowed("vm-tests/src/kernel.rs", 2, "a kernel is one of two kinds, each of which is a kernel"),
];
