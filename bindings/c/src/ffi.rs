//! The common part of all entry points: checks pointers, catches panics, returns errors.
#![expect(unsafe_code, reason = "turns the pointers that C passes into references")]

use std::any::Any;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::{Failure, longshore_code, longshore_error};

/// The address of an output argument, checked and set to its empty value.
pub(crate) struct Out<T> {
    place: *mut T,
}

impl<T: Copy> Out<T> {
    /// # Safety
    /// `place` is NULL, not aligned, or valid for writes of a `T` for as long as this lives.
    pub(crate) unsafe fn new(place: *mut T, name: &'static str, empty: T) -> Result<Self, Failure> {
        checked(place, name)?;
        // SAFETY: it is neither NULL nor misaligned, and so valid for writes.
        unsafe { place.write(empty) };
        Ok(Self { place })
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: `new` checked it, and by its contract it is valid while `self` lives.
        unsafe { self.place.write(value) }
    }
}

/// The output argument for an error, if the caller passes one.
pub(crate) struct ErrorOut(Option<Out<*mut longshore_error>>);

impl ErrorOut {
    /// # Safety
    /// The same as for [`Out::new`].
    pub(crate) unsafe fn new(place: *mut *mut longshore_error) -> Self {
        // SAFETY: by this function's contract. NULL means that the caller ignores errors.
        Self(unsafe { Out::new(place, "error", std::ptr::null_mut()) }.ok())
    }

    /// Runs the body of an entry point that can fail. A panic becomes an error.
    pub(crate) fn guard(self, body: impl FnOnce() -> Result<(), Failure>) -> longshore_code {
        let outcome = catch_unwind(AssertUnwindSafe(body))
            .unwrap_or_else(|panic| Err(Failure::panicked(&described(panic.as_ref()))));
        match outcome {
            Ok(()) => longshore_code::LONGSHORE_OK,
            Err(failure) => {
                let code = failure.code;
                if let Some(out) = self.0 {
                    out.put(Box::into_raw(Box::new(longshore_error::from(failure))));
                }
                code
            }
        }
    }
}

/// Runs the body of an entry point that reports failures only by returning `fallback`.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(_)) | Err(_) => fallback,
    }
}

/// Frees a pointer from [`Box::into_raw`]; does nothing if it is NULL.
///
/// # Safety
/// `pointer` is NULL, or came from `Box::into_raw` and is not used any more.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if checked(pointer, "").is_ok() {
        // SAFETY: it came from `Box::into_raw`, and it is not freed elsewhere.
        let owned = unsafe { Box::from_raw(pointer) };
        guarded((), || {
            drop(owned);
            Ok(())
        });
    }
}

/// # Safety
/// `pointer` is NULL, not aligned, or points to a `T` that does not change during `'a`.
pub(crate) unsafe fn borrow<'a, T>(
    pointer: *const T,
    name: &'static str,
) -> Result<&'a T, Failure> {
    checked(pointer, name)?;
    // SAFETY: it is neither NULL nor misaligned, and so it points to a `T` during `'a`.
    Ok(unsafe { &*pointer })
}

/// # Safety
/// `pointer` is NULL, or a string that ends with NUL and does not change during `'a`.
pub(crate) unsafe fn string<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<&'a CStr, Failure> {
    checked(pointer, name)?;
    // SAFETY: it is not NULL, and so ends with NUL.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// Borrows a string that may be NULL.
///
/// # Safety
/// The same as for [`string`].
pub(crate) unsafe fn optional_string<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by this function's contract.
    unsafe { string(pointer, "") }.ok()
}

/// Borrows the strings of an array of `count` pointers.
///
/// # Safety
/// `pointer` is NULL, not aligned, or points to `count` pointers that meet the contract of [`string`].
pub(crate) unsafe fn strings<'a>(
    pointer: *const *const c_char,
    count: usize,
    name: &'static str,
) -> Result<Vec<&'a CStr>, Failure> {
    checked(pointer, name)?;
    if count > isize::MAX as usize / size_of::<*const c_char>() {
        return Err(Failure::argument(format!(
            "{name} has {count} elements, which is more than memory can hold"
        )));
    }
    // SAFETY: neither NULL nor misaligned, no longer than memory, and valid by the contract.
    let pointers = unsafe { std::slice::from_raw_parts(pointer, count) };
    let mut strings = Vec::new();
    if strings.try_reserve(count).is_err() {
        return Err(Failure::argument(format!(
            "there is no memory for {name} of {count} elements"
        )));
    }
    for (index, each) in pointers.iter().enumerate() {
        if each.is_null() {
            return Err(Failure::argument(format!("{name}[{index}] is NULL")));
        }
        // SAFETY: it is not NULL, and so ends with NUL.
        strings.push(unsafe { CStr::from_ptr(*each) });
    }
    Ok(strings)
}

/// Returns a string as a path.
pub(crate) fn path(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

/// Checks that a pointer is neither NULL nor misaligned; other errors cannot be detected.
pub(crate) fn checked<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        Err(Failure::argument(format!("{name} is NULL")))
    } else if !pointer.is_aligned() {
        Err(Failure::argument(format!(
            "{name} is {pointer:p}, which is not a multiple of {}",
            align_of::<T>()
        )))
    } else {
        Ok(())
    }
}

/// Returns the message of a panic.
fn described(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the panic has no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::error::{longshore_error_code, longshore_error_free, longshore_error_message};

    /// Runs an entry point with `body` and returns its code and the message of its error.
    fn through(body: impl FnOnce() -> Result<(), Failure>) -> (longshore_code, Option<String>) {
        let mut error = ptr::dangling_mut();
        // SAFETY: the address of a local variable.
        let code = unsafe { ErrorOut::new(&raw mut error) }.guard(body);
        if error.is_null() {
            return (code, None);
        }
        // SAFETY: not NULL, so it is an error.
        assert_eq!(unsafe { longshore_error_code(error) }, code);
        // SAFETY: as above.
        let message = unsafe { longshore_error_message(error) };
        // SAFETY: a message ends with NUL and lasts as long as the error.
        let message = unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned();
        // SAFETY: the entry point returned it, and it is not used any more.
        unsafe { longshore_error_free(error) };
        (code, Some(message))
    }

    #[test]
    fn a_panic_becomes_an_error() {
        for (code, message) in [
            through(|| panic!("word")),
            through(|| panic!("{}", "word")),
            through(|| std::panic::panic_any(7)),
        ] {
            assert_eq!(code, longshore_code::LONGSHORE_INTERNAL);
            let message = message.unwrap();
            assert!(message.contains("word") || message.contains("no message"), "{message}");
        }
        assert_eq!(guarded(-1, || panic!("word")), -1);
    }

    #[test]
    fn success_stores_no_error_and_the_error_argument_is_optional() {
        assert_eq!(through(|| Ok(())), (longshore_code::LONGSHORE_OK, None));
        // SAFETY: NULL is allowed.
        let out = unsafe { ErrorOut::new(ptr::null_mut()) };
        let code = out.guard(|| Err(Failure::argument("x".to_owned())));
        assert_eq!(code, longshore_code::LONGSHORE_INVALID_ARGUMENT);
    }

    #[test]
    fn invalid_pointers_are_refused() {
        assert_eq!(checked(ptr::null::<u64>(), "p").unwrap_err().message, "p is NULL");
        let odd = ptr::without_provenance::<u64>(9);
        let refused = checked(odd, "p").unwrap_err();
        assert_eq!(refused.message, "p is 0x9, which is not a multiple of 8");
        let many = ptr::dangling::<*const c_char>();
        // SAFETY: the count is refused before any element is read.
        let refused = unsafe { strings(many, usize::MAX, "paths") }.unwrap_err();
        assert!(
            refused.message.starts_with("paths has 18446744073709551615"),
            "{}",
            refused.message
        );
    }
}
