//! The schemes in a guest whose kernel has dma-heap and udmabuf.
//!
//! The guest's processor is emulated, so its times are far too long. They show the ratios of the
//! schemes, and the operations that the kernel refuses.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use longshore_vm_tests::protocol::{Event, Stream};
use longshore_vm_tests::{Attach, Disk, Machine, Task, require, static_binary};
use serde_json::Value;

use crate::harness::environment::Environment;
use crate::harness::{Row, Session};
use crate::load::Context;
use crate::load::cases::{SCHEMES, SCHEMES_OURS as OURS};

/// The prefix of cases that ran in the guest.
const PREFIX: &str = "guest/";
const PROGRAM: &str = "/bin/longshore-bench";
const DISK: &str = "bench";
const SIZES: [&str; 3] = ["512KB", "8MB", "1GB"];
const LARGEST: &str = "3GB";
/// Room for a buffer, the page cache's copy, and the memory that is touched before each run.
const MEMORY_MIB: u32 = 4096;
const MEMORY_LARGEST_MIB: u32 = 8192;
const DISK_BYTES: u64 = 8 << 30;
/// An emulated processor needs about a minute for a round at 1 GB.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Runs the schemes in the guest and publishes their rows as cases `guest/schemes/SIZE`.
pub(super) fn run(context: &Context<'_>, session: &mut Session) -> Result<()> {
    let case = format!("{PREFIX}{SCHEMES}");
    if !context.options.common.wants(&case) {
        return Ok(());
    }
    match require::check() {
        Ok(()) => {}
        Err(error) if error.is_unavailable() => {
            return session.not_run(&case, OURS, &error.to_string());
        }
        Err(error) => return Err(error).context("looking for what the guest needs"),
    }
    let program = static_binary("longshore-bench", "longshore-bench")
        .context("building this program for the guest")?;
    let content = context.folder.place("guest-disk", 0)?;
    fs::create_dir_all(&content)?;
    let sizes = sizes(&context.options.scheme_size, context.options.guest_3g);
    let largest = sizes.contains(&LARGEST);
    let machine = Machine::new("bench-load")
        .memory_mib(if largest { MEMORY_LARGEST_MIB } else { MEMORY_MIB })
        .disk(Disk::ext4_from_dir(DISK, &content, DISK_BYTES).attach(Attach::Nvme))
        .binary(&program, PROGRAM);
    let rounds = session.rounds().counted.to_string();
    let at = format!("/disk/{DISK}");
    let mut argv =
        vec![PROGRAM, "load", "--json", "--filter", SCHEMES, "--dir", &at, "--rounds", &rounds];
    argv.extend(sizes.iter().flat_map(|size| ["--scheme-size", size]));
    let task = Task::command(argv).named("schemes").timeout(TIME_LIMIT);
    let outcome = machine.run_observed(&[task], &mut |event| {
        if let Event::Line { stream: Stream::Err, text, .. } = event {
            eprintln!("{PREFIX}{text}");
        }
    });
    // The guest's disk was made from this empty folder.
    let _ = fs::remove_dir(&content);
    let report = outcome.context("the guest was lost")?;
    let Some(command) = report.commands.first() else { bail!("the guest ran nothing") };
    merge(session, &command.stdout())?;
    if !command.success() {
        session.count_failure();
        let how = format!("the bench in the guest ended with {:?}", command.exit);
        session.not_run(&case, OURS, &how)?;
    }
    Ok(())
}

/// Returns the sizes that were asked for; by default all but the largest, which needs a larger guest and
/// more time.
fn sizes(asked_for: &[String], with_largest: bool) -> Vec<&str> {
    if asked_for.is_empty() {
        return SIZES.into_iter().chain(with_largest.then_some(LARGEST)).collect();
    }
    asked_for.iter().map(String::as_str).collect()
}

/// Publishes the guest's lines as rows of this session.
fn merge(session: &mut Session, stdout: &str) -> Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    for line in stdout.lines() {
        let value: Value = serde_json::from_str(line).context("a line of the guest is not JSON")?;
        if let Some(mut environment) = Environment::from_line(&value) {
            environment.set("machine", "guest, emulated processor: only ratios mean anything");
            session.add_environment(&environment)?;
            continue;
        }
        let mut row: Row = serde_json::from_value(value)?;
        // The host already has rows of the published figures.
        if row.case.starts_with(SCHEMES) {
            row.case.insert_str(0, PREFIX);
            rows.push(row);
        }
    }
    for of_case in rows.chunk_by(|one, next| one.case == next.case) {
        session.publish(of_case.to_vec())?;
    }
    Ok(())
}
