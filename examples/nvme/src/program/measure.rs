//! `bench`: each scheme in turn.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::args::BenchArgs;
use crate::bench::{self, Plan, Row};
use crate::device::{open, start};
use crate::environment::Line;
use crate::failure::{Failure, Result};

pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    let (builder, passed) = open(&args.device)?;
    // Pools free nothing within a turn, so their size at its end is the peak.
    let domain = builder.free_after(None).build();
    let (controller, namespace) = start(&domain, passed, &args.device)?;
    check(args, controller.max_transfer_bytes(), namespace.block_bytes(), namespace.len())?;
    let calibration = domain.calibrate()?;
    let doorbell_batch = args.doorbell_batch.unwrap_or(args.device.depth / 4).max(1);
    let plan = Plan {
        block_bytes: args.block,
        depth: args.device.depth,
        rounds: args.rounds,
        ios: args.ios,
        doorbell_batch,
        schemes: args.schemes.clone(),
        policy: calibration.bounce,
    };
    if args.json {
        let line = Line::new(&args.device, &controller, &namespace, &calibration, doorbell_batch);
        json_line(&line);
        bench::run(&domain, &controller, &namespace, &plan, |row| json_line(&row))?;
        return Ok(());
    }
    println!("{calibration}\n");
    let mut rows = Vec::new();
    bench::run(&domain, &controller, &namespace, &plan, |row| {
        println!("{}", text(&row));
        rows.push(row);
    })?;
    println!("\n{}", medians(&rows));
    Ok(())
}

fn check(args: &BenchArgs, max: u64, block: u64, namespace: u64) -> Result<()> {
    let refused = |text: String| Err(Failure::Arguments(text));
    match args.block {
        bytes if bytes == 0 || bytes % block != 0 => {
            refused(format!("--block {bytes} must be a multiple of the block size, {block} bytes"))
        }
        bytes if bytes > max => {
            refused(format!("--block {bytes} is more than the {max} bytes of a command"))
        }
        bytes if bytes > namespace => {
            refused(format!("--block {bytes} is more than the {namespace} bytes of the namespace"))
        }
        _ if args.ios == 0 || args.rounds == 0 || args.schemes.is_empty() => {
            refused("--ios and --rounds must be at least 1, and --schemes not empty".to_owned())
        }
        _ => Ok(()),
    }
}

/// Prints a line at once, because a program that reads the output may be waiting.
fn json_line(line: &impl serde::Serialize) {
    let text = serde_json::to_string(line).expect("numbers and text");
    // An error means that the reader has closed the pipe.
    let _ = writeln!(io::stdout().lock(), "{text}");
}

fn mib_per_second(row: &Row) -> f64 {
    row.bytes as f64 / row.seconds / f64::from(1 << 20)
}

fn text(row: &Row) -> String {
    format!(
        "{:<12} round {:<3} {:>9.1} MiB/s  {} transfers, {} bounced, {} invalidations, pools {} KiB; \
         map {:.4} s, unmap {:.4} s",
        row.scheme,
        row.round,
        mib_per_second(row),
        row.ios,
        row.bounced,
        row.flushes,
        row.pool_peak_bytes >> 10,
        row.map_seconds,
        row.unmap_seconds,
    )
}

/// Returns the median of each scheme, and its ratio to that of `map`.
fn medians(rows: &[Row]) -> String {
    let mut by_scheme = BTreeMap::<_, Vec<f64>>::new();
    for row in rows {
        by_scheme.entry(row.scheme).or_default().push(mib_per_second(row));
    }
    let median = |rates: &Vec<f64>| {
        let mut rates = rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let map = by_scheme.get("map").map(median);
    let lines = by_scheme.iter().map(|(scheme, rates)| {
        let ratio =
            map.map_or_else(String::new, |map| format!("  {:.2} x map", median(rates) / map));
        format!("{scheme:<12} median {:>9.1} MiB/s{ratio}", median(rates))
    });
    lines.collect::<Vec<_>>().join("\n")
}
