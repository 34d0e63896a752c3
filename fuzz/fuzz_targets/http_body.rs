//! Fuzzes the answer of an HTTP server, with its body.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::http::http_body(data));
