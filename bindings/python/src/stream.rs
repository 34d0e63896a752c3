//! Streams: tensors one after the other, in bounded memory. Other Python threads run while a call waits.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longshore_load::{
    self as library, DigestKind, FormatChoice, Loader, Manifest, OnFull, Order, ReadMode, Rows,
    Selection, StreamOptions, StreamReport,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cancel::CancelToken;
use crate::error;
use crate::files::{Name, Named};
use crate::load::word;
use crate::servers;
use crate::tensor::Tensor;

/// Rows of a tensor, as Python passes them: the name of the kind and two numbers.
type RowsOf = (String, u64, u64);

/// A stream of tensors; `longshore.stream` describes it.
#[pyclass(frozen, weakref, module = "longshore._core")]
pub(crate) struct Stream(Mutex<State>);

/// The state of a stream.
enum State {
    Open(Arc<library::Stream>),
    /// The report and the checksums at the end.
    Closed(Box<StreamReport>, Vec<FileDigests>),
}

/// The checksums of a file.
type FileDigests = (PathBuf, Vec<(DigestKind, String)>);

/// Begins to read tensors; `longshore.stream` describes the arguments.
#[pyfunction]
#[pyo3(signature = (
    files, *, mode, format, names, patterns, in_files, rows, rows_of, digests, manifest, memory, by_file,
    wait, grow, storage_options, timeout, connections, cancel
))]
#[expect(
    clippy::too_many_arguments,
    clippy::needless_pass_by_value,
    reason = "Python names them, and what it gives is converted to them"
)]
pub(crate) fn stream(
    py: Python<'_>,
    files: Vec<Name>,
    mode: &str,
    format: &str,
    names: Vec<String>,
    patterns: Vec<String>,
    in_files: Vec<PathBuf>,
    rows: Option<RowsOf>,
    rows_of: HashMap<String, RowsOf>,
    digests: Vec<String>,
    manifest: Option<PathBuf>,
    memory: Option<u64>,
    by_file: bool,
    wait: f64,
    grow: bool,
    storage_options: Vec<(String, String)>,
    timeout: Option<f64>,
    connections: Option<usize>,
    cancel: Option<Py<CancelToken>>,
) -> PyResult<Stream> {
    let cancel = CancelToken::for_call(cancel.as_ref().map(Py::get));
    let named = Named::new(py, files, servers::access(&storage_options, timeout)?)?.cancel(&cancel);
    let (mode, format) = (word::<ReadMode>(mode)?, word::<FormatChoice>(format)?);
    let digests: Vec<DigestKind> =
        digests.iter().map(|kind| word(kind)).collect::<PyResult<_>>()?;
    let mut selection = Selection::all();
    selection = names.into_iter().fold(selection, Selection::name);
    selection = patterns.into_iter().fold(selection, Selection::pattern);
    selection = in_files.into_iter().fold(selection, Selection::file);
    if let Some(rows) = rows {
        selection = selection.rows(rows_from(&rows)?);
    }
    for (name, rows) in rows_of {
        selection = selection.rows_of(name, rows_from(&rows)?);
    }
    let wait = match wait {
        f64::INFINITY => Duration::MAX,
        wait => Duration::try_from_secs_f64(wait)
            .map_err(|error| PyValueError::new_err(format!("wait={wait}: {error}")))?,
    };
    let order = if by_file { Order::File } else { Order::Completion };
    let on_full = if grow { OnFull::Grow } else { OnFull::Fail };
    let mut options = StreamOptions::new().order(order).wait(wait).on_full(on_full);
    if let Some(bytes) = memory {
        options = options.memory(bytes);
    }
    let made = py.detach(|| {
        let manifest = manifest.map(Manifest::open).transpose()?;
        let mut loader = digests.into_iter().fold(Loader::new(), Loader::digest);
        loader = loader.mode(mode).cancel(&cancel);
        if let Some(manifest) = &manifest {
            loader = loader.manifest(manifest);
        }
        if let Some(count) = connections {
            loader = loader.connections(count);
        }
        loader.stream(named.open(format)?, &selection, &options)
    });
    let stream = made.map_err(|error| match &error {
        // The arguments do not fit the files.
        library::Error::Stream { .. } => PyValueError::new_err(error.to_string()),
        error => error::raised(py, error),
    })?;
    let stream = Stream(Mutex::new(State::Open(Arc::new(stream))));
    servers::warn(py, named.remote())?;
    Ok(stream)
}

fn rows_from((kind, one, other): &RowsOf) -> PyResult<Rows> {
    match kind.as_str() {
        "range" => Ok(Rows::Range(*one..*other)),
        "share" => Ok(Rows::Share { index: *one, count: *other }),
        kind => Err(PyValueError::new_err(format!("unknown rows '{kind}'"))),
    }
}

impl Drop for Stream {
    /// Waits for the threads of the stream without holding the GIL.
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}

impl Stream {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Stream {
    /// Returns the next tensor; None after the last. A signal handler can raise an exception meanwhile,
    /// after which the stream can go on.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        let stream = match &*self.state() {
            State::Open(stream) => Arc::clone(stream),
            State::Closed(..) => return Err(PyValueError::new_err("the stream is closed")),
        };
        let mut raised = None;
        let next = py.detach(|| {
            stream.next_while(|| {
                let signals = Python::attach(|py| {
                    // An exception of a signal handler.
                    py.check_signals()
                });
                signals.map_err(|error| raised = Some(error)).is_ok()
            })
        });
        match raised {
            Some(error) => Err(error),
            None => match next {
                Ok(tensor) => Ok(tensor.map(Tensor::of_stream)),
                Err(error) => Err(error::raised(py, &error)),
            },
        }
    }

    /// Stops the threads. Tensors stay valid.
    fn close(&self, py: Python<'_>) {
        let mut state = self.state();
        let State::Open(stream) = &*state else { return };
        let closed = State::Closed(Box::new(stream.report()), stream.digests());
        // Another thread may wait for a tensor.
        stream.stop();
        let open = std::mem::replace(&mut *state, closed);
        drop(state);
        // Dropping it waits for its threads.
        py.detach(|| drop(open));
    }

    /// The numbers of the stream by name.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = match &*self.state() {
            State::Open(stream) => stream.report(),
            State::Closed(report, _) => (**report).clone(),
        };
        let stats = PyDict::new(py);
        for (name, value) in [
            ("tensors", report.selected_tensors),
            ("tensors_yielded", report.delivered_tensors),
            ("nbytes", report.selected_bytes),
            ("bytes_read", report.read_bytes),
            ("memory", report.memory_bytes),
            ("memory_grown", report.grown_bytes),
        ] {
            stats.set_item(name, value)?;
        }
        stats.set_item("seconds", report.elapsed.as_secs_f64())?;
        stats.set_item("pages", report.pages.to_string())?;
        Ok(stats)
    }

    /// The requested checksums of the files that are complete, by path and name.
    #[getter]
    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let files = PyDict::new(py);
        let digests = match &*self.state() {
            State::Open(stream) => stream.digests(),
            State::Closed(_, digests) => digests.clone(),
        };
        for (path, of_file) in digests {
            let digests = PyDict::new(py);
            for (kind, digest) in of_file {
                digests.set_item(kind.to_string(), digest)?;
            }
            files.set_item(path.as_os_str(), digests)?;
        }
        Ok(files)
    }
}
