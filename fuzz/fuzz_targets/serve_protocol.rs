//! Fuzzes what clients and servers of shared models may send.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::serve_protocol::serve_protocol(data));
