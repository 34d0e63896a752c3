//! The version of the library.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{CStr, c_char};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version contains no NUL"),
    };

/// Returns the version of the library in use, such as `0.1.0`. That of the header is
/// `LONGSHORE_VERSION`.
///
/// @return A string that is valid as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn longshore_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Returns the version of the library in use as one number, which is greater for later versions. That
/// of the header is `LONGSHORE_VERSION_NUMBER`.
///
/// @return The major version times 65536, plus the minor one times 256, plus the patch level.
#[unsafe(no_mangle)]
pub extern "C" fn longshore_version_number() -> u32 {
    const { number(env!("CARGO_PKG_VERSION")) }
}

/// Parses `1.2.3` and ignores the rest, such as `-rc.1`.
const fn number(version: &str) -> u32 {
    let bytes = version.as_bytes();
    let (mut whole, mut part, mut at) = (0, 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            digit @ b'0'..=b'9' => part = part * 10 + (digit - b'0') as u32,
            b'.' => (whole, part) = ((whole + part) * 256, 0),
            _ => break,
        }
        at += 1;
    }
    whole + part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_version_is_a_greater_number() {
        assert_eq!(number("0.1.0"), 0x0000_0100);
        assert_eq!(number("1.2.3-rc.1"), 0x0001_0203);
        assert_eq!(number("12.0.255"), 0x000c_00ff);
        assert_eq!(longshore_version_number(), number(VERSION.to_str().unwrap()));
    }
}
