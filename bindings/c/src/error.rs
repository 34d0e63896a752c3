//! `longshore_error` and the error codes.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::error::Error as StdError;
use std::ffi::{CString, c_char, c_int};
use std::{io, ptr};

use longshore_formats::directory::DirectoryProblem;
use longshore_heap as heap;
use longshore_load as load;
use longshore_serve as serve;

use crate::ffi;

/// The result of a function that can fail. Later versions may add codes.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "C's name")]
pub enum longshore_code {
    /// Success.
    LONGSHORE_OK = 0,
    /// An argument must not be NULL, or has an invalid value.
    LONGSHORE_INVALID_ARGUMENT = 1,
    /// A file cannot be opened; the error's `errno` is the reason.
    LONGSHORE_CANNOT_OPEN = 2,
    /// A path names a directory, a FIFO, a socket or a device.
    LONGSHORE_NOT_REGULAR = 3,
    /// The disk or file system failed, or a server that sends the file.
    LONGSHORE_READ_FAILED = 4,
    /// A file was written to or truncated while it was read.
    LONGSHORE_FILE_CHANGED = 5,
    /// The content does not fit into memory, or into the given limit.
    LONGSHORE_NO_MEMORY = 6,
    /// The requested heap or mode is not available on this machine or for this file, or the content
    /// of the heap cannot be sealed.
    LONGSHORE_UNAVAILABLE = 7,
    /// A callback cancelled the load or the wait, or `longshore_stream_cancel` cancelled the stream.
    LONGSHORE_CANCELLED = 8,
    /// A checksum differs from the manifest.
    LONGSHORE_MISMATCH = 9,
    /// A file is not valid in its format, or a manifest cannot be parsed.
    LONGSHORE_BAD_FORMAT = 10,
    /// The buffer has no descriptor of that kind or no statistics, or the server has no such model.
    LONGSHORE_NOT_FOUND = 11,
    /// A system call failed, or a resource of the process is exhausted.
    LONGSHORE_SYSTEM = 12,
    /// A bug in Longshore. Nothing is left behind; please report it.
    LONGSHORE_INTERNAL = 13,
    /// No server listens, or it refuses, has ended, does not answer, or cannot be trusted.
    LONGSHORE_SERVER = 14,
    /// The memory of a stream is full of tensors that the program holds. Free some, and call again.
    LONGSHORE_STREAM_FULL = 15,
    /// A stream has failed before. The call that failed first has returned the code of the reason.
    LONGSHORE_STREAM_FAILED = 16,
}

/// An error: a code, an `errno` and a message. A function that fails creates it. It is immutable, and
/// the caller owns it and frees it with `longshore_error_free`.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_error {
    code: longshore_code,
    errno: c_int,
    message: CString,
}

/// Returns the code of an error, which is also the result of the function that created it.
///
/// @param error An error.
/// @return Its code; `LONGSHORE_INVALID_ARGUMENT` if `error` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_error_code(error: *const longshore_error) -> longshore_code {
    ffi::guarded(longshore_code::LONGSHORE_INVALID_ARGUMENT, || {
        // SAFETY: C passes NULL or a live error.
        Ok(unsafe { ffi::borrow(error, "error") }?.code)
    })
}

/// Returns the `errno` of an error: the kernel's, or the nearest value if there was none, such as
/// `EINVAL` for an argument, `ENOMEM`, `ECANCELED`, or `EBADMSG` for a malformed file.
///
/// @param error An error.
/// @return A value of `errno.h`, never 0; `EINVAL` if `error` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_error_errno(error: *const longshore_error) -> c_int {
    // SAFETY: C passes NULL or a live error.
    ffi::guarded(libc::EINVAL, || Ok(unsafe { ffi::borrow(error, "error") }?.errno))
}

/// Returns the message of an error: the operation, the file, the range, the bytes that were done, and
/// a remedy if there is one. It is one line of UTF-8, without a line feed at its end.
///
/// @param error An error.
/// @return The message, which is valid as long as the error; NULL if `error` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_error_message(error: *const longshore_error) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live error.
        Ok(unsafe { ffi::borrow(error, "error") }?.message.as_ptr())
    })
}

/// Frees an error.
///
/// @param error An error that is not used any more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_error_free(error: *mut longshore_error) {
    // SAFETY: C passes NULL or an error that this library returned, and does not use it afterwards.
    unsafe { ffi::free(error) }
}

/// A failure before it becomes a [`longshore_error`].
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: longshore_code,
    pub(crate) errno: c_int,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: longshore_code, errno: c_int, message: String) -> Self {
        Self { code, errno, message }
    }

    /// Creates the failure of an invalid argument.
    pub(crate) fn argument(message: String) -> Self {
        Self::new(longshore_code::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL, message)
    }

    /// Creates the failure of an unknown word, such as a heap that does not exist.
    pub(crate) fn word(error: &dyn StdError) -> Self {
        Self::argument(error.to_string())
    }

    /// Creates the failure of a system call.
    pub(crate) fn system(operation: &str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::new(longshore_code::LONGSHORE_SYSTEM, errno, format!("{operation} failed: {error}"))
    }

    pub(crate) fn panicked(what: &str) -> Self {
        let message = format!("a bug in Longshore, please report it: {what}");
        Self::new(longshore_code::LONGSHORE_INTERNAL, libc::ENOTRECOVERABLE, message)
    }
}

impl From<load::Error> for Failure {
    fn from(error: load::Error) -> Self {
        use load::Error as E;
        use load::{HubProblem, StreamProblem};
        use longshore_code as C;
        let (code, nearest) = match &error {
            E::Open { source, .. } => (C::LONGSHORE_CANNOT_OPEN, nearest_errno(source)),
            E::NotRegular { .. } => (C::LONGSHORE_NOT_REGULAR, libc::EINVAL),
            E::OutOfFile { .. } => (C::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL),
            E::Read { source, .. } => (C::LONGSHORE_READ_FAILED, nearest_errno(source)),
            E::Truncated { .. } | E::Changed { .. } => (C::LONGSHORE_FILE_CHANGED, libc::ESTALE),
            E::NotEnoughMemory { .. } => (C::LONGSHORE_NO_MEMORY, libc::ENOMEM),
            E::Heap(inner) => of_heap(inner),
            E::ModeUnavailable { .. } => (C::LONGSHORE_UNAVAILABLE, libc::EOPNOTSUPP),
            E::Cancelled { .. } => (C::LONGSHORE_CANCELLED, libc::ECANCELED),
            E::Mismatch { .. } => (C::LONGSHORE_MISMATCH, libc::EBADMSG),
            E::Manifest { .. } | E::Format { .. } | E::NoTensors { .. } | E::Refused { .. } => {
                (C::LONGSHORE_BAD_FORMAT, libc::EBADMSG)
            }
            E::Directory { reason, .. } => of_directory(reason),
            E::Hub { reason: HubProblem::Name(_), .. } => {
                (C::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL)
            }
            E::Hub { .. } => (C::LONGSHORE_NOT_FOUND, libc::ENOENT),
            E::Stream { reason: StreamProblem::Failed { .. } } => {
                (C::LONGSHORE_STREAM_FAILED, libc::EIO)
            }
            E::Stream { .. } => (C::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL),
            E::StreamFull { .. } => (C::LONGSHORE_STREAM_FULL, libc::EAGAIN),
            // Exhausted resources of the process, and variants that are added later.
            _ => (C::LONGSHORE_SYSTEM, libc::EIO),
        };
        Self::of(code, nearest, &error)
    }
}

/// Returns the errno nearest to an error, for one that is not of the kernel, such as a refusal of a server.
fn nearest_errno(error: &io::Error) -> c_int {
    match error.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    }
}

fn of_directory(problem: &DirectoryProblem) -> (longshore_code, c_int) {
    use DirectoryProblem as P;
    match problem {
        P::NoModel { .. } | P::NoVariant { .. } | P::NothingIncluded { .. } => {
            (longshore_code::LONGSHORE_NOT_FOUND, libc::ENOENT)
        }
        P::Incomplete { .. } | P::NoComponent { .. } => {
            (longshore_code::LONGSHORE_BAD_FORMAT, libc::EBADMSG)
        }
        _ => (longshore_code::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL),
    }
}

impl From<heap::Error> for Failure {
    fn from(error: heap::Error) -> Self {
        let (code, nearest) = of_heap(&error);
        Self::of(code, nearest, &error)
    }
}

impl From<serve::Error> for Failure {
    fn from(error: serve::Error) -> Self {
        use longshore_code as C;
        use serve::Error as E;
        use serve::Reason as R;
        let (code, nearest) = match error {
            E::Load(error) => return error.into(),
            E::Open { ref source, .. } => (C::LONGSHORE_CANNOT_OPEN, nearest_errno(source)),
            E::NotFound { .. } | E::Ambiguous { .. } | E::OtherUser { .. } => {
                (C::LONGSHORE_NOT_FOUND, libc::ENOENT)
            }
            E::Cancelled { .. } => (C::LONGSHORE_CANCELLED, libc::ECANCELED),
            E::NoServer { .. } | E::NoDefaultServer { .. } => {
                (C::LONGSHORE_SERVER, libc::ECONNREFUSED)
            }
            E::ServerGone => (C::LONGSHORE_SERVER, libc::ECONNRESET),
            E::TimedOut { .. } => (C::LONGSHORE_SERVER, libc::ETIMEDOUT),
            E::Untrustworthy { .. } => (C::LONGSHORE_SERVER, libc::EBADMSG),
            E::Refused { reason: R::NotHeld | R::NoSuchFile | R::NoModel, .. } => {
                (C::LONGSHORE_NOT_FOUND, libc::ENOENT)
            }
            E::Refused { reason: R::Denied, .. } => (C::LONGSHORE_CANNOT_OPEN, libc::EACCES),
            E::Refused { reason: R::SeveralModels, .. } => {
                (C::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL)
            }
            E::Refused { reason: R::Changed, .. } => (C::LONGSHORE_FILE_CHANGED, libc::ESTALE),
            E::Refused { reason: R::NoMemory, .. } => (C::LONGSHORE_NO_MEMORY, libc::ENOMEM),
            E::Refused { reason: R::TooMany, .. } => (C::LONGSHORE_SERVER, libc::EDQUOT),
            E::Refused { reason: R::Malformed, .. } => (C::LONGSHORE_BAD_FORMAT, libc::EBADMSG),
            E::Refused { reason: R::Unreadable | R::RemoteFailed, .. } => {
                (C::LONGSHORE_SERVER, libc::EIO)
            }
            E::Refused { reason: R::Version, .. } => (C::LONGSHORE_SERVER, libc::EPROTO),
            E::Refused { .. } | E::SocketDenied { .. } | E::UntrustedServer { .. } => {
                (C::LONGSHORE_SERVER, libc::EACCES)
            }
            E::NotAUserId { .. } => (C::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL),
            _ => (C::LONGSHORE_SYSTEM, libc::EIO),
        };
        Self::of(code, nearest, &error)
    }
}

fn of_heap(error: &heap::Error) -> (longshore_code, c_int) {
    use heap::Error as E;
    use longshore_code as C;
    match error {
        E::NoSuchHeap { .. } => (C::LONGSHORE_UNAVAILABLE, libc::ENOENT),
        E::Unavailable { .. } | E::CannotSealContent { .. } => {
            (C::LONGSHORE_UNAVAILABLE, libc::EOPNOTSUPP)
        }
        E::AboveUdmabufLimit { .. } => (C::LONGSHORE_UNAVAILABLE, libc::EFBIG),
        E::TooLong { .. } | E::OutOfMemory { .. } => (C::LONGSHORE_NO_MEMORY, libc::ENOMEM),
        E::OutOfRange { .. } => (C::LONGSHORE_INVALID_ARGUMENT, libc::EINVAL),
        _ => (C::LONGSHORE_SYSTEM, libc::EIO),
    }
}

impl Failure {
    /// Joins the messages of the chain of causes, and takes the errno of the first cause that has one.
    fn of(code: longshore_code, nearest: c_int, error: &(dyn StdError + 'static)) -> Self {
        let mut message = error.to_string();
        let mut errno = None;
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(error) = cause {
            let system = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
            errno = errno.or(system);
            cause = error.source();
            if let Some(cause) = cause {
                message = format!("{message}: {cause}");
            }
        }
        Self::new(code, errno.unwrap_or(nearest), message)
    }
}

impl From<Failure> for longshore_error {
    fn from(failure: Failure) -> Self {
        let Failure { code, errno, mut message } = failure;
        // Names of files and tensors may contain NUL and line feeds.
        message = message.replace(['\0', '\n'], " ");
        let message = CString::new(message).unwrap_or_default();
        Self { code, errno, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_errno_comes_first_and_every_error_has_one() {
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let refused = Failure::from(load::Error::Open { path: "a/b".into(), source });
        assert_eq!(refused.code, longshore_code::LONGSHORE_CANNOT_OPEN);
        assert_eq!(refused.errno, libc::EACCES);
        assert!(refused.message.starts_with("cannot open a/b: Permission denied"));

        let cancelled = Failure::from(load::Error::Cancelled { done_bytes: 1, total_bytes: 2 });
        assert_eq!(cancelled.errno, libc::ECANCELED);

        let source = io::Error::from_raw_os_error(libc::ENOSPC);
        let inner =
            heap::Error::OutOfMemory { heap: heap::Heap::Memfd, range: 0..1, len_bytes: 1, source };
        let full = Failure::from(load::Error::from(inner));
        assert_eq!((full.code, full.errno), (longshore_code::LONGSHORE_NO_MEMORY, libc::ENOSPC));
    }

    #[test]
    fn a_message_is_one_line_even_if_a_name_has_line_feeds() {
        let error = longshore_error::from(Failure::argument("a\0b\nc".to_owned()));
        assert_eq!(error.message.to_str().unwrap(), "a b c");
    }
}
