//! The other commands.

mod command;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use command::{LONGSHORE, longshore};

#[test]
fn a_made_model_can_be_inspected_and_loaded() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("model.safetensors");
    let name = path.to_str().unwrap();
    let made = longshore(&["make-model", "--size", "32MiB", name]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let len_bytes = fs::metadata(&path).unwrap().len();
    assert!(len_bytes.abs_diff(32 << 20) < (32 << 20) / 100, "{len_bytes}");
    longshore(&["make-model", "--size", "1MiB", name]).expect(1, &["exists", "--force"]);

    let table = longshore(&["inspect", name]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    assert!(table.stdout.lines().count() > 10, "{}", table.stdout);
    for word in ["tensor", "dtype", "shape", "offset", "BF16"] {
        assert!(table.stdout.contains(word), "{word} in {}", table.stdout);
    }
    let json = longshore(&["inspect", "--json", name]).json();
    let tensors = json["files"][0]["tensors"].as_array().unwrap();
    let last = tensors.last().unwrap();
    let end = last["offset"].as_u64().unwrap() + last["bytes"].as_u64().unwrap();
    assert_eq!(end, len_bytes);
    let loaded = longshore(&["load", "--json", name]).json();
    assert_eq!(loaded["tensors"], tensors.len());
}

#[test]
fn a_made_gguf_model_can_be_inspected_and_loaded() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("model.gguf");
    let name = path.to_str().unwrap();
    let made = longshore(&["make-model", "--size", "32MiB", name]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let len_bytes = fs::metadata(&path).unwrap().len();
    assert!(len_bytes.abs_diff(32 << 20) < (32 << 20) / 100, "{len_bytes}");

    let table = longshore(&["inspect", name]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    for word in ["token_embd.weight", "Q4_K", "Q6_K", "F32", "general.architecture: llama"] {
        assert!(table.stdout.contains(word), "{word} in {}", table.stdout);
    }
    let words = table.stdout.lines().find(|line| line.contains("ggml.tokens")).unwrap();
    assert!(words.starts_with("  tokenizer.ggml.tokens: [<unk>, <s>, </s>, <0x00>, "), "{words}");
    assert!(words.ends_with(" of string)") && words.len() < 120, "{words}");
    let json = longshore(&["inspect", "--json", name]).json();
    let file = &json["files"][0];
    let tensors = file["tensors"].as_array().unwrap();
    let last = tensors.last().unwrap();
    let end = last["offset"].as_u64().unwrap() + last["bytes"].as_u64().unwrap();
    assert_eq!((file["format"].as_str(), end.next_multiple_of(32)), (Some("GGUF"), len_bytes));
    assert_eq!(file["metadata"]["llama.attention.layer_norm_rms_epsilon"], 1e-5);
    let rows = tensors[0]["shape"][0].clone();
    let words = serde_json::json!({"type": "string", "len": rows});
    assert_eq!(file["metadata"]["tokenizer.ggml.tokens"], words);
    let loaded = longshore(&["load", "--json", name]).json();
    assert_eq!(loaded["tensors"], tensors.len());

    // The content shows the format if the name does not.
    let blob = dir.path().join("sha256-0123");
    fs::rename(&path, &blob).unwrap();
    let blob = blob.to_str().unwrap();
    assert_eq!(longshore(&["inspect", "--json", blob]).json()["files"][0]["format"], "GGUF");
    let loaded = longshore(&["load", "--json", "--format", "gguf", blob]).json();
    assert_eq!(loaded["tensors"], tensors.len());
}

/// Returns the path of a file of another crate's tests or of a corpus.
fn committed(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join(name).to_str().unwrap().to_owned()
}

#[test]
fn every_value_of_gguf_metadata_is_shown() {
    let name = committed("crates/models/load/tests/gguf/every_value.gguf");
    let table = longshore(&["inspect", &name]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    assert!(!table.stdout.contains(['\u{1b}', '\u{202e}']), "{}", table.stdout);
    for line in [
        "  one.INT8: 127",
        "  one.UINT64: 18446744073709551615",
        "  one.FLOAT32: -3.5",
        "  one.BOOL: true",
        r#"  one.STRING: ä "quoted" \u{202e}\u{1b}[2J\n"#,
        "  many.INT64: [-9223372036854775808, 9223372036854775807, -9223372036854775808, 9223372036854775807]",
        "  nested.deeper: [[[a, b]], [[c]]]",
        "  many.FLOAT32: [0.00001, -3.5, 0.00001, -3.5]",
    ] {
        assert!(table.stdout.lines().any(|shown| shown == line), "{line} in {}", table.stdout);
    }
    let json = longshore(&["inspect", "--json", &name]).json();
    let metadata = &json["files"][0]["metadata"];
    assert_eq!(metadata["nested.numbers"], serde_json::json!([[1, 2], [3], [4, 5, 6]]));
    assert_eq!(metadata["one.FLOAT64"], 2f64.powi(60));
    assert_eq!(json["files"][0]["tensors"][0]["shape"], serde_json::json!([]));
    // Floats that JSON cannot represent.
    let odd =
        longshore(&["inspect", "--json", &committed("fuzz/corpus/gguf_header/sound_every_value")]);
    let metadata = &odd.json()["files"][0]["metadata"];
    assert_eq!((&metadata["f32"], &metadata["f64"]), (&"NaN".into(), &"inf".into()));
}

#[test]
fn gguf_splits_are_inspected_and_loaded_as_one() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for number in 1..=3 {
        let name = format!("split-{number:05}-of-00003.gguf");
        let from = committed(&format!("crates/models/load/tests/gguf/{name}"));
        fs::copy(from, dir.path().join(name)).unwrap();
    }
    let first = dir.path().join("split-00001-of-00003.gguf");
    let first = first.to_str().unwrap();
    let json = longshore(&["inspect", "--json", first]).json();
    assert_eq!(json["files"].as_array().unwrap().len(), 3);
    assert_eq!(longshore(&["load", "--json", first]).json()["tensors"], 5);
    fs::remove_file(dir.path().join("split-00002-of-00003.gguf")).unwrap();
    longshore(&["load", first]).expect(15, &["split-00002-of-00003.gguf", "1 of 3 are missing"]);
}

#[test]
fn hostile_gguf_files_are_refused() {
    for name in ["tensors_ten_million", "string_2_63", "overlap", "big_endian", "key_control"] {
        let path = committed(&format!("fuzz/corpus/gguf_header/{name}"));
        for words in
            [["inspect", "--json", &path].to_vec(), ["load", "--format", "gguf", &path].to_vec()]
        {
            longshore(&words).expect(15, &[name, "is not a valid GGUF file"]);
        }
    }
}

#[test]
fn control_characters_in_tensor_names_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.safetensors");
    let header = br#"{"t\u001b[2J":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let mut whole = (header.len() as u64).to_le_bytes().to_vec();
    whole.extend(header);
    whole.push(0);
    fs::write(&path, whole).unwrap();
    let table = longshore(&["inspect", path.to_str().unwrap()]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    assert!(!table.stdout.contains('\u{1b}'), "{}", table.stdout);
    assert!(table.stdout.contains("u{1b}"), "{}", table.stdout);
}

#[test]
fn files_that_are_not_models_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "a text").unwrap();
    longshore(&["inspect", path.to_str().unwrap()]).expect(15, &["notes.txt", "safetensors"]);
    longshore(&["inspect", "/no/such/file"]).expect(10, &["No such file"]);
}

#[test]
fn the_doctor_has_advice_for_each_missing_feature() {
    let json = longshore(&["doctor", "--json", "/var/tmp"]).json();
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.len() >= 14, "{findings:?}");
    for finding in findings {
        assert!(!finding["found"].as_str().unwrap().is_empty(), "{finding}");
        let fine = finding["state"] == "yes";
        assert_eq!(finding["advice"].is_null(), fine, "{finding}");
    }
    for name in [
        "IOMMU",
        "interrupt remapping",
        "VFIO",
        "devices for VFIO",
        "iommufd",
        "devices for iommufd",
        "locked memory limit",
        "heap hugetlb",
        "2 MiB pages for memfd",
        "2 MiB mappings",
    ] {
        assert_eq!(findings.iter().filter(|f| f["name"] == name).count(), 1, "{name}");
    }
    // A feature is reported as available only if the kernel has its device file.
    for (name, file) in [("VFIO", "/dev/vfio/vfio"), ("iommufd", "/dev/iommu")] {
        let finding = findings.iter().find(|finding| finding["name"] == name).unwrap();
        assert!(finding["state"] != "yes" || Path::new(file).exists(), "{finding}");
    }
    let plain = longshore(&["doctor", "/var/tmp"]);
    assert!(plain.stdout.contains("io_uring"), "{}", plain.stdout);
    let (loading, others) = plain.stdout.split_once("\n\n").expect("three groups");
    let (servers, devices) = others.split_once("\n\n").expect("three groups");
    assert!(servers.starts_with("Credentials") && servers.contains("Amazon S3"), "{servers}");
    assert!(loading.contains("direct I/O") && !loading.contains("IOMMU"), "{loading}");
    assert!(devices.starts_with("Devices of processes") && devices.contains("IOMMU"), "{devices}");
    assert_eq!(fs::read_dir("/var/tmp").unwrap().flatten().filter(is_probe).count(), 0);
}

fn is_probe(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(".longshore-doctor")
}

#[test]
fn help_completions_and_man_pages_are_printed() {
    let help = longshore(&["load", "--help"]);
    for word in ["Examples:", "--exec", "--populate-ahead", "LONGSHORE_FD"] {
        assert!(help.stdout.contains(word), "{word} in {}", help.stdout);
    }
    assert!(longshore(&["--help"]).stdout.contains("Exit codes:"));
    let serve = longshore(&["serve", "--help"]).stdout;
    assert!(serve.contains("--socket-mode 0666 --memory-mode 0444"), "{serve}");
    for shell in ["bash", "zsh", "fish"] {
        let script = longshore(&["completions", shell]).stdout;
        assert!(script.contains("populate-ahead"), "{shell}");
        for value in ["hugetlb", "uncached", "xxh3", "gguf"] {
            assert!(script.contains(value), "{value} is no value in the script for {shell}");
        }
    }
    assert!(longshore(&["man"]).stdout.contains(".TH longshore"));
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("share/man1");
    let made = longshore(&["man", pages.to_str().unwrap()]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(pages.join("longshore-load.1").exists());
}

#[test]
fn a_full_disk_exits_with_13() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    command::run(Command::new(LONGSHORE).arg("man").stdout(full)).expect(13, &["No space left"]);
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = Command::new(LONGSHORE)
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn control_characters_in_names_of_shards_are_escaped() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let name = "a\u{1b}]0;title\u{7}\u{1b}[2Jb.safetensors";
    let header = br#"{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let shard = [&(header.len() as u64).to_le_bytes()[..], header, b"abcd"].concat();
    fs::write(dir.path().join(name), shard).unwrap();
    let index = dir.path().join("m.safetensors.index.json");
    fs::write(&index, serde_json::json!({"weight_map": {"w": name}}).to_string()).unwrap();
    let (index, target) = (index.to_str().unwrap(), dir.path().join("target"));
    for command in [
        &["load", "--verify", "crc32c", index][..],
        &["inspect", index],
        &["repack", index, target.to_str().unwrap()],
    ] {
        let done = longshore(command);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert!(
            done.stdout.contains(r"a\u{1b}]0;title\u{7}\u{1b}[2Jb.safetensors"),
            "{}",
            done.stdout
        );
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!done.stdout.contains(is_control), "{:?}", done.stdout);
    }
}
