//! `longshore_stream_options` and `longshore_rows`.
#![expect(unsafe_code, reason = "reads the arrays and strings of C structs")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::time::Duration;

use longshore_load::{
    DigestKind, FormatChoice, OnFull, Order, ReadMode, Rows, Selection, StreamOptions,
};
use longshore_remote::Remote;

use crate::error::Failure;
use crate::ffi;
use crate::options::{kinds, word};
use crate::servers::{self, longshore_storage_option};
use crate::sized::SizedStruct;

/// For `flags` of `longshore_stream_options`: do not use io_uring, even if it is available.
pub const LONGSHORE_STREAM_NO_URING: u32 = 1;
/// For `flags` of `longshore_stream_options`: yield tensors as their reads are complete. Without
/// this flag, they are in the order of the files, and in a file in the order of their data. With
/// checksums, this flag has no effect.
pub const LONGSHORE_STREAM_BY_COMPLETION: u32 = 2;
/// For `flags` of `longshore_stream_options`: if the memory is full, take more for the next tensor,
/// which is returned to the kernel when that tensor is freed. Without this flag,
/// `longshore_stream_next` fails with `LONGSHORE_STREAM_FULL`.
pub const LONGSHORE_STREAM_GROW: u32 = 4;

/// For `wait_ms`: do not wait for other threads to free tensors.
pub const LONGSHORE_NO_WAIT: u64 = u64::MAX;

/// A callback that can stop a call of `longshore_stream_next`. While the call waits, it calls the
/// callback at least every 20 ms, on its own thread. If several threads wait, the callback runs on
/// several threads at the same time. It must not free the stream, and it must return: no exception
/// and no `longjmp` may leave it.
///
/// @param data The `waiting_data` of the options.
/// @return 0 to go on waiting; any other value stops the call, which then fails with
///   `LONGSHORE_CANCELLED`. The stream itself goes on.
#[allow(non_camel_case_types, reason = "C's name")]
pub type longshore_waiting = Option<unsafe extern "C" fn(data: *mut c_void) -> c_int>;

/// Rows of tensors to read: a range, or a share if `share_count` is set. Rows are the indices of
/// the outermost dimension. Initialize it with `LONGSHORE_ROWS_INIT`. Later versions add fields at
/// the end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_rows {
    /// `sizeof(longshore_rows)`.
    pub size: usize,
    /// The name of the tensor; NULL for each tensor that no other element names.
    pub name: *const c_char,
    /// The first row.
    pub start: u64,
    /// The row behind the last one.
    pub end: u64,
    /// The index of the share, from 0.
    pub share_index: u64,
    /// The number of shares: consecutive parts of the rows, whose lengths differ by at most one. A
    /// scalar is in each share. 0 if the rows are a range.
    pub share_count: u64,
}

/// The options of a stream. Initialize them with `LONGSHORE_STREAM_OPTIONS_INIT`; a zero or NULL in
/// any field but `size` stands for the default, and an array that is NULL for no restriction. Later
/// versions of Longshore add fields at the end; by `size` the library recognises the version that
/// the program was compiled for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_stream_options {
    /// `sizeof(longshore_stream_options)`.
    pub size: usize,
    /// How files are read: `auto`, `direct`, `buffered` or `uncached`.
    pub mode: *const c_char,
    /// The format of the files: `safetensors`, `gguf`, or `auto`, which chooses it by their names.
    pub format: *const c_char,
    /// The path of a manifest in the format of `sha256sum`. The last tensors of a file are yielded
    /// only if the file has its checksum; the others are yielded before. Files must be selected as
    /// a whole.
    pub manifest: *const c_char,
    /// The names of tensors to read. A tensor is read if its name is one of them or matches a
    /// pattern.
    pub names: *const *const c_char,
    /// The number of names.
    pub name_count: usize,
    /// Patterns of names, in which `*` stands for any characters and `?` for one.
    pub patterns: *const *const c_char,
    /// The number of patterns.
    pub pattern_count: usize,
    /// The files to read tensors from, by the paths of the opened files. A path without a directory
    /// is the name of a file in any directory.
    pub files: *const *const c_char,
    /// The number of files.
    pub file_count: usize,
    /// The rows to read.
    pub rows: *const longshore_rows,
    /// The number of elements of `rows`.
    pub rows_count: usize,
    /// The memory for tensors of 1 MiB and more. It must hold the largest selected tensor, in whole
    /// units of 64 KiB and with the blocks of the disk at its ends. The default is 1 GiB, or, if
    /// that is more, twice the largest selected tensor and 128 MiB.
    pub memory_bytes: u64,
    /// The time for which `longshore_stream_next` waits for other threads to free tensors if the
    /// memory is full, in milliseconds, or `LONGSHORE_NO_WAIT`. The default is 10 seconds.
    pub wait_ms: u64,
    /// The checksums to compute for each file: `LONGSHORE_VERIFY_*`, any number of them or'ed.
    /// Files must be selected as a whole.
    pub verify: u32,
    /// `LONGSHORE_STREAM_*`, any number of them or'ed.
    pub flags: u32,
    /// The callback that can stop a call that waits.
    pub waiting: longshore_waiting,
    /// The argument of `waiting`, which must be valid until the stream is freed.
    pub waiting_data: *mut c_void,
    /// Options of object stores, which replace those of the environment.
    pub storage_options: *const longshore_storage_option,
    /// The number of elements of `storage_options`.
    pub storage_option_count: usize,
    /// The time that all requests to servers together may take, in milliseconds: from the
    /// opening to the last tensor, with the time in which the program uses tensors. The default is no limit, but
    /// a server that sends nothing for 30 seconds is given up.
    pub timeout_ms: u64,
    /// The number of connections to servers, up to 256. The default is 16, and up to 128 while more are faster.
    pub connections: u64,
}

const STRUCT: SizedStruct = SizedStruct { name: "longshore_stream_options", first_bytes: 136 };
const ROWS: SizedStruct = SizedStruct { name: "longshore_rows", first_bytes: 48 };

const _: () = {
    assert!(size_of::<longshore_rows>() == 48);
    assert!(offset_of!(longshore_rows, name) == 8);
    assert!(offset_of!(longshore_rows, start) == 16);
    assert!(offset_of!(longshore_rows, end) == 24);
    assert!(offset_of!(longshore_rows, share_index) == 32);
    assert!(offset_of!(longshore_rows, share_count) == 40);
    assert!(size_of::<longshore_stream_options>() == 168);
    assert!(offset_of!(longshore_stream_options, mode) == 8);
    assert!(offset_of!(longshore_stream_options, format) == 16);
    assert!(offset_of!(longshore_stream_options, manifest) == 24);
    assert!(offset_of!(longshore_stream_options, names) == 32);
    assert!(offset_of!(longshore_stream_options, name_count) == 40);
    assert!(offset_of!(longshore_stream_options, patterns) == 48);
    assert!(offset_of!(longshore_stream_options, pattern_count) == 56);
    assert!(offset_of!(longshore_stream_options, files) == 64);
    assert!(offset_of!(longshore_stream_options, file_count) == 72);
    assert!(offset_of!(longshore_stream_options, rows) == 80);
    assert!(offset_of!(longshore_stream_options, rows_count) == 88);
    assert!(offset_of!(longshore_stream_options, memory_bytes) == 96);
    assert!(offset_of!(longshore_stream_options, wait_ms) == 104);
    assert!(offset_of!(longshore_stream_options, verify) == 112);
    assert!(offset_of!(longshore_stream_options, flags) == 116);
    assert!(offset_of!(longshore_stream_options, waiting) == 120);
    assert!(offset_of!(longshore_stream_options, waiting_data) == 128);
    assert!(offset_of!(longshore_stream_options, storage_options) == 136);
    assert!(offset_of!(longshore_stream_options, storage_option_count) == 144);
    assert!(offset_of!(longshore_stream_options, timeout_ms) == 152);
    assert!(offset_of!(longshore_stream_options, connections) == 160);
};

/// Parsed options.
#[derive(Debug, Default)]
pub(crate) struct Request<'a> {
    pub(crate) mode: ReadMode,
    pub(crate) format: FormatChoice,
    pub(crate) manifest: Option<&'a CStr>,
    pub(crate) verify: Vec<DigestKind>,
    pub(crate) no_uring: bool,
    pub(crate) selection: Selection,
    pub(crate) stream: StreamOptions,
    pub(crate) waiting: Option<Waiting>,
    pub(crate) remote: Remote,
    pub(crate) connections: Option<usize>,
}

/// A callback that can stop a call, and its data.
#[derive(Debug)]
pub(crate) struct Waiting {
    function: unsafe extern "C" fn(*mut c_void) -> c_int,
    data: *mut c_void,
}

// SAFETY: by its documentation, any thread may call the function with its data.
unsafe impl Send for Waiting {}
// SAFETY: by its documentation, several threads may do that at the same time.
unsafe impl Sync for Waiting {}

impl Waiting {
    /// Calls the callback and returns `true` if the call is to go on waiting.
    pub(crate) fn goes_on(&self) -> bool {
        // SAFETY: by the contract of `read`, the function may be called with its data.
        (unsafe { (self.function)(self.data) }) == 0
    }
}

/// Parses the options of a stream.
///
/// # Safety
/// `options` is NULL, not aligned, or points to as many bytes as its first field says. Its
/// arrays have the numbers of elements that it says, and its strings do not change during `'a`. The
/// callback may be called with its data by any thread until the stream is freed.
pub(crate) unsafe fn read<'a>(
    options: *const longshore_stream_options,
) -> Result<Request<'a>, Failure> {
    if options.is_null() {
        return Ok(Request::default());
    }
    // SAFETY: by this function's contract.
    let known = unsafe { STRUCT.read(options, "options") }?;
    Ok(Request {
        // SAFETY: NULL or a string, by this function's contract.
        mode: word(unsafe { ffi::optional_string(known.mode) })?,
        // SAFETY: as above.
        format: word(unsafe { ffi::optional_string(known.format) })?,
        // SAFETY: as above.
        manifest: unsafe { ffi::optional_string(known.manifest) },
        verify: kinds(known.verify)?,
        no_uring: known.flags & LONGSHORE_STREAM_NO_URING != 0,
        // SAFETY: by this function's contract.
        selection: unsafe { selection(&known) }?,
        stream: stream_options(&known)?,
        waiting: known.waiting.map(|function| Waiting { function, data: known.waiting_data }),
        // SAFETY: by this function's contract.
        remote: unsafe {
            servers::access(known.storage_options, known.storage_option_count, known.timeout_ms)
        }?,
        connections: servers::connections(known.connections)?,
    })
}

fn stream_options(known: &longshore_stream_options) -> Result<StreamOptions, Failure> {
    let flags = LONGSHORE_STREAM_NO_URING | LONGSHORE_STREAM_BY_COMPLETION | LONGSHORE_STREAM_GROW;
    let unknown = known.flags & !flags;
    if unknown != 0 {
        return Err(Failure::argument(format!("options: flags has the unknown bits {unknown:#x}")));
    }
    let mut options = StreamOptions::new();
    if known.memory_bytes > 0 {
        options = options.memory(known.memory_bytes);
    }
    if known.flags & LONGSHORE_STREAM_BY_COMPLETION != 0 {
        options = options.order(Order::Completion);
    }
    if known.flags & LONGSHORE_STREAM_GROW != 0 {
        options = options.on_full(OnFull::Grow);
    }
    Ok(match known.wait_ms {
        0 => options,
        LONGSHORE_NO_WAIT => options.wait(Duration::ZERO),
        wait_ms => options.wait(Duration::from_millis(wait_ms)),
    })
}

/// # Safety The arrays have the numbers of elements that the options say, and the strings do not
/// change meanwhile.
unsafe fn selection(known: &longshore_stream_options) -> Result<Selection, Failure> {
    let mut selection = Selection::all();
    // SAFETY: by this function's contract.
    let names = unsafe { strings(known.names, known.name_count, "options: names") }?;
    for (index, name) in names.into_iter().enumerate() {
        selection = selection.name(utf8(name, || format!("names[{index}]"))?);
    }
    // SAFETY: by this function's contract.
    let patterns = unsafe { strings(known.patterns, known.pattern_count, "options: patterns") }?;
    for (index, pattern) in patterns.into_iter().enumerate() {
        selection = selection.pattern(utf8(pattern, || format!("patterns[{index}]"))?);
    }
    // SAFETY: by this function's contract.
    let files = unsafe { strings(known.files, known.file_count, "options: files") }?;
    for file in files {
        selection = selection.file(ffi::path(file));
    }
    // SAFETY: by this function's contract.
    for (index, rows) in unsafe { all_rows(known) }?.into_iter().enumerate() {
        let wanted = wanted_rows(&rows, index)?;
        // SAFETY: NULL or a string, by this function's contract.
        selection = match unsafe { ffi::optional_string(rows.name) } {
            Some(name) => selection.rows_of(utf8(name, || format!("rows[{index}].name"))?, wanted),
            None => selection.rows(wanted),
        };
    }
    Ok(selection)
}

/// Copies the elements of `rows`.
///
/// # Safety
/// The array has the number of elements that the options say.
unsafe fn all_rows(known: &longshore_stream_options) -> Result<Vec<longshore_rows>, Failure> {
    let mut all = Vec::new();
    if is_absent(known.rows, known.rows_count, "options: rows")? {
        return Ok(all);
    }
    let mut next = known.rows;
    for index in 0..known.rows_count {
        let argument = format!("options: rows[{index}]");
        // SAFETY: the array has this element, which is as long as those before it.
        let rows: longshore_rows = unsafe { ROWS.read(next, &argument) }?;
        let size = all.first().map_or(rows.size, |first: &longshore_rows| first.size);
        if rows.size != size {
            return Err(Failure::argument(format!(
                "{argument}: size is {}, but that of rows[0] is {size}",
                rows.size
            )));
        }
        all.push(rows);
        next = next.wrapping_byte_add(size);
    }
    Ok(all)
}

fn wanted_rows(rows: &longshore_rows, index: usize) -> Result<Rows, Failure> {
    let longshore_rows { start, end, share_index, share_count, .. } = *rows;
    let is_range = start != 0 || end != 0;
    if share_count == 0 && share_index == 0 {
        return Ok(Rows::Range(start..end));
    }
    if is_range || share_count == 0 {
        return Err(Failure::argument(format!(
            "options: rows[{index}] is neither a range nor a share: set start and end, or share_index \
             and share_count"
        )));
    }
    Ok(Rows::Share { index: share_index, count: share_count })
}

/// Borrows the strings of an array that may be absent.
///
/// # Safety
/// As for [`ffi::strings`].
unsafe fn strings<'a>(
    pointer: *const *const c_char,
    count: usize,
    name: &'static str,
) -> Result<Vec<&'a CStr>, Failure> {
    if is_absent(pointer, count, name)? {
        return Ok(Vec::new());
    }
    // SAFETY: by this function's contract.
    unsafe { ffi::strings(pointer, count, name) }
}

/// Returns `true` if an array is absent. An array without elements is an error, since it would
/// select everything.
fn is_absent<T>(pointer: *const T, count: usize, name: &str) -> Result<bool, Failure> {
    match (pointer.is_null(), count) {
        (true, 0) => Ok(true),
        (false, 0) => Err(Failure::argument(format!(
            "{name} is not NULL, but has 0 elements; set the number, or pass NULL to select all"
        ))),
        _ => Ok(false),
    }
}

fn utf8(text: &CStr, field: impl Fn() -> String) -> Result<&str, Failure> {
    text.to_str().map_err(|_| {
        let shown = text.to_string_lossy();
        Failure::argument(format!("options: {} is '{shown}', which is not UTF-8", field()))
    })
}
