//! A server of one file, in memory.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use tempfile::TempDir;

use crate::harness::Trouble;

const PROGRAM: &str = "/usr/sbin/nginx";
const NAME: &str = "model.bin";

/// An nginx with two workers, which ends with the bench.
pub(super) struct Nginx {
    process: Child,
    dir: TempDir,
    port: u16,
    tls_port: u16,
    pub(super) len_bytes: u64,
}

impl Nginx {
    /// Starts a server of a file of this length.
    ///
    /// # Errors
    /// [`Trouble::NotRun`] if nginx or openssl is not installed.
    pub(super) fn start(len_bytes: u64) -> Result<Self, Trouble> {
        if !PathBuf::from(PROGRAM).is_file() {
            return Err(Trouble::NotRun("nginx is not installed".to_owned()));
        }
        let dir = tempfile::tempdir_in("/dev/shm").context("making a directory in /dev/shm")?;
        let path = dir.path();
        fs::create_dir(path.join("root")).context("making a directory")?;
        let file = File::create(path.join("root").join(NAME)).context("making the file")?;
        // The workers of nginx are another user, if this one is root.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).context("permitting the directory")?;
        fill(&file, len_bytes)?;
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
        let (port, tls_port) = (free_port()?, free_port()?);
        let shown = path.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|it| format!("{it}_temp_path {shown}/{it};"))
            .concat();
        let config = format!(
            "daemon off; worker_processes 2; pid {shown}/pid; error_log {shown}/errors; \
             events {{ worker_connections 1024; }} \
             http {{ {temporary} access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; \
             root {shown}/root; \
             server {{ listen 127.0.0.1:{port}; }} \
             server {{ listen 127.0.0.1:{tls_port} ssl; ssl_certificate {shown}/leaf.pem; \
             ssl_certificate_key {shown}/key.pem; }} }}"
        );
        fs::write(path.join("config"), config).context("writing the configuration")?;
        let mut command = Command::new(PROGRAM);
        let command = command.arg("-c").arg(path.join("config")).stderr(Stdio::null());
        let process = command.spawn().context("starting nginx")?;
        let started = Self { process, dir, port, tls_port, len_bytes };
        for port in [port, tls_port] {
            let listens = (0..100).any(|_| {
                thread::sleep(Duration::from_millis(50));
                TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            if !listens {
                return Err(anyhow!("nginx does not listen").into());
            }
        }
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

    /// Returns the certificate of the authority.
    pub(super) fn authority(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(super) fn version(&self) -> String {
        let output = Command::new(PROGRAM).arg("-v").output();
        let text = output.map(|it| String::from_utf8_lossy(&it.stderr).trim().to_owned());
        text.unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // A signal that lets it end its workers.
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

/// Writes bytes that no page or file system can store as fewer.
fn fill(mut file: &File, len_bytes: u64) -> anyhow::Result<()> {
    let mut block = vec![0u8; 1 << 20];
    let mut state = 1u64;
    for word in block.chunks_exact_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        word.copy_from_slice(&state.to_le_bytes());
    }
    for _ in 0..len_bytes >> 20 {
        std::io::Write::write_all(&mut file, &block)?;
    }
    ensure!(file.metadata()?.len() == len_bytes, "the file has another length");
    Ok(())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
