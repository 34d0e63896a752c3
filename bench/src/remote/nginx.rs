//! A server of the model, and of a repository of the Hub that has it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::model::{Model, NAME, SPARSE};
use super::process::{await_port, end, free_port};
use crate::harness::Trouble;

const PROGRAM: &str = "/usr/sbin/nginx";
/// The repository and its commit.
pub(super) const REPOSITORY: &str = "org/name";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// An nginx with two workers, which ends with the bench.
pub(super) struct Nginx<'m> {
    process: Child,
    pub(super) model: &'m Model,
    port: u16,
    tls_port: u16,
    hub_port: u16,
}

impl<'m> Nginx<'m> {
    /// Starts a server of the model.
    ///
    /// # Errors
    /// [`Trouble::NotRun`] if nginx or openssl is not installed.
    pub(super) fn start(model: &'m Model) -> Result<Self, Trouble> {
        if !PathBuf::from(PROGRAM).is_file() {
            return Err(Trouble::NotRun("nginx is not installed".to_owned()));
        }
        let path = model.folder();
        for arguments in [
            "req -x509 -days 2 -newkey rsa:2048 -nodes -subj /CN=ca -keyout ca.key -out ca.pem",
            "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request.pem",
            "x509 -req -days 2 -CA ca.pem -CAkey ca.key -CAcreateserial -in request.pem -extfile names \
             -out leaf.pem",
        ] {
            fs::write(path.join("names"), "subjectAltName=DNS:localhost").context("writing")?;
            let mut command = Command::new("openssl");
            command.args(arguments.split_whitespace()).current_dir(path);
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            match status {
                Ok(status) if status.success() => {}
                _ => return Err(Trouble::NotRun("openssl is not installed".to_owned())),
            }
        }
        describe_repository(model).context("writing the description of the repository")?;
        let (port, tls_port, hub_port) = (free_port()?, free_port()?, free_port()?);
        let (shown, root) = (path.display(), model.root());
        let (root, len_bytes) = (root.display(), model.len_bytes);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|it| format!("{it}_temp_path {shown}/{it};"))
            .concat();
        let config = format!(
            "daemon off; worker_processes 2; pid {shown}/pid; error_log {shown}/errors; \
             events {{ worker_connections 1024; }} \
             http {{ {temporary} access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; \
             root {root}; log_format sent '$bytes_sent'; \
             server {{ listen 127.0.0.1:{port}; \
             location = /{SPARSE} {{ access_log {shown}/sent sent; }} }} \
             server {{ listen 127.0.0.1:{hub_port}; root {shown}/hub; \
             location /{REPOSITORY}/resolve/ {{ add_header X-Repo-Commit {COMMIT} always; \
             add_header X-Linked-Size {len_bytes} always; add_header X-Linked-Etag '\"{COMMIT}\"' always; \
             return 302 http://127.0.0.1:{port}/{NAME}; }} }} \
             server {{ listen 127.0.0.1:{tls_port} ssl; ssl_certificate {shown}/leaf.pem; \
             ssl_certificate_key {shown}/key.pem; }} }}"
        );
        fs::write(path.join("config"), config).context("writing the configuration")?;
        let mut command = Command::new(PROGRAM);
        let command = command.arg("-c").arg(path.join("config")).stderr(Stdio::null());
        let process = command.spawn().context("starting nginx")?;
        let started = Self { process, model, port, tls_port, hub_port };
        [port, tls_port, hub_port].into_iter().try_for_each(|port| await_port(port, "nginx"))?;
        Ok(started)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the file.
    pub(super) fn url(&self, is_tls: bool) -> String {
        match is_tls {
            true => format!("https://localhost:{}/{NAME}", self.tls_port),
            false => self.url_at(self.port),
        }
    }

    /// Returns the URL of the file by a proxy that listens there.
    pub(super) fn url_at(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}/{NAME}")
    }

    /// Returns the URL of the sparse model.
    pub(super) fn sparse_url(&self) -> String {
        format!("http://127.0.0.1:{}/{SPARSE}", self.port)
    }

    /// Returns the URL of the Hub. The name of its host is not that of the storage.
    pub(super) fn hub_url(&self) -> String {
        format!("http://localhost:{}", self.hub_port)
    }

    /// Returns the certificate of the authority.
    pub(super) fn authority(&self) -> PathBuf {
        self.model.folder().join("ca.pem")
    }

    /// Returns how many bytes each response with a part of the sparse model had, with the heads.
    pub(super) fn sent(&self) -> Result<Vec<u64>> {
        let text = fs::read_to_string(self.model.folder().join("sent"))?;
        text.lines().map(|line| Ok(line.parse()?)).collect()
    }
}

impl Drop for Nginx<'_> {
    fn drop(&mut self) {
        // A signal that lets it end its workers.
        end(&mut self.process);
    }
}

/// Writes the file that describes the repository.
fn describe_repository(model: &Model) -> Result<()> {
    let revision = model.folder().join("hub/api/models").join(REPOSITORY).join("revision");
    fs::create_dir_all(&revision)?;
    let siblings = serde_json::json!([{ "rfilename": NAME }]);
    let description = serde_json::json!({ "sha": COMMIT, "siblings": siblings });
    Ok(fs::write(revision.join("main"), description.to_string())?)
}

/// Returns the version of the program, if it is installed.
pub(super) fn version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("-v").output().ok()?;
    Some(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
