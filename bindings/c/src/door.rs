//! What every door does: check pointers, keep panics in, hand errors out.
#![expect(unsafe_code, reason = "turns the pointers that C passes into references")]

use std::any::Any;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Failure, longshore_code, longshore_error};

/// A place of the caller's for one pointer or value, checked and set to its empty value.
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
        // SAFETY: `new` checked it, and whoever called that promised that it lasts.
        unsafe { self.place.write(value) }
    }
}

/// Where a door puts what went wrong, if the caller wants to know.
pub(crate) struct ErrorOut(Option<Out<*mut longshore_error>>);

impl ErrorOut {
    /// # Safety
    /// As [`Out::new`].
    pub(crate) unsafe fn new(place: *mut *mut longshore_error) -> Self {
        // SAFETY: as promised to this function. NULL means that nobody wants it.
        Self(unsafe { Out::new(place, "error", std::ptr::null_mut()) }.ok())
    }

    /// Runs what is behind a door that can fail. A panic is a failure too.
    pub(crate) fn guard(self, body: impl FnOnce() -> Result<(), Failure>) -> longshore_code {
        let outcome = catch_unwind(AssertUnwindSafe(body))
            .unwrap_or_else(|panic| Err(Failure::panicked(&described(panic.as_ref()))));
        // Whatever was thrown is dropped within, as its destructor may throw as well.
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

/// Runs what is behind a door that has nothing to say of failures but `fallback`.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(_)) | Err(_) => fallback,
    }
}

/// Frees what [`Box::into_raw`] gave; NULL is nothing.
///
/// # Safety
/// `pointer` is NULL, or came from `Box::into_raw` and is not used by anybody any more.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if checked(pointer, "").is_ok() {
        // SAFETY: it came from `Box::into_raw`, and nobody else frees it.
        let owned = unsafe { Box::from_raw(pointer) };
        guarded((), || {
            drop(owned);
            Ok(())
        });
    }
}

/// # Safety
/// `pointer` is NULL, not aligned, or points to a `T` that nobody changes during `'a`.
pub(crate) unsafe fn borrow<'a, T>(
    pointer: *const T,
    name: &'static str,
) -> Result<&'a T, Failure> {
    checked(pointer, name)?;
    // SAFETY: it is neither NULL nor misaligned, and so a `T` for as long as the caller says.
    Ok(unsafe { &*pointer })
}

/// # Safety
/// `pointer` is NULL, or a string that ends with NUL and that nobody changes during `'a`.
pub(crate) unsafe fn string<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<&'a CStr, Failure> {
    checked(pointer, name)?;
    // SAFETY: it is not NULL, and so ends with NUL.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// A string that may be left out.
///
/// # Safety
/// As [`string`].
pub(crate) unsafe fn optional_string<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as promised to this function.
    unsafe { string(pointer, "") }.ok()
}

/// The strings that an array of `count` pointers points to.
///
/// # Safety
/// `pointer` is NULL, not aligned, or points to `count` pointers as [`string`] takes.
pub(crate) unsafe fn strings<'a>(
    pointer: *const *const c_char,
    count: usize,
    name: &'static str,
) -> Result<Vec<&'a CStr>, Failure> {
    checked(pointer, name)?;
    if count > isize::MAX as usize / size_of::<*const c_char>() {
        return Err(Failure::argument(format!(
            "{name} has {count} elements: more than there can be"
        )));
    }
    // SAFETY: neither NULL nor misaligned, and no longer than memory; the caller vouches for it.
    let pointers = unsafe { std::slice::from_raw_parts(pointer, count) };
    let mut strings = Vec::with_capacity(count);
    for (index, each) in pointers.iter().enumerate() {
        if each.is_null() {
            return Err(Failure::argument(format!("{name}[{index}] is NULL")));
        }
        // SAFETY: it is not NULL, and so ends with NUL.
        strings.push(unsafe { CStr::from_ptr(*each) });
    }
    Ok(strings)
}

/// A pointer that is neither NULL nor misaligned; more cannot be told.
pub(crate) fn checked<T>(pointer: *const T, name: &'static str) -> Result<(), Failure> {
    if pointer.is_null() {
        Err(Failure::argument(format!("{name} is NULL")))
    } else if !pointer.is_aligned() {
        Err(Failure::argument(format!(
            "{name} is {pointer:p}, which is no multiple of {}",
            align_of::<T>()
        )))
    } else {
        Ok(())
    }
}

/// What a panic said.
fn described(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it did not say why".to_owned())
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::error::{longshore_error_code, longshore_error_free, longshore_error_message};

    /// What a door that runs `body` returns, and the message of its error.
    fn through(body: impl FnOnce() -> Result<(), Failure>) -> (longshore_code, Option<String>) {
        let mut error = ptr::dangling_mut();
        // SAFETY: a place of this function's own.
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
        // SAFETY: it came out of a door and is used no more.
        unsafe { longshore_error_free(error) };
        (code, Some(message))
    }

    #[test]
    fn a_panic_comes_out_as_an_error() {
        for (code, message) in [
            through(|| panic!("word")),
            through(|| panic!("{}", "word")),
            through(|| std::panic::panic_any(7)),
        ] {
            assert_eq!(code, longshore_code::LONGSHORE_INTERNAL);
            let message = message.unwrap();
            assert!(message.contains("word") || message.contains("did not say"), "{message}");
        }
        assert_eq!(guarded(-1, || panic!("word")), -1);
    }

    #[test]
    fn success_leaves_no_error_and_nobody_need_ask_for_one() {
        assert_eq!(through(|| Ok(())), (longshore_code::LONGSHORE_OK, None));
        // SAFETY: NULL is allowed.
        let out = unsafe { ErrorOut::new(ptr::null_mut()) };
        let code = out.guard(|| Err(Failure::argument("x".to_owned())));
        assert_eq!(code, longshore_code::LONGSHORE_INVALID_ARGUMENT);
    }

    #[test]
    fn pointers_that_cannot_be_right_are_refused() {
        assert_eq!(checked(ptr::null::<u64>(), "p").unwrap_err().message, "p is NULL");
        let odd = ptr::without_provenance::<u64>(9);
        let refused = checked(odd, "p").unwrap_err();
        assert_eq!(refused.message, "p is 0x9, which is no multiple of 8");
        let many = ptr::dangling::<*const c_char>();
        // SAFETY: so many are refused before they are looked at.
        let refused = unsafe { strings(many, usize::MAX, "paths") }.unwrap_err();
        assert!(
            refused.message.starts_with("paths has 18446744073709551615"),
            "{}",
            refused.message
        );
    }
}
