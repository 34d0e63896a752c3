//! The program of `examples/nvme` in a guest, behind each virtual IOMMU.
//!
//! ```text
//!   host: this bench              guest: Linux 6.12, plain TCG
//!   ────────────────              ─────────────────────────────
//!   Machine ──────────────────► /bin/nvme bind … vfio-pci
//!   a command for each block    /bin/nvme bench, one process each
//!   size and queue depth           │ map + unmap, bounce, static, policy, alternating
//!   lines ◄── JSON ────────────────┘          NVMe on a disk that reads as zeros
//! ```
//!
//! The guest's processor is emulated, so there are two kinds of runs: throughput is measured by elapsed
//! time, and map and unmap time by a clock that counts the guest's instructions.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use longshore_vm_tests::protocol::{Event, Stream};
use longshore_vm_tests::{Iommu, Machine, Task, require, static_binary};
use serde_json::json;

use super::lines::{self, Asked, Interest, MAP};
use crate::harness::metric::{MAP_AND_UNMAP_TIME, MAP_TIME, SPEED, UNMAP_TIME};
use crate::harness::program::last_lines;
use crate::harness::{Against, CommonOptions, Row, Session, published};

/// The PCI address of the device, for QEMU and for Linux.
const SLOT: &str = "05.0";
const ADDRESS: &str = "0000:00:05.0";
/// The package of the program, and its path in the guest.
const DRIVER: &str = "longshore-nvme-example";
const PROGRAM: &str = "/bin/nvme";
const DISK_BYTES: u64 = 1 << 30;
/// The case name if the whole guest does not run.
const ALL: &str = "guest";
/// An emulated processor is slow.
const TIME_LIMIT: Duration = Duration::from_secs(3600);
/// Fewer rounds suffice with the instruction clock, which repeats to within 1%.
const ROUNDS_COUNTING: usize = 3;

const BLOCKS: [(&str, u64); 4] =
    [("4k", 4 << 10), ("16k", 16 << 10), ("64k", 64 << 10), ("128k", 128 << 10)];
const DEPTHS: [u64; 2] = [1, 64];
/// The queue depth of the published table.
const DEPTH_PUBLISHED: u64 = 64;
const IOMMUS: [(&str, Iommu); 2] = [("virtio-iommu", Iommu::Virtio), ("intel-iommu", Iommu::Intel)];

/// A case: one run of the driver.
struct Case {
    name: String,
    block: &'static str,
    block_bytes: u64,
    depth: u64,
}

impl Interest {
    fn cases(self, iommu: &str) -> Vec<Case> {
        let case = |(block, block_bytes), depth| {
            let what = match self {
                Self::Throughput => format!("depth {depth}"),
                Self::Instructions => "instructions".to_owned(),
            };
            Case { name: format!("{ALL}, {iommu}, {block}, {what}"), block, block_bytes, depth }
        };
        match self {
            Self::Throughput => {
                DEPTHS.iter().flat_map(|depth| BLOCKS.map(|block| case(block, *depth))).collect()
            }
            Self::Instructions => BLOCKS.map(|block| case(block, DEPTH_PUBLISHED)).into(),
        }
    }

    /// Returns the number of I/Os in a round.
    fn ios(self, block_bytes: u64) -> u64 {
        let bytes: u64 = match self {
            Self::Throughput => 64 << 20,
            Self::Instructions => 128 << 20,
        };
        (bytes / block_bytes).clamp(512, 8192)
    }

    fn machine(self, name: &str, iommu: Iommu) -> Machine {
        let machine = Machine::new(name).iommu(iommu).cpus(1);
        match self {
            // For some seconds after boot the kernel has work of its own.
            Self::Throughput => machine.settle(Duration::from_secs(5)),
            Self::Instructions => machine.counting_instructions(),
        }
    }

    /// Returns the note that the reader of the rows needs.
    fn note(self) -> &'static str {
        match self {
            Self::Throughput => {
                "by an emulated processor: time under TCG is not time on hardware, so this is not the \
                 published column"
            }
            Self::Instructions => {
                "the guest's instructions, a nanosecond each: not the cost of the trap to the hypervisor \
                 that bouncing avoids, so this is not the published column"
            }
        }
    }
}

/// Runs every case that the options select, with one boot for each IOMMU and kind of run.
pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let mut boots = Vec::new();
    for interest in [Interest::Throughput, Interest::Instructions] {
        for (name, iommu) in IOMMUS {
            let mut cases = interest.cases(name);
            cases.retain(|case| options.wants(&case.name));
            if !cases.is_empty() {
                boots.push((interest, name, iommu, cases));
            }
        }
    }
    if boots.is_empty() {
        return Ok(());
    }
    match require::check() {
        Ok(()) => {}
        Err(error) if error.is_unavailable() => {
            return session.not_run(ALL, "bounce", &error.to_string());
        }
        Err(error) => return Err(error).context("looking for what the guest needs"),
    }
    let program = static_binary(DRIVER, DRIVER).context("building the driver for the guest")?;
    let block = json!({
        "driver": "null-co", "node-name": "null", "size": DISK_BYTES, "read-zeroes": true,
    });
    for (interest, name, iommu, cases) in boots {
        let machine = interest
            .machine("bench-bounce", iommu)
            .module("vfio-pci")
            .module("vfio_iommu_type1")
            .qemu_args(["-blockdev", &block.to_string()])
            .device(format!("nvme,addr={SLOT},drive=null,serial=bench"))
            .binary(&program, PROGRAM);
        run_in(&machine, interest, (name, &cases), session)?;
    }
    Ok(())
}

/// Runs the cases of one boot.
fn run_in(
    machine: &Machine,
    interest: Interest,
    (iommu, cases): (&str, &[Case]),
    session: &mut Session,
) -> Result<()> {
    let rounds = session.rounds();
    let counted = match interest {
        Interest::Throughput => rounds.counted,
        Interest::Instructions => rounds.counted.min(ROUNDS_COUNTING),
    };
    let rounds = rounds.warm_up + counted;
    // virtio-iommu has no interrupt remapping, and the device is a trusted one, made by this bench.
    let bind = [PROGRAM, "bind", "--device", ADDRESS, "vfio-pci", "--allow-unsafe-interrupts"];
    let mut tasks = vec![Task::command(bind).named("bind")];
    for case in cases {
        let (block, depth, ios) = (case.block_bytes, case.depth, interest.ios(case.block_bytes));
        let line = format!(
            "{PROGRAM} bench --device {ADDRESS} --backend vfio --block {block} --depth {depth} \
             --rounds {rounds} --ios {ios} --json"
        );
        let task = Task::command(line.split_whitespace()).named(&case.name);
        tasks.push(task.timeout(TIME_LIMIT));
    }
    let outcome = machine.run_observed(&tasks, &mut |event| match event {
        Event::Line { stream: Stream::Err, text, .. } => eprintln!("{iommu}: {text}"),
        Event::Begin { task, .. } => eprintln!("{task}"),
        _ => {}
    });
    let report = outcome.context("the guest was lost")?;
    let mut commands = report.commands.iter();
    let Some(bound) = commands.next() else { bail!("the guest ran nothing") };
    if !bound.success() {
        bail!("the guest did not give the device to vfio-pci: {:?}", bound.lines);
    }
    let mut has_environment = false;
    for (case, command) in cases.iter().zip(commands) {
        let (block_bytes, depth, warm_up) = (case.block_bytes, case.depth, rounds - counted);
        let asked = Asked { block_bytes, depth, rounds, warm_up };
        let answer = if command.success() {
            lines::read(&case.name, &command.stdout(), asked, interest, interest.note())
        } else {
            let said: Vec<&str> = command.lines.iter().map(|(_, text)| text.as_str()).collect();
            let why = last_lines(&said.join("\n"));
            Err(anyhow!("the driver ended with {:?}: {why}", command.exit))
        };
        let (environment, measured) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                session.count_failure();
                session.not_run(&case.name, "bounce", &format!("{error:#}"))?;
                continue;
            }
        };
        if let Some(mut environment) = environment
            && !std::mem::replace(&mut has_environment, true)
        {
            environment.set("machine", "guest, emulated processor: only ratios mean anything");
            environment.set("iommu", iommu);
            environment.set("counts_instructions", interest == Interest::Instructions);
            session.add_environment(&environment)?;
        }
        for _ in 0..measured.failures() {
            session.count_failure();
        }
        let against = [SPEED, UNMAP_TIME, MAP_TIME, MAP_AND_UNMAP_TIME];
        let against = against.map(|metric| Against::new(metric, MAP));
        let mut rows = measured.rows(&against);
        rows.extend(published_rows(interest, iommu, case)?);
        session.publish(rows)?;
    }
    Ok(())
}

/// Returns the published figures of a case, if there are any: for virtio-iommu, with 64 I/Os in flight.
fn published_rows(interest: Interest, iommu: &str, case: &Case) -> Result<Vec<Row>> {
    if iommu != "virtio-iommu" || case.depth != DEPTH_PUBLISHED {
        return Ok(Vec::new());
    }
    let csv = published::read("bounce")?;
    let line = csv.lines.iter().find(|line| line[0] == case.block);
    let number =
        |field| line.and_then(|line| csv.number(line, field)).context("bounce.csv: too short");
    // The table has the reductions, to two decimals, so the rest is rounded to two decimals.
    let left = |cut: f64| ((1.0 - cut) * 100.0).round() / 100.0;
    let row = |metric, ratio, note: &str| Row {
        baseline: Some(format!("published: {MAP}")),
        ratio: Some(ratio),
        note: Some(note.to_owned()),
        ..Row::of(&case.name, "published: bounce", metric)
    };
    Ok(match interest {
        Interest::Throughput => {
            let note = "an i5-10210U and its hypervisor, virtio-iommu, 64 in flight";
            vec![row(SPEED, number("throughput")?, note)]
        }
        Interest::Instructions => {
            let note = "time on an i5-10210U, traps included; for map the table gives only a reduction \
                        of more than 99%";
            vec![
                row(UNMAP_TIME, left(number("unmap_time_cut")?), note),
                row(MAP_TIME, left(number("map_time_cut")?), note),
            ]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_name_existing_cases_for_every_block_and_depth() {
        let names = |interest: Interest| -> Vec<String> {
            let cases = IOMMUS.iter().flat_map(|(iommu, _)| interest.cases(iommu));
            cases.map(|case| case.name).collect()
        };
        let throughput = names(Interest::Throughput);
        assert_eq!(throughput.len(), 16);
        assert!(throughput.contains(&"guest, intel-iommu, 16k, depth 1".to_owned()));
        let counted = names(Interest::Instructions);
        assert_eq!(counted.len(), 8);
        let goals: serde_json::Value =
            serde_json::from_str(include_str!("../../goals/bounce.json")).unwrap();
        let of_guest: Vec<&str> = goals
            .as_array()
            .unwrap()
            .iter()
            .map(|goal| goal["case"].as_str().unwrap())
            .filter(|case| case.starts_with(ALL))
            .collect();
        assert_eq!(of_guest.len(), 8 + 4 + 16);
        for case in of_guest {
            assert!(throughput.iter().chain(&counted).any(|name| name == case), "{case}");
        }
    }

    #[test]
    fn published_figures_are_rows_of_their_cases() {
        let rows = |interest: Interest, iommu: &str| {
            let cases = interest.cases(iommu);
            let rows = cases.iter().map(|case| published_rows(interest, iommu, case));
            rows.flat_map(Result::unwrap).filter_map(|row| row.ratio).collect::<Vec<_>>()
        };
        assert_eq!(rows(Interest::Throughput, "virtio-iommu"), [2.8, 4.7, 3.6, 3.6]);
        let times = [0.03, 0.01, 0.06, 0.01, 0.1, 0.01, 0.13, 0.01];
        assert_eq!(rows(Interest::Instructions, "virtio-iommu"), times);
        assert!(rows(Interest::Throughput, "intel-iommu").is_empty());
    }
}
