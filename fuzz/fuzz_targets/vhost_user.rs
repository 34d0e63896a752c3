//! Fuzzes the messages of a vhost-user front-end.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::vhost_user::vhost_user(data));
