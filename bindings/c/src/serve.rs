//! `longshore_attach` and `longshore_ls`: models that a server holds for all processes of the machine.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::mem::offset_of;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;

use longshore_formats::Header;
use longshore_load::CancelToken;
use longshore_load::FormatChoice;
use longshore_serve::{Attachment, Client, Held, HeldState, Wanted};
use longshore_sys::file;

use crate::buffer::longshore_buffer;
use crate::error::{Failure, longshore_code, longshore_error};
use crate::ffi::{self, ErrorOut, Out};
use crate::memory::Memory;
use crate::options::{self, Options, longshore_load_options};
use crate::tensor::{Found, Tensors};

/// For `flags` of `longshore_held`: the model is complete; if not set, it is still being loaded.
pub const LONGSHORE_HELD_READY: u32 = 1;
/// For `flags` of `longshore_held`: the files on the disk have changed since the load.
pub const LONGSHORE_HELD_STALE: u32 = 2;
/// For `flags` of `longshore_held`: the server keeps the model as long as it runs.
pub const LONGSHORE_HELD_PINNED: u32 = 4;

/// A model that a server holds or is loading. Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_held {
    /// The length of this struct in the library's version.
    pub size: usize,
    /// Its number, which `longshore_attach` accepts in place of a name.
    pub id: u64,
    /// The path by which it was requested. Valid until the callback returns.
    pub path: *const c_char,
    /// The requested format: `auto`, `raw`, `safetensors` or `gguf`. Valid until the callback returns.
    pub format: *const c_char,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The number of bytes that are loaded.
    pub done_bytes: u64,
    /// The time since its load began, in milliseconds.
    pub age_ms: u64,
    /// The number of its attachments.
    pub attachments: u32,
    /// `LONGSHORE_HELD_*`, any number of them or'ed.
    pub flags: u32,
}

const _: () = {
    assert!(size_of::<longshore_held>() == 64);
    assert!(offset_of!(longshore_held, path) == 16);
    assert!(offset_of!(longshore_held, age_ms) == 48);
    assert!(offset_of!(longshore_held, flags) == 60);
};

/// A callback of `longshore_ls`, which is called for each model. It must return: no exception and no
/// `longjmp` may leave it.
///
/// @param held A model, valid until the callback returns.
/// @param data The `data` of `longshore_ls`.
#[allow(non_camel_case_types, reason = "C's name")]
pub type longshore_visit =
    Option<unsafe extern "C" fn(held: *const longshore_held, data: *mut c_void)>;

/// Attaches a model of a server (`longshore serve`), which loads it if it does not hold it yet. All
/// processes that attach the model share the server's memory. It is sealed, and this function maps it
/// only after it has checked that no process can change it. This process opens the file, too, to prove
/// that it may read it. The server keeps the model until the buffer is freed or the process ends. Until
/// then the memory stays valid, even if the server ends.
///
/// Nothing is sent to a server unless its user is root, the user of this process, the system user
/// `longshore`, or in the variable LONGSHORE_TRUST_UID (numeric user ids, separated by commas).
///
/// @param socket The path of the server's socket, or NULL for that of this user, then the system's.
/// @param name A path, a name below a directory that is served, a name below a root of the server on
///   another server such as `s3://BUCKET/PREFIX/`, or a number from `longshore_ls`.
/// @param options NULL, or options of which only `format`, `progress` and `progress_data` are set.
/// @param buffer Where to put the buffer, which the caller frees with `longshore_buffer_free`; NULL
///   on failure.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, or it refuses or has ended;
///   `LONGSHORE_NOT_FOUND` if no model of that name is served; or any other code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_attach(
    socket: *const c_char,
    name: *const c_char,
    options: *const longshore_load_options,
    buffer: *mut *mut longshore_buffer,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a place for a pointer.
        let out = unsafe { Out::new(buffer, "buffer", ptr::null_mut()) }?;
        // SAFETY: C passes NULL or a string.
        let socket = unsafe { ffi::optional_string(socket) };
        // SAFETY: C passes NULL or a string.
        let name = unsafe { ffi::string(name, "name") }?;
        // SAFETY: C passes NULL or options of the size in their first field, with strings and a
        // callback that are valid during the call.
        let options = unsafe { options::read_to_attach(options) }?;
        out.put(Box::into_raw(Box::new(attach(socket, name, &options)?)));
        Ok(())
    })
}

/// Lists the models that a server holds. `longshore_attach` documents which servers are trusted.
///
/// @param socket The path of the server's socket, or NULL for that of this user, then the system's.
/// @param visit A callback, which is called on this thread for each model after the server has sent
///   the whole list.
/// @param data The last argument of `visit`.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, or it refuses or has ended;
///   `LONGSHORE_INVALID_ARGUMENT` if `visit` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_ls(
    socket: *const c_char,
    visit: longshore_visit,
    data: *mut c_void,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a string.
        let socket = unsafe { ffi::optional_string(socket) };
        let Some(visit) = visit else {
            return Err(Failure::argument("visit is NULL".to_owned()));
        };
        for held in connect(socket, &CancelToken::new())?.list()?.held {
            let path = c_string(held.path.clone().into_os_string().into_vec());
            let format = c_string(held.format.clone().into_bytes());
            let seen = seen(&held, &path, &format);
            // SAFETY: C passes a function that takes this, and its data.
            unsafe { visit(&raw const seen, data) }
        }
        Ok(())
    })
}

fn seen(held: &Held, path: &CStr, format: &CStr) -> longshore_held {
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    longshore_held {
        size: size_of::<longshore_held>(),
        id: held.id,
        path: path.as_ptr(),
        format: format.as_ptr(),
        len_bytes: held.len_bytes,
        done_bytes: held.done_bytes,
        age_ms: held.age_ms,
        attachments: held.attachments,
        flags: flag(held.state == HeldState::Ready, LONGSHORE_HELD_READY)
            | flag(held.is_stale, LONGSHORE_HELD_STALE)
            | flag(held.is_pinned, LONGSHORE_HELD_PINNED),
    }
}

/// Converts a string of the server; it is truncated at a NUL.
fn c_string(mut bytes: Vec<u8>) -> CString {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    CString::new(bytes).unwrap_or_default()
}

fn connect(socket: Option<&CStr>, cancel: &CancelToken) -> Result<Client, Failure> {
    let socket = socket.map(|socket| Path::new(OsStr::from_bytes(socket.to_bytes())));
    Ok(Client::connect(socket, cancel)?)
}

fn attach(
    socket: Option<&CStr>,
    name: &CStr,
    options: &Options<'_>,
) -> Result<longshore_buffer, Failure> {
    let name = OsStr::from_bytes(name.to_bytes());
    let cancel = CancelToken::new();
    let is_cancelled = Cell::new(false);
    let mut observe = |now: longshore_load::Progress| {
        let Some(callback) = options.progress.as_ref().filter(|_| !is_cancelled.get()) else {
            return;
        };
        if !callback.goes_on(now.done_bytes, now.total_bytes) {
            is_cancelled.set(true);
            cancel.cancel();
        }
    };
    let wanted = Wanted::Word(name.to_owned());
    let attachment = connect(socket, &cancel)?.attach(&wanted, options.format, &mut observe)?;
    if is_cancelled.get() {
        let total_bytes = attachment.len();
        let cancelled = longshore_serve::Error::Cancelled { done_bytes: total_bytes, total_bytes };
        return Err(cancelled.into());
    }

    let format = format_of_all(Path::new(name), options.format);
    let headers = headers(&attachment, format)?;
    let fd_len = file::status(attachment.memfd())
        .map_err(|error| Failure::system("reading the length of the memory", &error))?
        .version
        .len_bytes();
    let files = attachment.files().to_vec();
    let mut buffer = longshore_buffer::new(Memory::Attached(attachment), fd_len, None);
    let found = headers.iter().flat_map(|(index, header)| {
        let begin = files[*index].buffer_offset;
        let tensors = header.tensors().filter(|tensor| !tensor.is_padding());
        tensors.map(move |tensor| {
            let range = begin + tensor.data.start..begin + tensor.data.end;
            Found { tensor, range, file: *index }
        })
    });
    buffer.tensors = Tensors::of(found, buffer.address());
    buffer.files = files.into_iter().map(Into::into).collect();
    Ok(buffer)
}

/// Returns the format of all files of a model: for an index it is safetensors, whatever the names of
/// the shards are.
fn format_of_all(name: &Path, choice: FormatChoice) -> FormatChoice {
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let is_index = name.ends_with(".json") && name.contains(".safetensors.index.");
    if choice == FormatChoice::Auto && is_index { FormatChoice::Safetensors } else { choice }
}

/// Parses the headers of the files that have one. The memory that they are in cannot change.
fn headers(attachment: &Attachment, choice: FormatChoice) -> Result<Vec<(usize, Header)>, Failure> {
    let mut headers = Vec::new();
    for (index, file) in attachment.files().iter().enumerate() {
        let bytes = attachment.file_bytes(file).unwrap_or_default();
        if let Some(header) = longshore_load::parse_header(&file.path, bytes, choice)? {
            headers.push((index, header));
        }
    }
    Ok(headers)
}
