//! `longshore cat`.

mod command;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use command::{LONGSHORE, longshore};
use serde_json::Value;

/// Writes a model, and returns its path and its content with the tensors.
fn model(dir: &Path) -> (String, Vec<u8>, Vec<Value>) {
    let path = dir.join("model.safetensors");
    let name = path.to_str().unwrap().to_owned();
    assert_eq!(longshore(&["make-model", "--size", "16MiB", &name]).code, 0);
    let json = longshore(&["inspect", "--json", &name]).json();
    let tensors = json["files"][0]["tensors"].as_array().unwrap().clone();
    (name, fs::read(path).unwrap(), tensors)
}

fn cat(arguments: &[&str]) -> (Vec<u8>, Value) {
    let output = Command::new(LONGSHORE).arg("cat").args(arguments).arg("--json").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    (output.stdout, serde_json::from_str(&errors).unwrap())
}

#[test]
fn the_bytes_of_the_selected_tensors_are_written() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (name, content, tensors) = model(dir.path());
    let number = |tensor: &Value, key: &str| tensor[key].as_u64().unwrap() as usize;
    let bytes = |tensor: &Value| {
        let start = number(tensor, "offset");
        &content[start..start + number(tensor, "bytes")]
    };
    let start = number(&tensors[0], "offset");
    let (written, report) = cat(&[&name]);
    assert!(written == content[start..]);
    assert_eq!(report["tensors"].as_array().unwrap().len(), tensors.len());
    for tensor in &tensors {
        let (written, report) = cat(&[&name, "--tensor", tensor["name"].as_str().unwrap()]);
        assert!(written == bytes(tensor), "{tensor}");
        assert!(number(&report, "bytes_read") < written.len() + 8192);
        assert_eq!(report["tensors"][0]["shape"], tensor["shape"]);
    }
    let matrix = tensors.iter().find(|tensor| tensor["shape"].as_array().unwrap().len() == 2);
    let matrix = matrix.unwrap();
    let rows = matrix["shape"][0].as_u64().unwrap() as usize;
    let row = number(matrix, "bytes") / rows;
    let (written, _) =
        cat(&[&name, "--tensor", matrix["name"].as_str().unwrap(), "--rows", "3..7"]);
    assert!(written == bytes(matrix)[3 * row..7 * row]);
}

#[test]
fn a_pipe_that_is_closed_is_not_an_error() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (name, content, tensors) = model(dir.path());
    let mut child = Command::new(LONGSHORE)
        .args(["cat", &name])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 16];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    let start = tensors[0]["offset"].as_u64().unwrap() as usize;
    assert_eq!(first, content[start..start + 16]);
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !errors.contains("rror"), "{errors}");
}

#[test]
fn wrong_requests_have_clear_errors() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (name, _, tensors) = model(dir.path());
    let first = tensors[0]["name"].as_str().unwrap();
    longshore(&["cat", &name, "--tensor", "no such"]).expect(2, &["no tensor", "no such"]);
    longshore(&["cat", &name, "--tensor", "no*such"]).expect(2, &["no tensor"]);
    longshore(&["cat", &name, "--tensor", first, "--rows", "0..99999999"]).expect(2, &["rows"]);
    longshore(&["cat", &name, "--rows", "1"]).expect(2, &["0..128"]);
    longshore(&["cat", &name, "--memory", "4KiB"]).expect(20, &["memory of the stream"]);
    let raw = dir.path().join("raw.bin");
    fs::write(&raw, "no tensors").unwrap();
    longshore(&["cat", raw.to_str().unwrap()]).expect(15, &["no tensors"]);
}

#[test]
fn a_signal_ends_a_write_that_waits() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (name, ..) = model(dir.path());
    let mut command = Command::new(LONGSHORE);
    // A pipe that is full and is not read.
    let mut child = command.args(["cat", &name]).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
}
