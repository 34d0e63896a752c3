//! Fuzzes the header of a GGUF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::gguf::gguf_header(data));
