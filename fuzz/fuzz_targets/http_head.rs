//! Fuzzes the head of an HTTP response.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::http::http_head(data));
