//! A server that holds the model.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use longshore_load::{CancelToken, FormatChoice};
use longshore_serve::{Attachment, Client, Wanted};

use super::place::Place;
use crate::harness::Trouble;
use crate::load::tools;

/// `longshore serve` with a model, and an attachment to its memory.
pub(super) struct Server {
    child: Child,
    pub(super) socket: PathBuf,
    /// The path of the memory.
    pub(super) path: PathBuf,
    attachment: Option<Attachment>,
}

impl Server {
    /// Starts the server, and returns when it has loaded the model.
    pub(super) fn start(model: &Path, place: &Place) -> Result<Self, Trouble> {
        let mut command = tools::own_command().map_err(Trouble::NotRun)?;
        let socket = place.path().join("serve.sock");
        command.arg("serve").arg(model).arg("--socket").arg(&socket);
        let child = command.stdout(Stdio::null()).spawn().context("starting the server")?;
        let mut server = Self { child, socket, path: PathBuf::new(), attachment: None };
        let deadline = Instant::now() + Duration::from_secs(120);
        let client = loop {
            match Client::connect(Some(&server.socket), &CancelToken::new()) {
                Ok(client) => break client,
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let wanted = Wanted::Path(model.to_owned());
        let attachment = client.attach(&wanted, FormatChoice::Auto, &mut |_| {})?;
        let memfd = std::os::fd::AsRawFd::as_raw_fd(&attachment.memfd());
        server.path = PathBuf::from(format!("/proc/{}/fd/{memfd}", std::process::id()));
        server.attachment = Some(attachment);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.attachment.take());
        // The server frees the model.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
