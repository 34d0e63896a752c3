//! Fuzzes what a vfio-user client may send.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_fuzz::vfio_user::vfio_user(data));
