//! The guest's only program: its init, which executes the plan, and the tests that the plan names.
//!
//! ```text
//!   /init                    as process 1: mounts, loads modules, executes the plan, powers off
//!   /init --test NAME        one test, in a process of its own
//!   /init --peer ROLE        the second process of a test that needs two
//!   /init --list             the names of all tests; also works on the host
//!   /init --facts            facts about this machine, as JSON
//! ```

mod facts;
mod init;
mod leftovers;
mod mapped;
mod outcome;
mod peer;
mod suite;

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    if rustix::process::getpid().is_init() {
        init::run();
    }
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--test", name] => suite::run_one(name),
        ["--peer", role] => peer::run(role),
        ["--list"] => print(&suite::names().join("\n")),
        ["--facts"] => print(&facts::gather().to_string()),
        _ => {
            eprintln!("usage: --list | --facts | --test SUITE::TEST");
            ExitCode::from(2)
        }
    }
}

fn print(text: &str) -> ExitCode {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
