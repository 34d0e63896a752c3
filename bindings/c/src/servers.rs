//! The options of files on servers, which loads and streams have.
#![expect(unsafe_code, reason = "reads the array and strings of C structs")]

use std::ffi::c_char;
use std::mem::offset_of;
use std::time::Duration;

use longshore_remote::Remote;

use crate::error::Failure;
use crate::ffi;

/// The largest number of connections.
const CONNECTIONS_MAX: u64 = 256;

/// An option of object stores, such as `aws_endpoint_url`. The names are those of the Rust crate
/// `object_store`. The value can be secret: no error shows it.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "C's name")]
#[allow(missing_debug_implementations, reason = "the value can be secret")]
pub struct longshore_storage_option {
    /// The name.
    pub name: *const c_char,
    /// The value, in UTF-8.
    pub value: *const c_char,
}

const _: () = {
    assert!(size_of::<longshore_storage_option>() == 16);
    assert!(offset_of!(longshore_storage_option, value) == 8);
};

/// Makes the access to servers.
///
/// # Safety
/// `options` is NULL, not aligned, or points to `count` elements, whose strings are NULL or end with NUL.
pub(crate) unsafe fn access(
    options: *const longshore_storage_option,
    count: usize,
    timeout_ms: u64,
) -> Result<Remote, Failure> {
    let mut remote = Remote::new();
    if count > 0 {
        ffi::checked(options, "options: storage_options")?;
    }
    for index in 0..count {
        let field = |name: &str| format!("options: storage_options[{index}].{name}");
        let place = options.wrapping_add(index);
        // SAFETY: the array has this element, and is neither NULL nor misaligned.
        let longshore_storage_option { name, value } = unsafe { place.read() };
        // SAFETY: NULL or a string, by this function's contract.
        let name = unsafe { text(name, || field("name")) }?;
        // SAFETY: as above.
        let value = unsafe { text(value, || field("value")) }?;
        remote = remote
            .storage_option(name, value)
            .map_err(|error| Failure::argument(format!("{}: {error}", field("name"))))?;
    }
    Ok(match timeout_ms {
        0 => remote,
        limit => remote.time_limit(Duration::from_millis(limit)),
    })
}

/// Borrows a text. Errors do not show it.
///
/// # Safety
/// `pointer` is NULL, or a string that ends with NUL and does not change during `'a`.
unsafe fn text<'a>(pointer: *const c_char, field: impl Fn() -> String) -> Result<&'a str, Failure> {
    // SAFETY: by this function's contract.
    let text = unsafe { ffi::optional_string(pointer) };
    let text = text.ok_or_else(|| Failure::argument(format!("{} is NULL", field())))?;
    text.to_str().map_err(|_| Failure::argument(format!("{} is not UTF-8", field())))
}

/// Parses `connections`; 0 is the default.
pub(crate) fn connections(count: u64) -> Result<Option<usize>, Failure> {
    match count {
        0 => Ok(None),
        1..=CONNECTIONS_MAX => Ok(Some(count as usize)),
        _ => Err(Failure::argument(format!(
            "options: connections is {count}, which is more than {CONNECTIONS_MAX}"
        ))),
    }
}
