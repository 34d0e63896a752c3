//! Fuzzes the description of a range of a file in Xet storage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::xet::xet_plan(data));
