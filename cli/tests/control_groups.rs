//! Control groups: which group is charged for a published model, and limits of groups above.

mod command;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use command::{LONGSHORE, Outcome, run};

/// Control groups with a memory controller, which are removed with this.
struct Groups {
    root: PathBuf,
    limit: &'static str,
    usage: &'static str,
    made: Vec<PathBuf>,
}

impl Groups {
    /// Finds the group of this process, version 1 or 2, in which others can be made.
    fn new() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap();
        let of = |controller: &str| {
            text.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let is_it = fields.next()?.split(',').any(|one| one == controller);
                is_it.then(|| fields.next()).flatten()
            })
        };
        let name = format!("longshore-test-{}", std::process::id());
        let mut groups = match (of("memory"), of("")) {
            (Some(path), _) => Self {
                root: Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')),
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                made: Vec::new(),
            },
            (None, Some(path)) => Self {
                root: Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')),
                limit: "memory.max",
                usage: "memory.current",
                made: Vec::new(),
            },
            _ => return None,
        };
        groups.root = groups.make(&name)?;
        Some(groups)
    }

    fn make(&mut self, name: &str) -> Option<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).ok()?;
        self.made.push(path.clone());
        path.join(self.limit).exists().then_some(path)
    }

    fn limit(&self, group: &Path, bytes: u64) {
        fs::write(group.join(self.limit), bytes.to_string()).unwrap();
    }

    fn used_bytes(&self, group: &Path) -> u64 {
        fs::read_to_string(group.join(self.usage)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            // The programs in it have ended.
            let _ = fs::remove_dir(path);
        }
    }
}

/// Runs a program in a control group.
fn run_in(group: &Path, program: &str, arguments: &[&str]) -> Outcome {
    let enter = "echo $$ > \"$0\" && exec timeout --kill-after=5 60 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", enter]).arg(group.join("cgroup.procs")).arg(program);
    run(command.args(arguments))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_publishing_group_is_charged_and_the_limits_above_it_count() {
    let groups = rustix::process::geteuid().is_root().then(Groups::new).flatten();
    let Some(mut groups) = groups else {
        return println!("SKIPPED: no control group with a memory controller can be made here");
    };
    let publishers = groups.make("publishers").unwrap();
    let readers = groups.make("readers").unwrap();
    let Some(inner) = groups.make("publishers/inner") else {
        return println!("SKIPPED: control groups cannot be nested here");
    };
    let disk = tempfile::tempdir_in("/var/tmp").unwrap();
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let (source, to) = (disk.path().join("model.safetensors"), text(shm.path()));
    let made = run(Command::new(LONGSHORE).args(["make-model", "--size", "24MiB", text(&source)]));
    assert_eq!(made.code, 0, "{}", made.stderr);

    // The group that publishes is charged, and not one that reads.
    let published = run_in(&inner, LONGSHORE, &["publish", text(&source), "--to", to]);
    assert_eq!(published.code, 0, "{}", published.stderr);
    let file = shm.path().join("model/model.safetensors");
    let read = run_in(&readers, "cksum", &[text(&file)]);
    assert_eq!(read.code, 0);
    let model_bytes = fs::metadata(&file).unwrap().len();
    let charged = [&inner, &publishers, &readers].map(|group| groups.used_bytes(group));
    assert!(charged[0] >= model_bytes && charged[1] >= model_bytes, "{charged:?}");
    assert!(charged[2] < model_bytes / 2, "{charged:?}");
    // The model outlives the publisher, and is freed from its group when it is evicted.
    let evicted = run(Command::new(LONGSHORE).args(["evict", text(&shm.path().join("model"))]));
    assert_eq!(evicted.code, 0, "{}", evicted.stderr);
    let left = groups.used_bytes(&publishers);
    assert!(left + model_bytes <= charged[1] + (4 << 20), "{left} of {}", charged[1]);

    // A limit of the group above refuses the model before anything is read.
    groups.limit(&publishers, left + (80 << 20));
    let larger = disk.path().join("larger.safetensors");
    let made = run(Command::new(LONGSHORE).args(["make-model", "--size", "128MiB", text(&larger)]));
    assert_eq!(made.code, 0, "{}", made.stderr);
    for arguments in
        [&["publish", text(&larger), "--to", to][..], &["load", text(&larger), "--heap", "memfd"]]
    {
        let refused = run_in(&inner, LONGSHORE, arguments);
        refused.expect(20, &["publishers", groups.limit]);
    }
    assert_eq!(fs::read_dir(shm.path()).unwrap().count(), 0);
    // The smaller one fits.
    let published = run_in(&inner, LONGSHORE, &["publish", text(&source), "--to", to]);
    assert_eq!(published.code, 0, "{}", published.stderr);
}
