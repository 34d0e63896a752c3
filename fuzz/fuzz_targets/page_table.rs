//! Fuzzes operations on page tables of every format.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::page_table::page_table(data));
