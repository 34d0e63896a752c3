//! Fuzzes a manifest of checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::manifest::manifest(data));
