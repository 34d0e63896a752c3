//! Four processes that map a model and read all of it, and the memory that they use together.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use longshore_mem::Granule;
use longshore_sys::mapping::{Access, Mapping};

use super::place::Place;
use super::server::Server;
use super::ways::{ATTACHED, COPIED, FROM_DISK, OTHER_BYTES, PUBLISHED, bring};
use crate::harness::cost::{Cost, status_bytes};
use crate::harness::metric::{COPIES, MEMORY_SUM, PAGE_CACHE, TIME_MS};
use crate::harness::{Candidate, Run, Trouble};
use crate::load::data::DataFile;
use crate::load::machine::{Machine, Start, require_memory, resident_bytes};
use crate::load::units::mebibytes;

const PROCESSES: usize = 4;
const READY: &str = "read";

/// Maps a file, reads all of it, prints a line, and waits until standard input ends.
///
/// # Errors
/// Returns an error if the file cannot be mapped.
#[expect(unsafe_code, reason = "reads a mapping")]
pub(crate) fn read(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let len_bytes = file.metadata()?.len();
    let mapping = Mapping::of_file(&file, len_bytes, Granule::SIZE_2M, Access::Read)?;
    let words = mapping.start().as_ptr().cast::<u64>();
    let mut sum = 0_u64;
    for index in 0..mapping.len_bytes() / 8 {
        // SAFETY: the mapping is readable for its length and is aligned; the bench changes no file.
        sum = sum.wrapping_add(unsafe { words.wrapping_add(index).read() });
    }
    println!("{READY} {sum}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(mapping);
    Ok(())
}

pub(super) fn candidates<'a>(
    model: &'a DataFile,
    machine: Machine,
    place: &'a Place,
) -> Result<Vec<Candidate<'a>>> {
    let make = |name: &'static str| {
        let candidate = Candidate::new(name, move || run(name, model, machine, place));
        let ours = [PUBLISHED, ATTACHED].contains(&name);
        if ours { candidate.ours() } else { candidate }
    };
    Ok([FROM_DISK, COPIED, PUBLISHED, ATTACHED].map(make).into())
}

fn run(
    name: &'static str,
    model: &DataFile,
    machine: Machine,
    place: &Place,
) -> std::result::Result<Run, Trouble> {
    place.clear()?;
    require_memory(model.len_bytes * 2 + OTHER_BYTES)?;
    let start = if name == FROM_DISK { Start::Warm } else { Start::Cold };
    machine.prepare(&model.path, start, OTHER_BYTES)?;
    let server = (name == ATTACHED).then(|| Server::start(&model.path, place)).transpose()?;
    let path = match &server {
        Some(server) => server.path.clone(),
        None => bring(name, &model.path, place)?,
    };
    let mut readers = Readers::start(&path)?;
    let seconds = readers.wait()?;
    let (memory_bytes, cpu_seconds) = readers.use_of_all()?;
    let cached_bytes = resident_bytes(&model.path)?;
    // Pages that processes map from the page cache are in their memory.
    let more_bytes = if name == FROM_DISK { 0 } else { cached_bytes };
    drop(readers);
    drop(server);
    place.clear()?;
    let copies = (memory_bytes + more_bytes) as f64 / model.len_bytes as f64;
    let sample = vec![
        (TIME_MS, seconds * 1e3),
        (MEMORY_SUM, mebibytes(memory_bytes.cast_signed())),
        (PAGE_CACHE, mebibytes(cached_bytes.cast_signed())),
        (COPIES, copies),
    ];
    let cost = Cost { cpu_seconds: Some(cpu_seconds), peak_memory_bytes: None };
    Ok(Run { sample, note: None, cost: Some(cost) })
}

/// Processes that read a file. They end when this is dropped.
struct Readers {
    began: Instant,
    children: Vec<Child>,
}

impl Readers {
    fn start(path: &Path) -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut readers = Self { began: Instant::now(), children: Vec::new() };
        for _ in 0..PROCESSES {
            let mut command = Command::new(&program);
            command.arg("reader").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
            readers.children.push(command.spawn().context("starting a reader")?);
        }
        Ok(readers)
    }

    /// Waits until all have read the file. Returns the seconds since the first was started.
    fn wait(&mut self) -> Result<f64> {
        let mut sums = Vec::new();
        for child in &mut self.children {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().context("it has a pipe")?).read_line(&mut line)?;
            ensure!(line.starts_with(READY), "a reader has failed");
            sums.push(line);
        }
        sums.dedup();
        ensure!(sums.len() == 1, "the readers have read different contents");
        Ok(self.began.elapsed().as_secs_f64())
    }

    /// Returns the sum of the proportional set sizes, and the CPU seconds.
    fn use_of_all(&self) -> Result<(u64, f64)> {
        let (mut memory_bytes, mut ticks) = (0, 0);
        for child in &self.children {
            let id = child.id();
            let rollup = fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
            memory_bytes += status_bytes(&rollup, "Pss:").context("no proportional set size")?;
            let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
            // The fields after the name: user and system time are the 12th and the 13th.
            let fields = stat.rsplit_once(") ").context("no name")?.1.split(' ');
            ticks += fields.skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum::<u64>();
        }
        Ok((memory_bytes, ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}
