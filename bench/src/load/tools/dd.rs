//! `dd`: direct reads, one at a time.

use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::harness::metric::SPEED;
use crate::harness::subprocess::last_lines;
use crate::harness::{Measure, Sample, Trouble};
use crate::load::data::DataFile;
use crate::load::machine::{Machine, Start};
use crate::load::timed::memory_bytes;
use crate::load::units::gigabytes_per_second;

/// `dd iflag=direct bs=8M`.
pub(crate) struct Dd {
    file: DataFile,
    machine: Machine,
}

impl Dd {
    pub(crate) fn new(file: &DataFile, machine: Machine) -> Self {
        Self { file: file.clone(), machine }
    }
}

impl Measure for Dd {
    fn name(&self) -> &str {
        "dd"
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        self.machine.prepare(&self.file.path, Start::Cold, memory_bytes(self.file.len_bytes))?;
        let mut input = std::ffi::OsString::from("if=");
        input.push(&self.file.path);
        let answer = Command::new("dd")
            .env("LC_ALL", "C")
            .arg(input)
            .args(["of=/dev/null", "iflag=direct", "bs=8M"])
            .output();
        let answer = match answer {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Trouble::NotRun("dd is not installed".to_owned()));
            }
            answer => answer?,
        };
        let said = String::from_utf8_lossy(&answer.stderr);
        if !answer.status.success() {
            return Err(anyhow!("dd: {}", last_lines(&said)).into());
        }
        let (bytes, seconds) = parse(&said)?;
        if bytes != self.file.len_bytes {
            return Err(anyhow!("dd read {bytes} bytes of {}", self.file.len_bytes).into());
        }
        Ok(vec![(SPEED, gigabytes_per_second(bytes, seconds))])
    }

    fn note(&self) -> Option<String> {
        Some("direct, 8 MiB at a time, one in flight, into base pages".to_owned())
    }
}

/// `1073741824 bytes (1.1 GB, 1.0 GiB) copied, 1.36363 s, 787 MB/s`
fn parse(said: &str) -> Result<(u64, f64)> {
    let line = said.lines().find(|line| line.contains(" copied, "));
    let parsed = line.and_then(|line| {
        let bytes = line.split(' ').next()?.parse().ok()?;
        let seconds = line.split(" copied, ").nth(1)?.split(' ').next()?.parse().ok()?;
        Some((bytes, seconds))
    });
    parsed.with_context(|| format!("dd did not say how long it took: {}", last_lines(said)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_understood() {
        let said = "128+0 records in\n128+0 records out\n\
                    1073741824 bytes (1.1 GB, 1.0 GiB) copied, 1.36363 s, 787 MB/s\n";
        assert_eq!(parse(said).unwrap(), (1 << 30, 1.36363));
        assert!(parse("dd: failed to open").is_err());
    }
}
