//! Attaches a model of a server, without holding the GIL while it waits.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use longshore_formats::Header;
use longshore_load as load;
use longshore_load::FormatChoice;
use longshore_load::Progress;
use longshore_serve::{self as serve, Attachment, Client, Trust, Wanted};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::cancel::CancelToken;
use crate::error;
use crate::file::{File, Made};
use crate::load::word;
use crate::memory::{Backing, Source};

/// The interval at which signals are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The model to attach, by its number or by its name.
#[derive(FromPyObject)]
pub(crate) enum Which {
    Number(u64),
    Word(OsString),
}

/// A message of the thread that waits for the server.
enum Said {
    Progress(Progress),
    Done(serve::Result<Attachment>),
}

/// Attaches a model; `longshore.attach` describes the arguments. `observe` is as for `load`.
#[pyfunction]
#[pyo3(signature = (wanted, *, socket, format, observe, trust_uid, cancel))]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is converted to them")]
pub(crate) fn attach(
    py: Python<'_>,
    wanted: Which,
    socket: Option<PathBuf>,
    format: &str,
    observe: Option<Py<PyAny>>,
    trust_uid: Vec<u32>,
    cancel: Option<Py<CancelToken>>,
) -> PyResult<Buffer> {
    let format: FormatChoice = word(format)?;
    let wanted = match wanted {
        Which::Number(id) => Wanted::Id(id),
        Which::Word(word) => Wanted::Word(word),
    };
    let cancel = CancelToken::for_call(cancel.as_ref().map(Py::get));
    let mut raised = None;
    let attached = py.detach(|| {
        waited_for((socket.as_deref(), trust_uid), &wanted, format, &cancel, |progress| {
            if raised.is_some() {
                return;
            }
            let told = Python::attach(|py| {
                py.check_signals()?;
                match (&observe, progress) {
                    (Some(observe), Some(Progress { done_bytes, total_bytes, .. })) => {
                        observe.call1(py, (done_bytes, total_bytes)).map(drop)
                    }
                    _ => Ok(()),
                }
            });
            if let Err(error) = told {
                raised = Some(error);
                cancel.cancel();
            }
        })
    });
    if let Some(error) = raised {
        py.detach(|| drop(attached));
        return Err(error);
    }
    let attachment = attached.map_err(|error| error::raised_by_server(py, &error))?;
    let headers = py.detach(|| headers(&attachment, format));
    let headers = headers.map_err(|error| error::raised(py, &error))?;
    into_buffer(py, attachment, headers)
}

/// Attaches on a thread of its own, and calls `look` on this thread: with each progress report of
/// the server, and with `None` every [`LOOK_EVERY`] in between.
fn waited_for(
    (socket, trust_uid): (Option<&Path>, Vec<u32>),
    wanted: &Wanted,
    format: FormatChoice,
    cancel: &load::CancelToken,
    mut look: impl FnMut(Option<Progress>),
) -> serve::Result<Attachment> {
    let (says, hears) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            // The receiver lives until it gets `Done`, so this result is not needed.
            let mut progress = |progress| drop(says.send(Said::Progress(progress)));
            let trust = Trust::from_env().map(|trust| trust.and(trust_uid));
            let client = trust.and_then(|trust| Client::connect_with(socket, &trust, cancel));
            let done = client.and_then(|client| client.attach(wanted, format, &mut progress));
            let _ = says.send(Said::Done(done));
        });
        loop {
            match hears.recv_timeout(LOOK_EVERY) {
                Ok(Said::Progress(progress)) => look(Some(progress)),
                Ok(Said::Done(done)) => return done,
                Err(RecvTimeoutError::Timeout) => look(None),
                // The thread has panicked, and the scope resumes that panic.
                Err(RecvTimeoutError::Disconnected) => return Err(serve::Error::ServerGone),
            }
        }
    })
}

/// Parses the headers of the files from the attached memory.
fn headers(attachment: &Attachment, format: FormatChoice) -> load::Result<Vec<Option<Header>>> {
    let files = attachment.files().iter();
    files
        .map(|file| {
            // The range was checked when the server's reply was received.
            let content = attachment.file_bytes(file).unwrap_or_default();
            load::parse_header(&file.path, content, format)
        })
        .collect()
}

fn into_buffer(
    py: Python<'_>,
    attachment: Attachment,
    headers: Vec<Option<Header>>,
) -> PyResult<Buffer> {
    let files = attachment.files().to_vec();
    let backing = Backing::new(Source::Attached(attachment), false);
    let files = files.into_iter().zip(headers).map(|(file, header)| File {
        identity: None,
        path: file.path,
        offset: file.buffer_offset,
        nbytes: file.len_bytes,
        digests: Vec::new(),
        header,
        backing: backing.clone(),
        made: Made::new(),
    });
    let files = files.collect();
    Buffer::new(py, backing, None, files)
}
