//! Directories and repositories of the Hugging Face Hub's cache, in place of files.

mod command;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use command::{LONGSHORE, longshore, run};
use serde_json::Value;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Makes a cache of the Hub with the model `org/name` in it, and returns the directory of the revision.
fn cache(dir: &Path) -> PathBuf {
    let repository = dir.join("hub/models--org--name");
    let (snapshot, blobs) = (repository.join("snapshots").join(COMMIT), repository.join("blobs"));
    for folder in [&snapshot, &blobs, &repository.join("refs")] {
        fs::create_dir_all(folder).unwrap();
    }
    let model = dir.join("m.safetensors");
    make_model(&model);
    fs::rename(&model, blobs.join("0f1e")).unwrap();
    symlink("../../blobs/0f1e", snapshot.join("model.safetensors")).unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    snapshot
}

fn make_model(path: &Path) {
    assert_eq!(longshore(&["make-model", "--size", "2MiB", path.to_str().unwrap()]).code, 0);
}

/// Runs the command with this cache, and with `DIR` in an argument replaced by the directory.
fn with_cache(dir: &Path, arguments: &[&str]) -> command::Outcome {
    let arguments = arguments.iter().map(|it| it.replace("DIR", dir.to_str().unwrap()));
    let mut command = Command::new(LONGSHORE);
    // The tests ask no server.
    command.args(arguments).env("HF_HOME", dir).env("HF_HUB_OFFLINE", "1");
    run(command.env_remove("HF_HUB_CACHE"))
}

fn tensor_count(json: &Value) -> usize {
    json["files"].as_array().unwrap().iter().map(|it| it["tensors"].as_array().unwrap().len()).sum()
}

#[test]
fn a_directory_and_a_repository_are_loaded_like_their_file() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let snapshot = cache(dir.path());
    let file = snapshot.join("model.safetensors");
    let expected = tensor_count(&longshore(&["inspect", "--json", file.to_str().unwrap()]).json());
    assert!(expected > 0);
    let repository = "DIR/hub/models--org--name";
    let commit = format!("hf://org/name@{COMMIT}");
    let blob = format!("{repository}/blobs/0f1e");
    let directory = snapshot.to_str().unwrap();
    for source in
        [directory, "hf://org/name", "hf://org/name/model.safetensors", &commit, repository, &blob]
    {
        let inspected = with_cache(dir.path(), &["inspect", "--json", source]).json();
        assert_eq!(tensor_count(&inspected), expected, "{source}");
        let loaded = with_cache(dir.path(), &["load", "--json", source]).json();
        assert_eq!(loaded["tensors"], expected, "{source}");
        let written =
            with_cache(dir.path(), &["cat", "--json", source, "--tensor", "no such name"]);
        assert!(written.stderr.contains("no such name"), "{}", written.stderr);
    }
}

#[test]
fn a_repository_is_given_to_programs() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    cache(dir.path());
    let program = ["exec", "hf://org/name", "--", "sh", "-c", "ls \"$LONGSHORE_MODEL\""];
    let listed = with_cache(dir.path(), &program);
    assert_eq!((listed.code, listed.stdout.as_str()), (0, "config.json\nmodel.safetensors\n"));
    assert!(listed.stderr.contains("/org--name is in "), "{}", listed.stderr);
}

#[test]
fn options_select_files_of_a_directory() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for name in ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "model.safetensors", "x.safetensors"] {
        make_model(&dir.path().join(name));
    }
    let files = |options: &[&str]| -> Vec<String> {
        let arguments = [&["inspect", "--json", "DIR"], options].concat();
        let json = with_cache(dir.path(), &arguments).json();
        let path = |file: &Value| Path::new(file["path"].as_str().unwrap()).to_owned();
        let name = |file: &Value| path(file).file_name().unwrap().to_str().unwrap().to_owned();
        json["files"].as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(files(&[]), ["model.safetensors"]);
    assert_eq!(files(&["--variant", "q8_0"]), ["a-Q8_0.gguf"]);
    assert_eq!(files(&["--include", "*.gguf"]), ["a-Q4_K_M.gguf", "a-Q8_0.gguf"]);
    assert_eq!(files(&["--include", "x*", "--include", "*Q8*"]), ["a-Q8_0.gguf", "x.safetensors"]);
}

#[test]
fn wrong_sources_have_clear_errors() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    cache(dir.path());
    fs::create_dir(dir.path().join("empty")).unwrap();
    fs::create_dir(dir.path().join("two")).unwrap();
    for name in ["two/a.gguf", "two/b.gguf"] {
        make_model(&dir.path().join(name));
    }
    for (code, source, words) in [
        (17, "DIR/empty", "it contains no safetensors and no GGUF files"),
        (2, "DIR/two", "it contains 2 models: \"a.gguf\", \"b.gguf\""),
        (10, "DIR/missing", "No such file"),
        (10, "hf://org/other", "run: hf download org/other"),
        (10, "hf://org/name@v2", "run: hf download org/name --revision v2"),
        (10, "hf://org/name/x.gguf", "run: hf download org/name x.gguf"),
        (17, "hf://org/name:Q4_K_M", "it contains no files of the variant \"Q4_K_M\""),
        (2, "hf://org/name/../x", "expected hf://ORG/NAME"),
    ] {
        for command in ["load", "inspect"] {
            with_cache(dir.path(), &[command, source]).expect(code, &[words]);
        }
    }
    let arguments = ["publish", "--to", "/dev/shm", "hf://org/other"];
    with_cache(dir.path(), &arguments).expect(10, &["run: hf download org/other"]);
    fs::create_dir(dir.path().join("hub/models--org--name/snapshots").join(COMMIT).join("a"))
        .unwrap();
    let arguments = ["publish", "--to", "/dev/shm", "hf://org/name/a"];
    with_cache(dir.path(), &arguments).expect(2, &["give the repository"]);
    let arguments = ["load", "DIR/two/a.gguf", "--variant", "Q8_0"];
    with_cache(dir.path(), &arguments).expect(2, &["it is a file"]);
    let noted = with_cache(dir.path(), &["load", "DIR/hub/models--org--name/refs/main"]);
    let shown = with_cache(dir.path(), &["load", "hf://org/name"]).stdout;
    assert!(shown.contains("  files       ") && shown.contains("model.safetensors"), "{shown}");
    assert!(noted.stdout.contains("refs/main is neither safetensors nor GGUF"), "{}", noted.stdout);
}

#[test]
fn a_load_is_verified_by_the_names_of_the_cache() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let snapshot = cache(dir.path());
    let load = |extra: &[&str]| {
        with_cache(dir.path(), &[&["load", "hf://org/name", "--verify", "hub"], extra].concat())
    };
    load(&[]).expect(15, &["model.safetensors", "use a manifest"]);
    let loaded = with_cache(dir.path(), &["load", "--json", "--verify", "sha256", "hf://org/name"]);
    let sum = loaded.json()["files"][0]["digests"]["sha256"].as_str().unwrap().to_owned();
    let (file, blobs) = (snapshot.join("model.safetensors"), snapshot.join("../../blobs"));
    fs::rename(blobs.join("0f1e"), blobs.join(&sum)).unwrap();
    fs::remove_file(&file).unwrap();
    symlink(format!("../../blobs/{sum}"), &file).unwrap();
    load(&[]).expect(0, &["note: ", "HF_HUB_OFFLINE is set"]);
    load(&["--manifest", "sums"]).expect(2, &["give one"]);
    fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"x").unwrap();
    load(&["--format", "raw"]).expect(16, &["model.safetensors", "sha256 is"]);
}

#[test]
fn a_client_attaches_the_model_of_a_directory() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    cache(dir.path());
    let (root, socket) = (dir.path().join("hub"), dir.path().join("socket"));
    let (root, socket) = (root.to_str().unwrap(), socket.to_str().unwrap());
    let mut server = Command::new(LONGSHORE)
        .args(["serve", "--root", root, "--socket", socket, "--quiet"])
        .spawn()
        .unwrap();
    let waited = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        Path::new(socket).exists()
    });
    assert!(waited);
    let mut lengths = Vec::new();
    for source in ["hf://org/name", "DIR/hub/models--org--name"] {
        let attached = with_cache(dir.path(), &["attach", "--json", "--socket", socket, source]);
        lengths.push(attached.json()["bytes"].clone());
    }
    with_cache(dir.path(), &["attach", "--socket", socket, "DIR"]).expect(17, &["no GGUF files"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(lengths[0].is_u64() && lengths[0] == lengths[1], "{lengths:?}");
}
