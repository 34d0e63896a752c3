//! The allowed circles.

/// A circle of modules that is allowed.
#[derive(Clone, Copy)]
pub(super) struct Allowed {
    /// One of its files.
    pub(super) file: &'static str,
    /// The number of its files. If it grows, review the circle; if it shrinks, lower the number.
    pub(super) files: usize,
    /// The reason why it is allowed.
    #[expect(dead_code, reason = "for readers")]
    pub(super) reason: &'static str,
}

const fn allowed(file: &'static str, files: usize, reason: &'static str) -> Allowed {
    Allowed { file, files, reason }
}

/// A table of cases: the table's file uses the files of the cases, and these use the type of an entry, which
/// is in the table's file.
const TABLE: &str = "a table uses its entries, which use the type of an entry";
/// One state that several kinds of events change, with a file for each kind.
const STATE: &str = "one state, with its methods in a file for each kind of event";

pub(super) const ALLOWED: &[Allowed] = &[
    allowed("bench/src/load/cases.rs", 7, TABLE),
    allowed("bench/src/main.rs", 25, TABLE),
    allowed("bindings/c/src/buffer.rs", 4, "C handles that are created from each other"),
    allowed(
        "bindings/c/src/ffi.rs",
        2,
        "an error is a handle, and functions of handles fail with it",
    ),
    allowed("bindings/python/src/buffer.rs", 3, "Python classes that return each other"),
    allowed("cli/src/pt/args.rs", 2, "arguments name the format, which is created from arguments"),
    allowed("cli/src/pt/dump.rs", 5, TABLE),
    allowed("crates/models/serve/src/server/core.rs", 12, STATE),
    allowed("vm-tests/guest/src/init.rs", 6, TABLE),
    allowed("vm-tests/guest/src/suite.rs", 11, TABLE),
    allowed("vm-tests/src/kernel.rs", 2, "a kernel may be built here, and the builder returns it"),
];
