//! The benchmarks of Longshore: the cases of published tables, measured here, beside other programs and
//! crates.
//!
//! ```text
//!   longshore-bench NAME ──► measure ─────────► Session ──► rows: table or JSON, results, goals
//!                                 │
//!                                 └──► cases ──► candidates, alternating ──► a process for each run
//!   longshore-bench report ──► rows of every bench ──► one HTML page
//! ```
//!
//! `README.md` describes how to run a bench, the fields of its lines, and how to add one.

mod access;
mod bounce;
mod harness;
mod iov;
mod load;
mod node;
mod pagetable;
mod programs;
mod remote;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use harness::CommonOptions;

/// Measures Longshore beside other programs and beside published figures.
///
/// Every ratio is against a named candidate that ran in the same minutes, in alternation.
#[derive(Parser)]
#[command(name = "longshore-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Files into buffers: the disk's limit, the page cache, the eight published schemes, peers
    Load(load::Load),
    /// Cursors: each kind of memory, copies, checksums and digests in bytes per cycle
    Iov(CommonOptions),
    /// IO page tables: map, unmap, look up, scan, beside other crates and a published table
    Pagetable(CommonOptions),
    /// Memory by IOVA: reads, writes and unmapping beside vm-memory and a published table of locks
    Access(CommonOptions),
    /// Mappings for devices: map and unmap against bounce buffers, on the host and for an NVMe in a guest
    Bounce(bounce::Bounce),
    /// Whole programs beside each other: longshore load, cat, cp, dd, fio, Python, in ten minutes
    Programs(programs::Programs),
    /// Published models beside the page cache and a copy: publishing, several processes, llama.cpp
    Node(node::Node),
    /// Models of a server on this machine: HTTP and TLS beside a bare loop and curl, and slow connections
    Remote(remote::Remote),
    /// Receives a file by a bare loop: a candidate of the bench `remote`
    #[command(hide = true)]
    Receive(remote::receive::Receive),
    /// All benches as one HTML page: published tables beside ours, peers, goals, machines
    Report(report::Report),
    /// Maps a file, reads it, and waits: one of several processes of the bench `node`
    #[command(hide = true)]
    Reader {
        /// The file
        path: std::path::PathBuf,
    },
    /// One job in a process of its own, started by a bench
    #[command(hide = true)]
    Worker {
        /// The job, as JSON
        job: String,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Load(options) => load::BENCH.run(&options, &options.common, load::measure),
        Command::Iov(common) => iov::BENCH.run(&common, &common, iov::measure),
        Command::Pagetable(common) => pagetable::BENCH.run(&common, &common, pagetable::measure),
        Command::Access(common) => access::BENCH.run(&common, &common, access::measure),
        Command::Bounce(options) => bounce::BENCH.run(&options, &options.common, bounce::measure),
        Command::Programs(options) => {
            programs::BENCH.run(&options, &options.common, programs::measure)
        }
        Command::Node(options) => node::BENCH.run(&options, &options.common, node::measure),
        Command::Remote(options) => remote::BENCH.run(&options, &options.common, remote::measure),
        Command::Receive(options) => remote::receive::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Reader { path } => node::read(&path).map(|()| ExitCode::SUCCESS),
        Command::Report(report) => report.write(),
        Command::Worker { job } => load::worker::serve(&job).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("longshore-bench: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
