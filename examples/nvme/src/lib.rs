//! A small NVMe driver in userspace.
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "what was not done is given back with the reason")]

pub mod bench;
pub mod command;
pub mod controller;
pub mod data;
pub mod error;
pub mod hardware;
pub mod identify;
pub mod queue;
pub mod registers;
mod rings;
pub mod status;
pub mod stream;
