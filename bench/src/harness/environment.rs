//! The machine and the programs that produced the figures.

mod disk;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use longshore_mem::isa::IsaToken;
use longshore_sys::{huge_pages, memory};
use serde_json::{Map, Value, json};

use super::clock::core_hz;
pub(crate) use disk::{Disk, disk_of};

/// The facts about a machine that a reader of its figures needs. It contains no folder or host name, so
/// that results can be committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    facts: Map<String, Value>,
}

impl Environment {
    /// Collects the facts about the machine, its kernel, and this program.
    pub(crate) fn of_machine() -> Self {
        let mut environment = Self::default();
        environment.set("date", said("date", &["-u", "+%FT%TZ"]));
        environment.set("longshore", env!("CARGO_PKG_VERSION"));
        environment.set("commit", commit());
        environment.set("rustc", env!("LONGSHORE_BENCH_RUSTC"));
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = |name: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
        };
        environment.set("cpu", cpu("model name").or_else(|| cpu("CPU part")));
        let sets: Vec<&str> = IsaToken::all().map(|token| token.isa().name()).collect();
        environment.set("instruction_sets", sets.join(" "));
        environment.set("instructions_used", IsaToken::active().isa().name());
        environment.set("core_clock_mhz", (core_hz() / 1e6) as u64);
        environment.set("cores", std::thread::available_parallelism().map_or(0, usize::from));
        let flags = cpu("flags").unwrap_or_default();
        let is_guest = flags.split(' ').any(|flag| flag == "hypervisor");
        environment.set("virtual_machine", is_guest);
        environment.set("memory_bytes", memory::meminfo_bytes("MemTotal:"));
        environment.set("memory_available_bytes", memory::available().machine_bytes);
        let system = rustix::system::uname();
        environment.set("kernel", system.release().to_string_lossy());
        environment.set("architecture", system.machine().to_string_lossy());
        environment.set("transparent_huge_pages", setting("transparent_hugepage/enabled"));
        environment.set("transparent_huge_pages_defrag", setting("transparent_hugepage/defrag"));
        environment.set("shmem_huge_pages", huge_pages::shmem_setting().ok());
        environment
            .set("hugetlb_pages", huge_pages::pool_2m().ok().map(|pool| pool.available_pages));
        environment.set("load_average", first_word("/proc/loadavg"));
        environment
    }

    /// Sets a fact; `None` becomes null.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Reads the environment of another machine from its line.
    pub(crate) fn from_line(line: &Value) -> Option<Self> {
        let facts = line.get("environment")?.as_object()?.clone();
        Some(Self { facts })
    }

    pub(crate) fn line(&self, bench: &str) -> Value {
        json!({"bench": bench, "environment": self.facts})
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.facts.keys().map(String::len).max().unwrap_or(0);
        for (name, value) in &self.facts {
            match value {
                Value::Null => writeln!(f, "  {name:<width$}  unknown")?,
                Value::String(text) => writeln!(f, "  {name:<width$}  {text}")?,
                other => writeln!(f, "  {name:<width$}  {other}")?,
            }
        }
        Ok(())
    }
}

/// Returns the word in brackets, which the kernel uses to mark the current setting.
fn setting(name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/sys/kernel/mm").join(name)).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn first_word(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.split_whitespace().next()?.to_owned())
}

/// Returns the commit that this program was built from, marked if the tree differs from it; `None`
/// without a checkout or git.
fn commit() -> Option<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    said("git", &["-C", folder, "describe", "--always", "--dirty", "--abbrev=12"])
}

/// Returns the first line of a program's `--version`; `None` if the program is absent.
pub(crate) fn version_of(program: &str) -> Option<String> {
    said(program, &["--version"])
}

/// Returns the first line that a program prints; `None` if it is absent or fails.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let answer = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    text.lines().next().filter(|_| answer.status.success()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_read_back_from_its_line() {
        let environment = Environment::of_machine();
        let line = environment.line("load");
        let date = line["environment"]["date"].as_str().unwrap();
        assert!(date.starts_with("20") && date.ends_with('Z') && date.len() == 20, "{date}");
        assert!(line["environment"]["cores"].as_u64().unwrap() > 0);
        let read = Environment::from_line(&line).unwrap();
        assert_eq!(read.facts, environment.facts);
        assert!(environment.to_string().contains("kernel"));
        assert_eq!(version_of("no-such-program-at-all"), None);
    }
}
