//! The system calls of each crate, compared with the lists of the manual (`docs/system-calls.md`).
//!
//! Each list has a workload (`workloads/`), which runs in a process of its own, once for each phase.
//! When that phase begins, a seccomp filter is installed that permits only the calls of the list. Any
//! other call ends the process with a report. Then the test removes the calls listed as `always` from
//! the filter, one at a time: if the workload still runs to its end, it does not make that call.
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
