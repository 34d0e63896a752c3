//! Fuzzes the index of a model in shards.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::checks::shard_index(data));
