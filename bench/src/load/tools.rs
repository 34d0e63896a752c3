//! Programs that read a disk and nothing else, and the command of this project.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::data::DataFile;
use super::machine::{Machine, Start};
use super::timed::memory_bytes;
use super::units::gigabytes_per_second;
use crate::harness::metric::SPEED;
use crate::harness::program::{self, Ended, last_lines};
use crate::harness::{Candidate, Run, Trouble};

pub(crate) const COMMAND: &str = "longshore, command";
/// Reads of fio in flight.
const DEPTH: u64 = 8;

/// A program that says itself how many bytes it read and how long that took, from a cold file.
fn candidate(
    name: impl Into<String>,
    file: &DataFile,
    machine: Machine,
    measure: impl Fn(&DataFile) -> Result<(u64, f64, Ended), Trouble> + 'static,
) -> Candidate<'static> {
    let file = file.clone();
    Candidate::new(name, move || {
        machine.prepare(&file.path, Start::Cold, memory_bytes(file.len_bytes))?;
        let (bytes, seconds, ended) = measure(&file)?;
        let sample = vec![(SPEED, gigabytes_per_second(bytes, seconds))];
        Ok::<_, Trouble>(Run { sample, note: None, cost: Some(ended.cost) })
    })
}

/// `longshore load --json`, to which files are added; or why there is none.
pub(crate) fn longshore() -> Result<Command, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = here.with_file_name("longshore");
    if !program.is_file() {
        let how = "there is no `longshore` beside this program; build it with \
                   `cargo build --release -p longshore-cli`";
        return Err(how.to_owned());
    }
    let mut command = Command::new(program);
    command.args(["load", "--json"]);
    Ok(command)
}

/// A cold load by the command, as fast as it says itself: the process's end, which gives the memory
/// back, is not in it.
pub(crate) fn load_command(file: &DataFile, machine: Machine) -> Candidate<'static> {
    candidate(COMMAND, file, machine, |file| {
        let mut command = longshore().map_err(Trouble::NotRun)?;
        let ended = program::run(command.args(["--heap", "memfd"]).arg(&file.path))?;
        let said: Value = serde_json::from_str(&ended.stdout).context("it said no JSON")?;
        let seconds = said["seconds"].as_f64().context("it did not say how long it took")?;
        Ok((file.len_bytes, seconds, ended))
    })
    .ours()
}

/// `dd iflag=direct bs=8M`, to which the output is added.
pub(crate) fn dd_command(file: &DataFile) -> Command {
    let mut input = OsString::from("if=");
    input.push(&file.path);
    let mut command = Command::new("dd");
    command.env("LC_ALL", "C").arg(input).args(["iflag=direct", "bs=8M"]);
    command
}

/// `dd`: direct reads, one at a time.
pub(crate) fn dd(file: &DataFile, machine: Machine) -> Candidate<'static> {
    candidate("dd", file, machine, |file| {
        let ended = program::run(dd_command(file).arg("of=/dev/null"))?;
        let (bytes, seconds) = dd_figures(&ended.stderr)?;
        if bytes != file.len_bytes {
            return Err(anyhow!("dd read {bytes} bytes of {}", file.len_bytes).into());
        }
        Ok((bytes, seconds, ended))
    })
    .with_note("direct, 8 MiB at a time, one in flight, into base pages")
}

/// `1073741824 bytes (1.1 GB, 1.0 GiB) copied, 1.36363 s, 787 MB/s`
fn dd_figures(said: &str) -> Result<(u64, f64)> {
    let line = said.lines().find(|line| line.contains(" copied, "));
    let parsed = line.and_then(|line| {
        let bytes = line.split(' ').next()?.parse().ok()?;
        let seconds = line.split(" copied, ").nth(1)?.split(' ').next()?.parse().ok()?;
        Some((bytes, seconds))
    });
    parsed.with_context(|| format!("dd did not say how long it took: {}", last_lines(said)))
}

pub(crate) fn fio_name(block_mib: u64) -> String {
    format!("fio {block_mib} MiB")
}

/// `fio` with direct reads of so many bytes, [`DEPTH`] in flight, as JSON.
pub(crate) fn fio_command(block_bytes: u64, file: &DataFile) -> Command {
    let mut command = Command::new("fio");
    command
        // malloc then advises huge pages for what it maps.
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        .args(["--name=limit", "--readonly", "--rw=read", "--direct=1"])
        // One process, so that its pages can be looked up.
        .args(["--ioengine=io_uring", "--thread", "--iomem_align=2m"])
        .args(["--output-format=json", &format!("--iodepth={DEPTH}")])
        .arg(format!("--bs={block_bytes}"))
        // A colon would separate file names.
        .arg(format!("--filename={}", file.path.display().to_string().replace(':', "\\:")));
    command
}

/// `fio`: what the disk gives, which is the limit of a cold load.
///
/// Into 2 MiB pages, because into base pages a disk was seen to give a third: a limit measured so
/// would flatter everyone. fio gets such pages where the C library asks for them, and whether it
/// did is looked up while it runs.
pub(crate) fn fio(block_mib: u64, file: &DataFile, machine: Machine) -> Candidate<'static> {
    let block_bytes = block_mib << 20;
    candidate(fio_name(block_mib), file, machine, move |file| {
        let ended = match program::run_counting_huge_pages(&mut fio_command(block_bytes, file)) {
            Err(Trouble::Failed(error)) => {
                return Err(Trouble::NotRun(format!("fio refused: {error:#}")));
            }
            ended => ended?,
        };
        let (bytes, seconds) = fio_figures(&ended.stdout)?;
        // fio leaves out what is less than a block.
        if bytes + block_bytes <= file.len_bytes {
            return Err(anyhow!("fio read {bytes} bytes of {}", file.len_bytes).into());
        }
        let buffers_bytes = DEPTH.min(bytes / block_bytes) * block_bytes;
        if ended.huge_bytes < buffers_bytes {
            return Err(Trouble::NotRun(format!(
                "fio's buffers of {} MiB had {} MiB in 2 MiB pages, so its limit would be too \
                 low; let transparent_hugepage/enabled be madvise or always",
                buffers_bytes >> 20,
                ended.huge_bytes >> 20
            )));
        }
        Ok((bytes, seconds, ended))
    })
    .with_note(format!("direct, io_uring, {DEPTH} in flight, into 2 MiB pages"))
}

/// Bytes read and seconds taken. Lines before the JSON are warnings.
fn fio_figures(stdout: &str) -> Result<(u64, f64)> {
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
    fn the_figures_of_dd_are_understood() {
        let said = "128+0 records in\n128+0 records out\n\
                    1073741824 bytes (1.1 GB, 1.0 GiB) copied, 1.36363 s, 787 MB/s\n";
        assert_eq!(dd_figures(said).unwrap(), (1 << 30, 1.36363));
        assert!(dd_figures("dd: failed to open").is_err());
    }

    #[test]
    fn the_figures_of_fio_are_found_behind_warnings() {
        let text = "fio: a warning\n{\"jobs\": [{\"error\": 0, \"read\": \
                    {\"io_bytes\": 1000, \"runtime\": 500}}]}";
        assert_eq!(fio_figures(text).unwrap(), (1000, 0.5));
        assert!(fio_figures("{\"jobs\": [{\"error\": 5}]}").is_err());
        assert!(fio_figures("fio: nothing").is_err());
    }
}
