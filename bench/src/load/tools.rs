//! Programs that only read a disk, and the command of this project.

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
/// The number of fio's reads in flight.
const DEPTH: u64 = 8;

/// Makes a candidate of a program that reports the bytes that it read and the time, from a cold file.
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

/// Returns the command `longshore load --json`, to which the caller adds files, or the reason why there
/// is none.
pub(crate) fn longshore() -> Result<Command, String> {
    let mut command = own_command()?;
    command.args(["load", "--json"]);
    Ok(command)
}

/// Returns the command of this project, to which the caller adds arguments, or the reason why there is
/// none.
pub(crate) fn own_command() -> Result<Command, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = here.with_file_name("longshore");
    if !program.is_file() {
        let how = "the program `longshore` is not beside this one; build it with \
                   `cargo build --release -p longshore-cli`";
        return Err(how.to_owned());
    }
    Ok(Command::new(program))
}

/// Makes a candidate that loads a cold file by the command. The time is the command's own, which
/// excludes the end of the process, where the memory is freed.
pub(crate) fn load_command(file: &DataFile, machine: Machine) -> Candidate<'static> {
    candidate(COMMAND, file, machine, |file| {
        let mut command = longshore().map_err(Trouble::NotRun)?;
        let ended = program::run(command.args(["--heap", "memfd"]).arg(&file.path))?;
        let said: Value = serde_json::from_str(&ended.stdout).context("its output is not JSON")?;
        let seconds = said["seconds"].as_f64().context("its output has no time")?;
        Ok((file.len_bytes, seconds, ended))
    })
    .ours()
}

/// Returns the command `dd iflag=direct bs=8M`, to which the caller adds the output.
pub(crate) fn dd_command(file: &DataFile) -> Command {
    let mut input = OsString::from("if=");
    input.push(&file.path);
    let mut command = Command::new("dd");
    command.env("LC_ALL", "C").arg(input).args(["iflag=direct", "bs=8M"]);
    command
}

/// Makes the candidate `dd`: direct reads, one at a time.
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

/// Parses the figures of dd: `1073741824 bytes (1.1 GB, 1.0 GiB) copied, 1.36363 s, 787 MB/s`.
fn dd_figures(said: &str) -> Result<(u64, f64)> {
    let line = said.lines().find(|line| line.contains(" copied, "));
    let parsed = line.and_then(|line| {
        let bytes = line.split(' ').next()?.parse().ok()?;
        let seconds = line.split(" copied, ").nth(1)?.split(' ').next()?.parse().ok()?;
        Some((bytes, seconds))
    });
    parsed.with_context(|| format!("the output of dd has no time: {}", last_lines(said)))
}

pub(crate) fn fio_name(block_mib: u64) -> String {
    format!("fio {block_mib} MiB")
}

/// Returns a command that runs `fio` with direct reads of `block_bytes`, [`DEPTH`] in flight, and JSON
/// output.
pub(crate) fn fio_command(block_bytes: u64, file: &DataFile) -> Command {
    let mut command = Command::new("fio");
    command
        // Makes malloc advise huge pages for its mappings.
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        .args(["--name=limit", "--readonly", "--rw=read", "--direct=1"])
        // One process, so that its huge pages can be read from /proc.
        .args(["--ioengine=io_uring", "--thread", "--iomem_align=2m"])
        .args(["--output-format=json", &format!("--iodepth={DEPTH}")])
        .arg(format!("--bs={block_bytes}"))
        // An unescaped colon separates file names.
        .arg(format!("--filename={}", file.path.display().to_string().replace(':', "\\:")));
    command
}

/// Makes the candidate `fio`, the disk's throughput, which is the limit of a cold load.
///
/// It reads into 2 MiB pages, because some disks reach a third of their throughput into base pages: a
/// limit that was measured with those would make every candidate look too good. fio gets 2 MiB pages if
/// the C library asks for them, which is checked while it runs.
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
        // fio does not read a partial block at the end.
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

/// Returns the bytes read and the seconds. Lines before the JSON are warnings.
fn fio_figures(stdout: &str) -> Result<(u64, f64)> {
    let json = stdout.find('{').map(|start| &stdout[start..]);
    let answer: Value = serde_json::from_str(json.context("the output of fio is not JSON")?)?;
    let job = &answer["jobs"][0];
    if job["error"] != 0 {
        return Err(anyhow!("fio reports error {}", job["error"]));
    }
    let bytes = job["read"]["io_bytes"].as_u64().context("the output of fio has no bytes")?;
    let millis = job["read"]["runtime"].as_f64().context("the output of fio has no time")?;
    Ok((bytes, millis / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_dd_are_parsed() {
        let said = "128+0 records in\n128+0 records out\n\
                    1073741824 bytes (1.1 GB, 1.0 GiB) copied, 1.36363 s, 787 MB/s\n";
        assert_eq!(dd_figures(said).unwrap(), (1 << 30, 1.36363));
        assert!(dd_figures("dd: failed to open").is_err());
    }

    #[test]
    fn the_figures_of_fio_are_found_after_warnings() {
        let text = "fio: a warning\n{\"jobs\": [{\"error\": 0, \"read\": \
                    {\"io_bytes\": 1000, \"runtime\": 500}}]}";
        assert_eq!(fio_figures(text).unwrap(), (1000, 0.5));
        assert!(fio_figures("{\"jobs\": [{\"error\": 5}]}").is_err());
        assert!(fio_figures("fio: nothing").is_err());
    }
}
