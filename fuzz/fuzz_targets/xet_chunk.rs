//! Fuzzes the chunks of a xorb.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::xet::xet_chunk(data));
