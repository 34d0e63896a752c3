//! The system calls of each crate, compared with the lists of the manual (`docs/system-calls.md`).
//!
//! Each list has a workload (`workloads/`), which runs in a program of its own, once for each phase. When
//! that phase begins, a filter is installed that permits only the calls of the list; another call ends the
//! program with a report. Then each call that the list says is always made is taken out of the filter in
//! turn: a workload that still runs to its end does not make it.
//!
//! `cargo test -p longshore --test system_calls -- --print` prints the calls of each workload and phase.

#[cfg(target_arch = "x86_64")]
mod call;
#[cfg(target_arch = "x86_64")]
mod check;
#[cfg(target_arch = "x86_64")]
mod filter;
#[cfg(target_arch = "x86_64")]
mod names;
#[cfg(target_arch = "x86_64")]
mod page;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod suite;
#[cfg(target_arch = "x86_64")]
mod tasks;
#[cfg(target_arch = "x86_64")]
mod workloads;

#[cfg(target_arch = "x86_64")]
fn main() -> std::process::ExitCode {
    suite::main()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("SKIPPED: the lists of system calls are those of x86-64");
}
