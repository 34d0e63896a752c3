//! The time that tasks have waited for memory: pressure stall information (`psi.rst` of the kernel's
//! accounting documentation).

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use crate::memory;

/// The memory pressure of this machine, and of the control group of this process.
#[derive(Debug, Default)]
pub struct MemoryPressure {
    files: Vec<Pressure>,
}

/// A file, and the time that tasks had waited when it was last read.
#[derive(Debug)]
struct Pressure {
    file: File,
    stalled: Duration,
    /// `true` for the pressure of the machine, which tasks in a small control group of another user can
    /// cause, too. It counts only if the machine has little memory left.
    is_of_machine: bool,
}

impl MemoryPressure {
    /// Opens the pressure files of this process. The pressure is unknown if the kernel was built without
    /// `CONFIG_PSI` or started with `psi=0`.
    pub fn of_this_process() -> Self {
        let group = memory::control_group_v2().map(|folder| folder.join("memory.pressure"));
        let mut all = Self::from_files(group.as_deref());
        all.files.extend(Pressure::open(Path::new(MACHINE), true));
        all
    }

    /// Opens files with the format of `/proc/pressure/memory`. Files that cannot be read are ignored.
    pub fn from_files<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Self {
        Self { files: paths.into_iter().filter_map(|path| Pressure::open(path, false)).collect() }
    }

    /// Returns `true` if the kernel reports the pressure.
    pub fn is_known(&self) -> bool {
        !self.files.is_empty()
    }

    /// Returns the time for which at least one task has waited for memory since the last call, or since
    /// this was made. Waits in other control groups count only if less than a quarter of the machine's memory
    /// is available.
    pub fn stalled(&mut self) -> Duration {
        let since = |pressure: &mut Pressure| {
            let now = stalled_in(&pressure.file)?;
            let since = now.saturating_sub(pressure.stalled);
            pressure.stalled = now;
            let counts = !pressure.is_of_machine || since.is_zero() || is_machine_short();
            counts.then_some(since)
        };
        self.files.iter_mut().filter_map(since).max().unwrap_or_default()
    }
}

impl Pressure {
    fn open(path: &Path, is_of_machine: bool) -> Option<Self> {
        let file = File::open(path).ok()?;
        let stalled = stalled_in(&file)?;
        Some(Self { file, stalled, is_of_machine })
    }
}

/// Returns `true` if little memory is available, or if that is not known.
fn is_machine_short() -> bool {
    let of = memory::meminfo_bytes;
    let both = of("MemAvailable:").zip(of("MemTotal:"));
    both.is_none_or(|(available, total)| available < total / 4)
}

const MACHINE: &str = "/proc/pressure/memory";

fn stalled_in(file: &File) -> Option<Duration> {
    let mut text = [0; 256];
    // Each read from the start gets the current values.
    let len = file.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..len]).ok()?)
}

/// Parses the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`.
fn parse(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn stalls_are_counted_from_one_call_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["machine", "group"].map(|name| dir.path().join(name));
        let write = |which: usize, total: u64| {
            let line = |kind| format!("{kind} avg10=0.12 avg60=0.00 avg300=1.50 total={total}\n");
            fs::write(&paths[which], line("some") + &line("full")).unwrap();
        };
        write(0, 1000);
        let mut pressure = MemoryPressure::from_files(paths.iter().map(PathBuf::as_path));
        assert!(pressure.is_known());
        assert_eq!(pressure.stalled(), Duration::ZERO);
        write(0, 1500);
        assert_eq!(pressure.stalled(), Duration::from_micros(500));
        assert_eq!(pressure.stalled(), Duration::ZERO);
        // The file of the group did not exist when `pressure` was made.
        write(1, 7);
        assert_eq!(pressure.stalled(), Duration::ZERO);
        let mut both = MemoryPressure::from_files(paths.iter().map(PathBuf::as_path));
        write(0, 1600);
        write(1, 807);
        assert_eq!(both.stalled(), Duration::from_micros(800), "the worse of them");
    }

    #[test]
    fn the_pressure_of_the_machine_counts_only_if_memory_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine");
        let write = |total: u64| fs::write(&path, format!("some avg10=0.12 total={total}\n"));
        write(0).unwrap();
        let files = vec![Pressure::open(&path, true).unwrap()];
        let mut pressure = MemoryPressure { files };
        write(500).unwrap();
        let expected = if is_machine_short() { 500 } else { 0 };
        assert_eq!(pressure.stalled(), Duration::from_micros(expected));
    }

    #[test]
    fn other_files_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other");
        fs::write(&path, "full avg10=0.12 total=5\nsome total=x\n").unwrap();
        let mut pressure = MemoryPressure::from_files([path.as_path(), Path::new("/nowhere")]);
        assert!(!pressure.is_known());
        assert_eq!(pressure.stalled(), Duration::ZERO);
    }

    #[test]
    fn the_kernels_file_is_read_if_there_is_one() {
        let is_there = fs::read_to_string(MACHINE).is_ok_and(|text| text.starts_with("some "));
        assert!(MemoryPressure::of_this_process().is_known() || !is_there);
    }
}
