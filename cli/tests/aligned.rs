//! `longshore load --align` and `longshore repack`.

mod command;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use command::{LONGSHORE, longshore, run};
use serde_json::Value;

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    /// Uses `/var/tmp`, because `/tmp` may be a tmpfs.
    fn new() -> Self {
        Self { folder: tempfile::tempdir_in("/var/tmp").unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn model(&self, name: &str) -> String {
        let path = self.path(name);
        assert_eq!(longshore(&["make-model", "--size", "3MiB", &path]).code, 0);
        path
    }
}

/// Returns the tensors of a model, sorted by name, with shape and bytes, and their smallest alignment.
fn tensors(path: &str) -> (Vec<(String, Value, Vec<u8>)>, u64) {
    let inspected = longshore(&["inspect", "--json", path]).json();
    let (mut all, mut least) = (Vec::new(), u64::MAX);
    for file in inspected["files"].as_array().unwrap() {
        let bytes = fs::read(file["path"].as_str().unwrap()).unwrap();
        for tensor in file["tensors"].as_array().unwrap() {
            // Padding tensors are listed, but are not part of the model.
            if tensor["name"].as_str().unwrap().starts_with("__padding__.") {
                continue;
            }
            let number = |name: &str| tensor[name].as_u64().unwrap();
            let (start, len) = (number("offset"), number("bytes"));
            least = least.min(1 << start.trailing_zeros());
            let content = bytes[start as usize..(start + len) as usize].to_vec();
            all.push((tensor["name"].to_string(), tensor["shape"].clone(), content));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    (all, least)
}

#[test]
fn a_load_gives_a_program_a_file_with_aligned_tensors() {
    let fixture = Fixture::new();
    let model = fixture.model("model.safetensors");
    let copied = fixture.path("copied.safetensors");
    let mut command = std::process::Command::new(LONGSHORE);
    command.args(["load", &model, "--align", "4096", "--quiet", "--exec", "sh", "-c"]);
    command.arg(format!("head -c $LONGSHORE_BYTES /proc/self/fd/$LONGSHORE_FD > {copied}"));
    assert_eq!(run(&mut command).code, 0);
    let (before, _) = tensors(&model);
    let (after, least) = tensors(&copied);
    assert!(before == after, "the tensors differ");
    assert!(least >= 4096, "{least}");
}

#[test]
fn a_repacked_file_has_the_same_tensors_and_needs_no_staged_reads() {
    let fixture = Fixture::new();
    let (model, packed) = (fixture.model("model.safetensors"), fixture.path("packed.safetensors"));
    let done = longshore(&["repack", "--align", "4k", "--json", &model, &packed]).json();
    assert_eq!(done["alignment"], 4096);
    assert_eq!(done["bytes"], fs::metadata(&packed).unwrap().len());
    let ((before, _), (after, least)) = (tensors(&model), tensors(&packed));
    assert!(before == after, "the tensors differ");
    assert!(least >= 4096, "{least}");
    // The file has that alignment already, so all of it can be read directly into place.
    let loaded = longshore(&["load", &packed, "--align", "4096", "--mode", "direct", "--json"]);
    if loaded.code == 0 {
        assert_eq!(loaded.json()["bytes_by_mode"]["staged"], 0);
        assert_eq!(loaded.json()["bytes"], fs::metadata(&packed).unwrap().len());
    } else {
        loaded.expect(22, &["direct"]);
    }
    // Repacking it again changes nothing.
    let again = fixture.path("again.safetensors");
    assert_eq!(longshore(&["repack", "--align", "4096", &packed, &again]).code, 0);
    assert!(fs::read(&packed).unwrap() == fs::read(&again).unwrap());
}

/// Writes a model of two shards; returns the path and the text of its index.
fn sharded(fixture: &Fixture) -> (String, String) {
    let (first, second) = (fixture.model("m-1.safetensors"), fixture.path("m-2.safetensors"));
    // The second shard has one tensor of an odd length.
    let header = r#"{"odd":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(b"abc");
    fs::write(&second, bytes).unwrap();
    let names: Vec<String> = tensors(&first).0.into_iter().map(|(name, ..)| name).collect();
    let map: Vec<String> = names.iter().map(|name| format!("{name}:\"m-1.safetensors\"")).collect();
    let index = fixture.path("m.safetensors.index.json");
    let text = format!(r#"{{"weight_map":{{{},"odd":"m-2.safetensors"}}}}"#, map.join(","));
    fs::write(&index, &text).unwrap();
    (index, text)
}

#[test]
fn shards_are_repacked_into_a_folder() {
    let fixture = Fixture::new();
    let (index, text) = sharded(&fixture);
    let folder = fixture.path("packed");
    let done = longshore(&["repack", &index, &folder]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let packed_index = Path::new(&folder).join("m.safetensors.index.json");
    assert_eq!(fs::read_to_string(&packed_index).unwrap(), text);
    let (before, _) = tensors(&index);
    let (after, least) = tensors(packed_index.to_str().unwrap());
    assert!(before == after, "the tensors differ");
    assert!(least >= 64, "{least}");
    // With --force, the index is replaced: a process that has the old one open still reads that.
    fs::write(&packed_index, "old").unwrap();
    let mut old = fs::File::open(&packed_index).unwrap();
    assert_eq!(longshore(&["repack", "--force", &index, &folder]).code, 0);
    assert_eq!(fs::read_to_string(&packed_index).unwrap(), text);
    assert_eq!(std::io::read_to_string(&mut old).unwrap(), "old");
}

#[test]
fn shards_are_repacked_in_their_own_folder() {
    let fixture = Fixture::new();
    let (index, text) = sharded(&fixture);
    let (before, _) = tensors(&index);
    // Also by another path of the same folder.
    let folder = fixture.folder.path().join("x");
    std::os::unix::fs::symlink(".", &folder).unwrap();
    for target in [fixture.folder.path(), &folder] {
        let done = longshore(&["repack", "--force", &index, target.to_str().unwrap()]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert_eq!(fs::read_to_string(&index).unwrap(), text);
        let (after, least) = tensors(&index);
        assert!(before == after, "the tensors differ");
        assert!(least >= 64, "{least}");
    }
}

#[test]
fn a_repacked_file_keeps_its_permissions() {
    let fixture = Fixture::new();
    let (index, _) = sharded(&fixture);
    let shard = fixture.path("m-1.safetensors");
    for path in [&index, &shard] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap();
    }
    let folder = fixture.path("packed");
    assert_eq!(longshore(&["repack", &index, &folder]).code, 0);
    let target = Path::new(&folder);
    for name in ["m-1.safetensors", "m.safetensors.index.json"] {
        let mode = fs::metadata(target.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640, "{name}: {mode:o}");
    }
}

#[test]
fn a_failed_repack_gives_a_reason_and_leaves_nothing_behind() {
    let fixture = Fixture::new();
    let model = fixture.model("model.safetensors");
    let there = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let raw = fixture.path("notes.txt");
    fs::write(&raw, "text").unwrap();
    let before = there(fixture.folder.path()).len();
    let target = fixture.path("packed.safetensors");
    longshore(&["repack", &raw, &target]).expect(15, &["no tensors were found", "notes.txt"]);
    longshore(&["load", &raw, "--align", "64"]).expect(15, &["no tensors were found"]);
    longshore(&["repack", &model, &model]).expect(1, &["exists", "--force"]);
    longshore(&["repack", "--align", "48", &model, &target]).expect(2, &["power of two", "48"]);
    longshore(&["repack", &fixture.path("none.safetensors"), &target]).expect(10, &["none"]);
    let absent = fixture.path("no-folder-here/../packed.safetensors");
    assert_eq!(longshore(&["repack", "/proc/version", &absent]).code, 15);
    longshore(&["repack", &model, "/proc/packed.safetensors"]).expect(10, &["/proc"]);
    assert_eq!(there(fixture.folder.path()).len(), before);
    // In place, with --force.
    assert_eq!(longshore(&["repack", "--force", &model, &model]).code, 0);
    assert!(tensors(&model).1 >= 64);
}
