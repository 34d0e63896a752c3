//! versitygw, a server with the protocol of S3 over a folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::fs::XattrFlags;

use super::model::{BUCKET, Model, NAME, SMALL};
use super::process::{await_port, end, free_port};
use crate::harness::Trouble;
use crate::harness::program::last_lines;
use crate::load::data::cache;

/// The Go module of the program, and its version.
const MODULE: &str = "github.com/versity/versitygw";
pub(super) const VERSION: &str = "v1.8.0";
/// The place of Go's own installation, which may not be in `PATH`.
const GO: &str = "/usr/local/go/bin/go";
/// The access key of a server that only this machine can reach.
const ACCESS_KEY: &str = "bench";
const SECRET_KEY: &str = "bench-secret";

/// A server of the model as an object, which ends with the bench.
pub(super) struct Versitygw<'m> {
    process: Child,
    pub(super) model: &'m Model,
    port: u16,
}

impl<'m> Versitygw<'m> {
    /// Starts a server of the model.
    ///
    /// # Errors
    /// [`Trouble::NotRun`] if the program is not installed, and cannot or must not be.
    pub(super) fn start(model: &'m Model, installs: bool) -> Result<Self, Trouble> {
        let program =
            program(installs).map_err(|error| Trouble::NotRun(format!("versitygw: {error:#}")))?;
        for name in [NAME, SMALL] {
            // Objects that were not uploaded have no ETag.
            let etag = format!("\"{name}\"");
            let path = model.root().join(name);
            rustix::fs::setxattr(&path, "user.etag", etag.as_bytes(), XattrFlags::empty())
                .map_err(|error| Trouble::NotRun(format!("a tmpfs without attributes: {error}")))?;
        }
        let port = free_port()?;
        let mut command = Command::new(program);
        command.args(["--access", ACCESS_KEY, "--secret", SECRET_KEY]);
        // Without this option each connection ends after one request, which S3 does not do.
        command.args(["--keep-alive", "--quiet", "--port", &format!("127.0.0.1:{port}")]);
        command.arg("posix").arg(model.buckets()).current_dir(model.folder());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let started = Self { process: process.context("starting versitygw")?, model, port };
        await_port(port, "versitygw")?;
        Ok(started)
    }

    /// Sets the variables that all clients read.
    pub(super) fn set<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .envs([("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)])
            .envs([("AWS_REGION", "us-east-1"), ("AWS_DEFAULT_REGION", "us-east-1")])
            .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port))
            .envs([("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", "/dev/null")])
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .env_remove("AWS_SESSION_TOKEN")
            .env_remove("AWS_PROFILE")
    }
}

impl Drop for Versitygw<'_> {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Returns the URL of an object.
pub(super) fn url(name: &str) -> String {
    format!("s3://{BUCKET}/{name}")
}

/// Returns the program in the bench's cache. If it is not there, Go builds it, which takes minutes.
fn program(installs: bool) -> Result<PathBuf> {
    let cache = cache()?;
    let folder = cache.join(format!("versitygw-{VERSION}"));
    let program = folder.join("versitygw");
    if program.is_file() {
        return Ok(program);
    }
    ensure!(installs, "it is not installed; run with --peers");
    fs::create_dir_all(&folder)?;
    // Two benches must not build it at once.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    if program.is_file() {
        return Ok(program);
    }
    let go = if Path::new(GO).is_file() { GO } else { "go" };
    eprintln!("building versitygw {VERSION}, which takes some minutes");
    let mut command = Command::new(go);
    command.arg("install").arg(format!("{MODULE}/cmd/versitygw@{VERSION}"));
    let answer = command.env("GOBIN", &folder).output().context("go is not installed")?;
    let said = String::from_utf8_lossy(&answer.stderr);
    ensure!(answer.status.success() && program.is_file(), "go: {}", last_lines(&said));
    Ok(program)
}
