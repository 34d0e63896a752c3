//! A server in a thread, files to serve, and clients that can send any message.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_load::CancelToken;
use longshore_load::FormatChoice;
use longshore_serve::protocol::{MESSAGE_BYTES_MAX, Reply, Request, Target, VERSION};
use longshore_serve::{
    Attachment, Client, Error, Event, Listener, Listing, Options, Reason, Result, Server, Stop,
    Wanted,
};
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Watch};

/// A limit that is reached only by an event that never happens.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) socket: PathBuf,
    stop: Stop,
    thread: Option<JoinHandle<Result<()>>>,
    events: Mutex<Receiver<Event>>,
}

impl Rig {
    /// Starts a server of the directory `root`, and of those that the options name.
    pub(crate) fn new(options: Options) -> Self {
        Self::observed(options, |_, _| {})
    }

    /// As [`Self::new`]; the server's thread calls `observe` with each event and the root.
    pub(crate) fn observed(
        options: Options,
        observe: impl FnMut(&Event, &Path) + Send + 'static,
    ) -> Self {
        Self::prepared(options, observe, |_| {})
    }

    /// As [`Self::observed`]; `prepare` is called with the root before the server starts.
    pub(crate) fn prepared(
        options: Options,
        mut observe: impl FnMut(&Event, &Path) + Send + 'static,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        prepare(&root);
        let socket = dir.path().join("socket");
        let mut options = options;
        options.roots.insert(0, root.clone());
        let stop = Stop::new().unwrap();
        let listener = Listener::bind(&socket, 0o600).unwrap();
        let server = Server::new(listener, options, stop.clone()).unwrap();
        let (sender, events) = mpsc::channel();
        let run = move || {
            server.run(|event| {
                observe(event, &root);
                let _ = sender.send(event.clone());
            })
        };
        let thread = Some(thread::spawn(run));
        Self { dir, socket, stop, thread, events: Mutex::new(events) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("root").join(name)
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    pub(crate) fn client(&self) -> Result<Client> {
        Client::connect(Some(&self.socket), &CancelToken::new())
    }

    pub(crate) fn attach(&self, wanted: &Wanted) -> Result<Attachment> {
        self.client()?.attach(wanted, FormatChoice::Auto, &mut |_| {})
    }

    pub(crate) fn attach_path(&self, path: &Path) -> Result<Attachment> {
        self.attach(&Wanted::Path(path.to_owned()))
    }

    pub(crate) fn list(&self) -> Listing {
        self.client().unwrap().list().unwrap()
    }

    /// Waits for an event for which `is_it` returns a value, and returns that value.
    pub(crate) fn wait<T>(&self, mut is_it: impl FnMut(&Event) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.lock().unwrap().recv_timeout(left).expect("the event comes");
            if let Some(found) = is_it(&event) {
                return found;
            }
        }
    }

    pub(crate) fn wait_freed(&self) -> u64 {
        self.wait(|event| match event {
            Event::Freed { id, .. } => Some(*id),
            _ => None,
        })
    }

    /// Waits until a model without clients is freed, or its load is cancelled; returns `freed` or the reason.
    pub(crate) fn wait_freed_or_given_up(&self) -> String {
        self.wait(|event| match event {
            Event::LoadFailed { why, .. } => Some(why.to_string()),
            Event::Freed { .. } => Some("freed".to_owned()),
            _ => None,
        })
    }

    pub(crate) fn wait_disconnected(&self) -> String {
        self.wait(|event| match event {
            Event::Disconnected { why, .. } => Some(why.to_string()),
            _ => None,
        })
    }

    /// Returns the events that no test has waited for.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().try_iter().collect()
    }

    /// Connects a client that can send any message.
    pub(crate) fn raw(&self) -> Raw {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match packet_socket::connect(&self.socket) {
                // The queue of connections is full.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(Instant::now() < deadline, "the server accepts no connection");
                    thread::yield_now();
                }
                connected => return Raw(connected.unwrap()),
            }
        }
    }

    /// Lets every user connect.
    pub(crate) fn open_to_all(self) -> Self {
        for (path, mode) in [(self.dir.path(), 0o755), (&self.socket, 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        self
    }

    /// Connects a client of another user, which only root can do.
    pub(crate) fn raw_of(&self, uid: u32) -> Raw {
        thread::scope(|scope| {
            let connect = || {
                // This changes only the calling thread.
                let uid = rustix::process::Uid::from_raw(uid);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                self.raw()
            };
            scope.spawn(connect).join().unwrap()
        })
    }

    /// Requests that the server ends, and does not wait.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.stop();
    }

    /// Ends the server, as SIGTERM does.
    pub(crate) fn stop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let deadline = Instant::now() + PATIENCE;
            while !thread.is_finished() {
                assert!(Instant::now() < deadline, "the server does not end");
                thread::sleep(Duration::from_millis(1));
            }
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.stop();
            assert!(!self.socket.exists(), "the server has left its socket");
        }
    }
}

/// A client that sends any message.
pub(crate) struct Raw(pub(crate) OwnedFd);

impl Raw {
    pub(crate) fn greeted(self) -> Self {
        self.send(&Request::Hello { version: VERSION }, None);
        assert!(matches!(self.receive(), Some(Reply::Welcome { .. })));
        self
    }

    pub(crate) fn send(&self, request: &Request, file: Option<BorrowedFd<'_>>) {
        packet_socket::send(&self.0, &request.encode(), file).unwrap();
    }

    pub(crate) fn attach(&self, path: &Path, file: impl AsFd) {
        let target = Target::Path(path.to_owned());
        let format = "auto".to_owned();
        self.send(&Request::Attach { target, format, align_bytes: 0 }, Some(file.as_fd()));
    }

    /// Returns the next reply, or `None` if the server has closed the connection.
    pub(crate) fn receive(&self) -> Option<Reply> {
        self.receive_with_memory().map(|(reply, _)| reply)
    }

    pub(crate) fn receive_with_memory(&self) -> Option<(Reply, Option<OwnedFd>)> {
        let watch = Watch { fd: self.0.as_fd(), read: true, write: false };
        let ready = readiness::wait(&[watch], Some(Instant::now() + PATIENCE)).unwrap();
        assert!(ready[0].read || ready[0].gone, "the server answers");
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        // A server that leaves descriptors unread resets the connection. The kernel reports that once, before
        // the last message.
        let mut receive = || packet_socket::receive(&self.0, &mut bytes);
        let packet = receive().or_else(|_| receive()).ok()?;
        if packet.len_bytes == 0 {
            return None;
        }
        let reply = Reply::decode(&bytes[..packet.len_bytes]).unwrap();
        Some((reply, packet.descriptors.into_iter().next()))
    }

    /// Returns the next reply that does not report progress.
    pub(crate) fn receive_result(&self) -> Option<(Reply, Option<OwnedFd>)> {
        loop {
            match self.receive_with_memory() {
                Some((Reply::Progress { .. }, _)) => {}
                received => return received,
            }
        }
    }

    /// Returns the reason and the message of a refusal.
    pub(crate) fn receive_refusal(&self) -> (Reason, String) {
        match self.receive() {
            Some(Reply::Refused { reason, message }) => (reason, message),
            other => panic!("no refusal: {other:?}"),
        }
    }
}

/// Returns the reason of a refusal.
pub(crate) fn refused<T: std::fmt::Debug>(outcome: Result<T>) -> Reason {
    match outcome {
        Err(Error::Refused { reason, .. }) => reason,
        other => panic!("no refusal: {other:?}"),
    }
}

pub(crate) fn content(len_bytes: usize, seed: u32) -> Vec<u8> {
    (0..len_bytes)
        .map(|at| (at as u32 ^ seed).wrapping_mul(2_654_435_761).to_le_bytes()[3])
        .collect()
}
