//! Fuzzes the messages of a vfio-user client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::vfio_user::vfio_user(data));
