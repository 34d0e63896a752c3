//! Fuzzes the header of a safetensors file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::checks::safetensors_header(data));
