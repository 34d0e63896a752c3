//! Fuzzes operations on cursors over memory of every kind.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::cursor::iov_cursor(data));
