//! `longshore-nvme-example`: a program that uses the NVMe driver.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod device;
mod environment;
mod failure;
mod program;
mod sysfs;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    match program::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longshore-nvme-example: {error}");
            ExitCode::FAILURE
        }
    }
}
