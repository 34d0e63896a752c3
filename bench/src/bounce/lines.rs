//! The output of the driver in the guest: a JSON object for each scheme and round.

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::harness::cost::Cost;
use crate::harness::environment::Environment;
use crate::harness::measured::{Entry, Measured};
use crate::harness::metric::{
    BOUNCED, FLUSHES, MAP_AND_UNMAP_TIME, MAP_TIME, POOL_PEAK, SPEED, UNMAP_TIME,
};
use crate::harness::{Sample, Trouble};

/// The baseline of the ratios.
pub(super) const MAP: &str = "map + unmap";

/// The quantity that a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// The throughput.
    Throughput,
    /// The time of mapping and unmapping, by a clock that counts instructions.
    Instructions,
}

/// One run of one scheme. Other fields of a line are ignored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Line {
    scheme: String,
    block_bytes: u64,
    depth: u64,
    round: usize,
    ios: u64,
    bytes: u64,
    seconds: f64,
    bounced: u64,
    flushes: u64,
    pool_peak_bytes: u64,
    map_seconds: f64,
    unmap_seconds: f64,
}

/// The parameters that the driver was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) block_bytes: u64,
    pub(super) depth: u64,
    pub(super) rounds: usize,
    /// The number of these rounds that come first and are discarded.
    pub(super) warm_up: usize,
}

/// Reads the lines of one run: the guest's environment and the measured values.
///
/// # Errors
/// Returns an error if the lines do not match `asked`. A scheme that did not do what its name says
/// becomes a failed entry.
pub(super) fn read(
    case: &str,
    stdout: &str,
    asked: Asked,
    interest: Interest,
    note: &str,
) -> Result<(Option<Environment>, Measured)> {
    let mut environment = None;
    let mut schemes: Vec<(String, Vec<Line>)> = Vec::new();
    for text in stdout.lines().filter(|text| !text.trim().is_empty()) {
        let value: Value = serde_json::from_str(text)
            .with_context(|| format!("a line of the guest is not JSON: {text}"))?;
        if let Some(of_guest) = Environment::from_line(&value) {
            environment = Some(of_guest);
            continue;
        }
        let line: Line = serde_json::from_value(value)
            .with_context(|| format!("a line of the guest lacks a field: {text}"))?;
        if (line.block_bytes, line.depth) != (asked.block_bytes, asked.depth) {
            bail!("asked for {asked:?}, but the guest printed {text}");
        }
        match schemes.iter_mut().find(|(scheme, _)| *scheme == line.scheme) {
            Some((_, lines)) => lines.push(line),
            None => schemes.push((line.scheme.clone(), vec![line])),
        }
    }
    let mut entries = Vec::new();
    for (scheme, lines) in &schemes {
        let mut rounds: Vec<usize> = lines.iter().map(|line| line.round).collect();
        rounds.sort_unstable();
        let first = rounds.first().copied().unwrap_or(0);
        if rounds != (first..first + asked.rounds).collect::<Vec<_>>() {
            bail!(
                "{scheme}: {} rounds were asked for, but the guest printed {rounds:?}",
                asked.rounds
            );
        }
        entries.push(entry(scheme, lines, first + asked.warm_up, interest, note));
    }
    for needed in [MAP, "bounce"] {
        if !entries.iter().any(|entry| entry.candidate == needed) {
            bail!("the guest printed no line for '{needed}'");
        }
    }
    Ok((environment, Measured::new(case, entries)))
}

fn entry(scheme: &str, lines: &[Line], first: usize, interest: Interest, note: &str) -> Entry {
    let name = if scheme == "map" { MAP } else { scheme };
    let mut entry = Entry::new(name);
    let mut lines: Vec<&Line> = lines.iter().filter(|line| line.round >= first).collect();
    // A ratio is taken within a round.
    lines.sort_by_key(|line| line.round);
    if let Some(why) = lines.iter().find_map(|line| line.is_not_what_it_says()) {
        entry.give_up(Trouble::Failed(anyhow!(why)), true);
    } else {
        lines.iter().for_each(|line| entry.add(line.sample(interest), Cost::default()));
    }
    if name == MAP {
        entry.note = Some(note.to_owned());
    }
    entry
}

impl Line {
    /// Returns the reason if this run is not one of its scheme.
    fn is_not_what_it_says(&self) -> Option<String> {
        if self.ios == 0 || self.bytes != self.ios * self.block_bytes {
            return Some(format!("{} I/Os moved {} bytes", self.ios, self.bytes));
        }
        if [self.seconds, self.map_seconds, self.unmap_seconds].iter().any(|of| !of.is_finite())
            || self.seconds <= 0.0
        {
            return Some("the line has no valid times".to_owned());
        }
        match self.scheme.as_str() {
            "bounce" if self.bounced == 0 => Some("nothing was bounced".to_owned()),
            "bounce" if self.bounced < self.ios => {
                Some(format!("of {} I/Os {} were bounced", self.ios, self.bounced))
            }
            "map" if self.bounced != 0 => Some(format!("{} I/Os were bounced", self.bounced)),
            _ => None,
        }
    }

    fn sample(&self, interest: Interest) -> Sample {
        let gigabytes = self.bytes as f64 / 1e9;
        let per_io = |count: u64| count as f64 / self.ios as f64;
        let times = [
            (UNMAP_TIME, self.unmap_seconds * 1e3 / gigabytes),
            (MAP_TIME, self.map_seconds * 1e3 / gigabytes),
            (MAP_AND_UNMAP_TIME, (self.map_seconds + self.unmap_seconds) * 1e3 / gigabytes),
        ];
        let counts = [
            (BOUNCED, per_io(self.bounced)),
            (FLUSHES, per_io(self.flushes)),
            (POOL_PEAK, self.pool_peak_bytes as f64 / f64::from(1 << 20)),
        ];
        match interest {
            Interest::Throughput => {
                let speed = [(SPEED, gigabytes / self.seconds)];
                speed.into_iter().chain(times).chain(counts).collect()
            }
            Interest::Instructions => times.into_iter().chain(counts).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Against;

    const ASKED: Asked = Asked { block_bytes: 4096, depth: 64, rounds: 3, warm_up: 1 };

    fn line(scheme: &str, round: usize, seconds: f64, bounced: u64) -> String {
        format!(
            "{{\"scheme\":\"{scheme}\",\"block_bytes\":4096,\"depth\":64,\"round\":{round},\"ios\":1000,\
             \"bytes\":4096000,\"seconds\":{seconds},\"bounced\":{bounced},\"maps\":1000,\
             \"unmaps\":1000,\"copied_bytes\":0,\"flushes\":{},\"pool_peak_bytes\":2097152,\
             \"map_seconds\":0.02,\"unmap_seconds\":{}}}\n",
            1000 - bounced,
            if bounced == 0 { 0.04 } else { 0.001 },
        )
    }

    fn lines(bounced: u64) -> String {
        let mut text = "{\"environment\":{\"kernel\":\"6.12\"}}\n".to_owned();
        for round in 0..3 {
            // The discarded round is much slower.
            let slow = if round == 0 { 100.0 } else { 1.0 };
            text += &line("map", round, slow * 0.4 * (round + 1) as f64, 0);
            text += &line("bounce", round, 0.1 * (round + 1) as f64, bounced);
        }
        text
    }

    fn answer(stdout: &str, interest: Interest) -> Result<(Option<Environment>, Measured)> {
        read("guest", stdout, ASKED, interest, "beside")
    }

    #[test]
    fn throughput_is_compared_round_by_round() {
        let (environment, measured) = answer(&lines(1000), Interest::Throughput).unwrap();
        assert!(environment.is_some());
        assert_eq!(measured.failures(), 0);
        let against = [Against::new(SPEED, MAP)];
        let rows = measured.rows(&against);
        let row = |candidate: &str, metric: crate::harness::Metric| {
            rows.iter().find(|row| row.candidate == candidate && row.metric == metric.name).unwrap()
        };
        assert_eq!(row("bounce", SPEED).runs, 2);
        assert!((row("bounce", SPEED).ratio.unwrap() - 4.0).abs() < 1e-9);
        assert_eq!(row("bounce", BOUNCED).median, Some(1.0));
        assert_eq!(row(MAP, FLUSHES).median, Some(1.0));
        assert_eq!(row("bounce", POOL_PEAK).median, Some(2.0));
        assert_eq!(row(MAP, SPEED).note.as_deref(), Some("beside"));
    }

    #[test]
    fn instructions_are_counted_for_each_gigabyte() {
        let (_, measured) = answer(&lines(1000), Interest::Instructions).unwrap();
        let unmap = |of| measured.values(of, UNMAP_TIME).unwrap()[0];
        assert!((unmap(MAP) - 40.0 / 0.004_096).abs() < 1e-6);
        assert!((unmap("bounce") / unmap(MAP) - 0.025).abs() < 1e-9);
        assert!(measured.values(MAP, SPEED).is_none());
    }

    #[test]
    fn a_run_that_contradicts_its_scheme_fails_the_bench() {
        for (text, scheme, why) in [
            (lines(0), "bounce", "nothing was bounced"),
            (lines(999), "bounce", "999 were bounced"),
            (lines(1000).replace("\"bounced\":0", "\"bounced\":1"), MAP, "1 I/Os were bounced"),
            (lines(1000).replace(":4096000", ":4095999"), MAP, "moved 4095999 bytes"),
        ] {
            let (_, measured) = answer(&text, Interest::Throughput).unwrap();
            assert!(measured.failures() > 0);
            let said = measured.why_not(scheme).unwrap();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn lines_that_were_not_asked_for_are_refused() {
        let refused = |text: &str| match answer(text, Interest::Throughput) {
            Ok(_) => panic!("taken: {text}"),
            Err(error) => format!("{error:#}"),
        };
        assert!(refused("nonsense").contains("not JSON"));
        assert!(refused("{\"scheme\":\"map\"}").contains("lacks a field"));
        assert!(refused(&lines(1000).replace(":4096,", ":8192,")).contains("asked for"));
        let lost: String = lines(1000).lines().skip(2).flat_map(|line| [line, "\n"]).collect();
        assert!(refused(&lost).contains("3 rounds were asked for"), "{}", refused(&lost));
        let alone: String = (0..3).map(|round| line("map", round, 1.0, 0)).collect();
        assert!(refused(&alone).contains("no line for 'bounce'"));
        assert!(refused("").contains("no line for"));
    }
}
