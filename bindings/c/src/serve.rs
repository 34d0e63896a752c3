//! Models that a server of this machine holds for all its processes.
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
use crate::door::{self, ErrorOut, Out};
use crate::error::{Failure, longshore_code, longshore_error};
use crate::memory::Memory;
use crate::options::{self, Options, longshore_load_options};
use crate::tensor::{Found, Tensors};

/// For `flags` of `longshore_held`: it is complete, and not still being loaded.
pub const LONGSHORE_HELD_READY: u32 = 1;
/// For `flags` of `longshore_held`: the files on the disk are no longer those that were loaded.
pub const LONGSHORE_HELD_STALE: u32 = 2;
/// For `flags` of `longshore_held`: it is kept for as long as the server runs.
pub const LONGSHORE_HELD_PINNED: u32 = 4;

/// A model that a server holds or is loading. Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_held {
    /// The length of this struct as the library knows it.
    pub size: usize,
    /// Its number, which `longshore_attach` takes for a name.
    pub id: u64,
    /// The file it was asked for by. Gone when the visitor returns.
    pub path: *const c_char,
    /// What the file was taken for: `auto`, `raw`, `safetensors`, `gguf`. Gone when the visitor
    /// returns.
    pub format: *const c_char,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// How many of them are there.
    pub done_bytes: u64,
    /// Since when it is held or being loaded, in milliseconds.
    pub age_ms: u64,
    /// How many attachments it has.
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

/// Shown what a server holds, one model after the other. It must return: no exception and no
/// `longjmp` may leave it.
///
/// @param held A model, gone when this returns.
/// @param data What `longshore_ls` was given.
#[allow(non_camel_case_types, reason = "C's name")]
pub type longshore_visit =
    Option<unsafe extern "C" fn(held: *const longshore_held, data: *mut c_void)>;

/// Attaches a model that a server (`longshore serve`) holds, or loads for it. The memory is the
/// server's, shared with every process that attached it: sealed, and mapped here once it was checked
/// that nobody can change it. This process opens the file, too, to show that it may read it. The
/// attachment counts until the buffer is freed or the process ends; the memory stays valid until then
/// also when the server is gone.
///
/// Nothing is sent to a server unless root, the own user, the system user `longshore` or a user of
/// the variable LONGSHORE_TRUST_UID (numbers, separated by commas) runs it.
///
/// @param socket The server's socket, or NULL for that of this user, else the system's.
/// @param name A path, a name beneath what is served, or a number of `longshore_ls`.
/// @param options NULL, or options of which only `format`, `progress` and `progress_data` are set.
/// @param buffer Where to put the buffer, which the caller frees with `longshore_buffer_free`; NULL
///   on failure.
/// @param error Where to put what went wrong, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, it refuses or is gone;
///   `LONGSHORE_NOT_FOUND` if nothing of that name is served; or any other code.
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
        let socket = unsafe { door::optional_string(socket) };
        // SAFETY: C passes NULL or a string.
        let name = unsafe { door::string(name, "name") }?;
        // SAFETY: C passes NULL or options that are as long as they say, with strings and a
        // callback in them that are good until this returns.
        let options = unsafe { options::read_to_attach(options) }?;
        out.put(Box::into_raw(Box::new(attach(socket, name, &options)?)));
        Ok(())
    })
}

/// Shows the models that a server holds. `longshore_attach` documents which servers are trusted.
///
/// @param socket The server's socket, or NULL for that of this user, else the system's.
/// @param visit Called for each model, on this thread, when all of them are known.
/// @param data What `visit` is given as its last argument.
/// @param error Where to put what went wrong, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, it refuses or is gone;
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
        let socket = unsafe { door::optional_string(socket) };
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

/// What another process says may hold a NUL; what is behind it is not shown.
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
        .map_err(|error| Failure::system("asking for the length of the memory", &error))?
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

/// What all files of a model are, which an index may say where their own names do not.
fn format_of_all(name: &Path, choice: FormatChoice) -> FormatChoice {
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let is_index = name.ends_with(".json") && name.contains(".safetensors.index.");
    if choice == FormatChoice::Auto && is_index { FormatChoice::Safetensors } else { choice }
}

/// The headers of those files that have one, read out of the memory, which cannot change.
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
