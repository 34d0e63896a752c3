//! Programs of the providers that give credentials, such as `aws`.

use std::fmt;
use std::io::{self, ErrorKind, Read as _};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_sys::process_group::ProcessGroup;
use object_store::CredentialProvider;

use super::refusal::Clear;

/// The longest time that a program may take. With single sign-on, it makes a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time until its output is there when it has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which credentials are used. Those of a role are valid for at least 15 minutes.
const VALIDITY: Duration = Duration::from_secs(300);
/// The limit on the output, in bytes. A session token has about 1,000.
const OUTPUT_MAX_BYTES: u64 = 64 << 10;
/// The time between two looks at a program.
const GLANCE: Duration = Duration::from_millis(10);

/// Credentials that a program gives. A thread asks for them, and ends, with the program, when this is dropped.
pub(super) struct Asked<C: fmt::Debug + Send + Sync> {
    state: Arc<Mutex<State<C>>>,
    ask: fn(&AtomicBool) -> io::Result<C>,
    /// The text of an error, with a hint.
    failed: fn(&str) -> String,
    is_ended: Arc<AtomicBool>,
}

/// The credentials that the program has given, or will give.
struct State<C> {
    known: Option<(Instant, Result<Arc<C>, String>)>,
    thread: Option<JoinHandle<()>>,
}

impl<C: fmt::Debug + Send + Sync + 'static> Asked<C> {
    /// Makes the credentials for which `ask` runs a program. It is to end if its argument becomes `true`.
    pub(super) fn new(ask: fn(&AtomicBool) -> io::Result<C>, failed: fn(&str) -> String) -> Self {
        let state = State { known: None, thread: None };
        Self { state: Arc::new(Mutex::new(state)), ask, failed, is_ended: Arc::default() }
    }

    /// Returns the credentials, if they are known; otherwise a thread asks for them.
    fn credential(&self) -> Poll<Result<Arc<C>, String>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.known {
            Some((since, known)) if since.elapsed() < VALIDITY && known.is_ok() => {
                return Poll::Ready(known.clone());
            }
            Some((_, Err(error))) if state.thread.is_none() => {
                let error = Err(error.clone());
                // The next request asks again.
                state.known = None;
                return Poll::Ready(error);
            }
            _ if state.thread.is_some() => return Poll::Pending,
            _ => {}
        }
        let (shared, is_ended, ask) =
            (Arc::clone(&self.state), Arc::clone(&self.is_ended), self.ask);
        let started = thread::Builder::new().name("longshore-keys".to_owned()).spawn(move || {
            let asked = ask(&is_ended).map(Arc::new).map_err(|error| error.to_string());
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            *state = State { known: Some((Instant::now(), asked)), thread: None };
        });
        match started {
            Ok(thread) => {
                state.thread = Some(thread);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.to_string())),
        }
    }
}

impl<C: fmt::Debug + Send + Sync> Drop for Asked<C> {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        let thread = self.state.lock().unwrap_or_else(PoisonError::into_inner).thread.take();
        // It panicked if it fails.
        let _ = thread.map(JoinHandle::join);
    }
}

impl<C: fmt::Debug + Send + Sync> fmt::Debug for Asked<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

impl<C: fmt::Debug + Send + Sync + 'static> CredentialProvider for Asked<C> {
    type Credential = C;

    fn get_credential<'a, 'f>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<C>>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(std::future::poll_fn(|_| {
            self.credential().map(|credential| {
                credential.map_err(|error| {
                    let source = Clear((self.failed)(&error)).into();
                    object_store::Error::Generic { store: "credentials", source }
                })
            })
        }))
    }
}

/// Runs a program, and returns its output. The program is ended, with those that it has started, if `is_ended`
/// returns `true`.
pub(super) fn run(
    program: &str,
    arguments: &[&str],
    is_ended: &dyn Fn() -> bool,
) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut group = ProcessGroup::spawn(&mut command)?;
    let stdout = group.take_stdout();
    let (sender, output) = mpsc::channel();
    thread::Builder::new().name("longshore-keys".to_owned()).spawn(move || {
        let mut text = String::new();
        let read = stdout.map(|it| it.take(OUTPUT_MAX_BYTES).read_to_string(&mut text)).transpose();
        // The receiver may have given up.
        let _ = sender.send(read.map(|_| text));
    })?;
    let until = Instant::now() + TIMEOUT;
    while !group.has_ended()? {
        if Instant::now() >= until || is_ended() {
            return Err(ErrorKind::TimedOut.into());
        }
        thread::sleep(GLANCE);
    }
    // A program that it has started may keep its output open.
    let status = group.end()?;
    if !status.success() {
        return Err(io::Error::other(status.to_string()));
    }
    output.recv_timeout(OUTPUT_TIMEOUT).map_err(|_| io::Error::from(ErrorKind::TimedOut))?
}
