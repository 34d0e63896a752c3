//! llama.cpp with published models: the same results as from the disk, and one copy for four processes.
//!
//! `scripts/llama-cpp.sh` prints the folder with its programs, for `LONGSHORE_LLAMA_CPP`.

mod command;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use command::{LONGSHORE, Outcome, run};

/// The time after which a test fails if a program does not do what it should.
const PATIENCE: Duration = Duration::from_secs(120);

/// The programs, a model on a disk, and a folder in `/dev/shm`.
struct Fixture {
    programs: PathBuf,
    disk: tempfile::TempDir,
    shm: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Option<Self> {
        let Some(programs) = std::env::var_os("LONGSHORE_LLAMA_CPP") else {
            println!("SKIPPED: LONGSHORE_LLAMA_CPP is not set (scripts/llama-cpp.sh)");
            return None;
        };
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        // The perplexity of random weights, over bytes that the vocabulary has.
        let text: String = (0..4000).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
        fs::write(disk.path().join("text"), text).unwrap();
        Some(Self {
            programs: programs.into(),
            disk,
            shm: tempfile::tempdir_in("/dev/shm").unwrap(),
        })
    }

    fn path(&self, name: &str) -> String {
        self.disk.path().join(name).to_str().unwrap().to_owned()
    }

    fn model(&self, name: &str, size: &str) -> String {
        let path = self.path(name);
        longshore(&["make-model", "--size", size, &path]).expect(0, &[]);
        path
    }

    fn program(&self, name: &str) -> String {
        self.programs.join(name).to_str().unwrap().to_owned()
    }

    /// Runs a program of llama.cpp to its end.
    fn llama(&self, name: &str, arguments: &[&str]) -> Outcome {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "120"]).arg(self.program(name)).args(arguments);
        let outcome = run(&mut command);
        assert_eq!(outcome.code, 0, "{name} {arguments:?}: {}", outcome.stderr);
        outcome
    }

    /// The arguments that compute the perplexity of a model.
    fn perplexity_arguments(&self, model: &str) -> Vec<String> {
        let text = self.path("text");
        let words = ["-m", model, "-f", &text, "-c", "128", "-t", "1", "--chunks", "2"];
        words.map(str::to_owned).into()
    }

    fn perplexity(&self, model: &str) -> String {
        let arguments = self.perplexity_arguments(model);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        estimate(&self.llama("llama-perplexity", &arguments))
    }

    fn publish(&self, source: &str) -> String {
        let to = self.shm.path().to_str().unwrap();
        let published = longshore(&["publish", source, "--to", to, "--json"]).json();
        published["models"][0]["path"].as_str().unwrap().to_owned()
    }
}

fn longshore(arguments: &[&str]) -> Outcome {
    run(Command::new(LONGSHORE).args(arguments))
}

/// Returns the perplexity that a program has printed, without the last digits: threads add the parts of
/// the sum in any order.
fn estimate(outcome: &Outcome) -> String {
    let all = format!("{}\n{}", outcome.stdout, outcome.stderr);
    let line = all.lines().find(|line| line.contains("Final estimate: PPL"));
    let line = line.unwrap_or_else(|| panic!("no estimate in {all}"));
    let estimate: f64 =
        line.split_whitespace().skip_while(|word| *word != "=").nth(1).unwrap().parse().unwrap();
    format!("{estimate:.9e}")
}

#[test]
fn results_are_those_from_the_disk() {
    let Some(fixture) = Fixture::new() else { return };
    let model = fixture.model("model.gguf", "64MiB");
    let expected = fixture.perplexity(&model);
    assert!(!["inf", "NaN"].iter().any(|word| expected.contains(word)), "{expected}");
    assert_eq!(fixture.perplexity(&fixture.publish(&model)), expected, "published");

    // In a private tmpfs, without a privilege.
    let program = fixture.program("llama-perplexity");
    let arguments = fixture.perplexity_arguments("{}");
    let mut command = Command::new(LONGSHORE);
    command.args(["exec", &model, "--", &program]).args(arguments);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert_eq!(estimate(&outcome), expected, "exec");

    // All splits are published with the first.
    let splits = fixture.path("splits");
    fixture.llama("llama-gguf-split", &["--split-max-tensors", "40", &model, &splits]);
    let first = fs::read_dir(fixture.disk.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut splits: Vec<PathBuf> =
        first.filter(|path| path.to_string_lossy().contains("splits-0")).collect();
    splits.sort();
    assert!(splits.len() > 1, "{splits:?}");
    let published = fixture.publish(splits[0].to_str().unwrap());
    assert_eq!(
        fs::read_dir(Path::new(&published).parent().unwrap()).unwrap().count(),
        splits.len() + 1
    );
    assert_eq!(fixture.perplexity(&published), expected, "splits");

    // Quantized weights are repacked into memory of the program.
    let quantized = fixture.path("quantized.gguf");
    fixture.llama("llama-quantize", &["--allow-requantize", &model, &quantized, "Q4_0"]);
    let expected = fixture.perplexity(&quantized);
    assert_eq!(fixture.perplexity(&fixture.publish(&quantized)), expected, "Q4_0");
}

#[test]
fn four_processes_use_one_copy() {
    let Some(fixture) = Fixture::new() else { return };
    let model = fixture.model("model.gguf", "512MiB");
    let published = fixture.publish(&model);
    let len_bytes = fs::metadata(&published).unwrap().len();
    longshore_sys::page_cache::evict(fs::File::open(&model).unwrap()).unwrap();
    let servers: Vec<Server> = (0..4).map(|_| Server::start(&fixture, &published)).collect();
    let deadline = Instant::now() + PATIENCE;
    let shared = loop {
        let mapped: Vec<(u64, u64)> = servers.iter().map(Server::mapped).collect();
        if mapped.iter().all(|(resident, _)| *resident >= len_bytes * 98 / 100) {
            break mapped.iter().map(|(_, proportional)| proportional).sum::<u64>();
        }
        assert!(Instant::now() < deadline, "{mapped:?} of {len_bytes}");
        thread::sleep(Duration::from_millis(100));
    };
    assert!(shared <= len_bytes * 105 / 100, "{shared} for a model of {len_bytes}");
    let file = fs::File::open(&model).unwrap();
    let start = longshore::mem::FileOffset::new(0);
    let cached = longshore_sys::page_cache::stat(&file, start, len_bytes).unwrap().cached_pages;
    assert!(cached * longshore_sys::page_size_bytes() as u64 <= 16 << 20, "{cached} pages");
    // The model is in use, and not evicted, until the last process has ended.
    let folder = Path::new(&published).parent().unwrap().to_str().unwrap().to_owned();
    longshore(&["evict", &folder]).expect(23, &[]);
    drop(servers);
    longshore(&["evict", &folder]).expect(0, &[]);
}

/// A program of llama.cpp that has the model mapped until this is dropped.
struct Server(Child);

impl Server {
    fn start(fixture: &Fixture, model: &str) -> Self {
        let mut command = Command::new(fixture.program("llama-bench"));
        // Long enough for all four; it is killed.
        command.args(["-m", model, "-p", "0", "-n", "100000", "-t", "1", "--no-warmup"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Returns the resident and the proportional bytes of the model's mapping.
    fn mapped(&self) -> (u64, u64) {
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.0.id())).unwrap();
        let (mut resident, mut proportional, mut is_model) = (0, 0, false);
        for line in smaps.lines() {
            let field = |name: &str| {
                let kib = line.strip_prefix(name)?.trim().strip_suffix(" kB")?;
                kib.parse::<u64>().ok().map(|kib| kib * 1024)
            };
            if line.split(' ').next().is_some_and(|word| word.contains('-')) {
                is_model = line.ends_with(".gguf");
            } else if is_model {
                resident += field("Rss:").unwrap_or(0);
                proportional += field("Pss:").unwrap_or(0);
            }
        }
        (resident, proportional)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
