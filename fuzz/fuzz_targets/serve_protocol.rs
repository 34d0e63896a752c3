//! Fuzzes the messages of clients and servers that share models.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::serve_protocol::serve_protocol(data));
