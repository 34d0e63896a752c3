//! `fio`: what the disk gives, which is the limit of a cold load.
//!
//! Into 2 MiB pages, because into base pages a disk was seen to give a third: a limit measured so
//! would flatter everyone. fio gets such pages where the C library asks for them, and whether it
//! did is looked up while it runs.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::harness::metric::SPEED;
use crate::harness::subprocess::last_lines;
use crate::harness::{Measure, Sample, Trouble};
use crate::load::data::DataFile;
use crate::load::machine::{Machine, Start};
use crate::load::timed::memory_bytes;
use crate::load::units::gigabytes_per_second;

const DEPTH: u64 = 8;
const GLANCE: Duration = Duration::from_millis(10);

/// fio with one block size.
pub(crate) struct Fio {
    name: String,
    block_bytes: u64,
    file: DataFile,
    machine: Machine,
    huge_bytes: u64,
}

impl Fio {
    pub(crate) fn new(block_mib: u64, file: &DataFile, machine: Machine) -> Self {
        Self {
            name: Self::name_for(block_mib),
            block_bytes: block_mib << 20,
            file: file.clone(),
            machine,
            huge_bytes: 0,
        }
    }

    pub(crate) fn name_for(block_mib: u64) -> String {
        format!("fio {block_mib} MiB")
    }

    fn command(&self) -> Command {
        let mut command = Command::new("fio");
        command
            // malloc then advises huge pages for what it maps.
            .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
            .args(["--name=limit", "--readonly", "--rw=read", "--direct=1"])
            // One process, so that its pages can be looked up.
            .args(["--ioengine=io_uring", "--thread", "--iomem_align=2m"])
            .args(["--output-format=json", &format!("--iodepth={DEPTH}")])
            .arg(format!("--bs={}", self.block_bytes))
            // A colon would separate file names.
            .arg(format!("--filename={}", self.file.path.display().to_string().replace(':', "\\:")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Measure for Fio {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        self.machine.prepare(&self.file.path, Start::Cold, memory_bytes(self.file.len_bytes))?;
        let mut child = match self.command().spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Trouble::NotRun("fio is not installed".to_owned()));
            }
            child => child?,
        };
        let mut huge_bytes = 0;
        // Its answer is a few kilobytes, which fit the pipes while nobody reads them.
        while child.try_wait()?.is_none() {
            huge_bytes = huge_bytes.max(huge_bytes_of(child.id()));
            thread::sleep(GLANCE);
        }
        let answer = child.wait_with_output()?;
        let stdout = String::from_utf8_lossy(&answer.stdout);
        let said = String::from_utf8_lossy(&answer.stderr);
        if !answer.status.success() {
            let what = last_lines(if said.trim().is_empty() { &stdout } else { &said });
            return Err(Trouble::NotRun(format!("fio refused: {what}")));
        }
        let (bytes, seconds) = parse(&stdout)?;
        // fio leaves out what is less than a block.
        if bytes + self.block_bytes <= self.file.len_bytes {
            return Err(anyhow!("fio read {bytes} bytes of {}", self.file.len_bytes).into());
        }
        let buffers_bytes = DEPTH.min(bytes / self.block_bytes) * self.block_bytes;
        if huge_bytes < buffers_bytes {
            return Err(Trouble::NotRun(format!(
                "fio's buffers of {} MiB had {} MiB in 2 MiB pages, so its limit would be too \
                 low; let transparent_hugepage/enabled be madvise or always",
                buffers_bytes >> 20,
                huge_bytes >> 20
            )));
        }
        self.huge_bytes = huge_bytes;
        Ok(vec![(SPEED, gigabytes_per_second(bytes, seconds))])
    }

    fn note(&self) -> Option<String> {
        (self.huge_bytes > 0).then(|| {
            format!(
                "direct, io_uring, {DEPTH} in flight, {} MiB in 2 MiB pages",
                self.huge_bytes >> 20
            )
        })
    }
}

/// Anonymous memory in transparent huge pages of a process that may be gone.
fn huge_bytes_of(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Bytes read and seconds taken. Lines before the JSON are warnings.
fn parse(stdout: &str) -> Result<(u64, f64)> {
    let json = stdout.find('{').map(|start| &stdout[start..]);
    let answer: Value = serde_json::from_str(json.context("fio gave no JSON")?)?;
    let job = &answer["jobs"][0];
    if job["error"] != 0 {
        return Err(anyhow!("fio met error {}", job["error"]));
    }
    let bytes = job["read"]["io_bytes"].as_u64().context("fio gave no bytes")?;
    let millis = job["read"]["runtime"].as_f64().context("fio gave no time")?;
    Ok((bytes, millis / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_behind_warnings() {
        let text = "fio: a warning\n{\"jobs\": [{\"error\": 0, \"read\": \
                    {\"io_bytes\": 1000, \"runtime\": 500}}]}";
        assert_eq!(parse(text).unwrap(), (1000, 0.5));
        assert!(parse("{\"jobs\": [{\"error\": 5}]}").is_err());
        assert!(parse("fio: nothing").is_err());
    }
}
