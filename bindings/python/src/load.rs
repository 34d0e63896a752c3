//! Loads files, without holding the GIL during the load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longshore_formats::{Dtype, Header, TensorView, safetensors};
use longshore_heap::{Heap, Sealing, SharedBuffer};
use longshore_load::{self as library, CancelToken, DigestKind, Manifest, Progress};
use longshore_load::{FileTensors, FormatChoice, Opened};
use longshore_load::{Loaded, Loader, Plan, ReadMode};
use longshore_mem::Granule;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::error;
use crate::file::{File, Made};
use crate::memory::{Backing, Source};
use crate::stats::Stats;

/// A tensor of a header: its name, dtype, shape, and the begin and end of its data in the file.
type Described = (String, &'static str, Vec<u64>, u64, u64);

/// Loads files; `longshore.load` describes the arguments.
///
/// `observe` is called with the bytes done and the total, about twenty times a second. An exception
/// that it or a signal handler raises stops the load and is raised by this function.
#[pyfunction]
#[pyo3(signature = (files, *, heap, mode, format, align, tensor, digests, manifest, writable, observe))]
#[expect(
    clippy::too_many_arguments,
    clippy::needless_pass_by_value,
    reason = "Python names them, and what it gives is converted to them"
)]
pub(crate) fn load(
    py: Python<'_>,
    files: Which,
    heap: &str,
    mode: &str,
    format: &str,
    align: Option<u64>,
    tensor: Option<String>,
    digests: Vec<String>,
    manifest: Option<PathBuf>,
    writable: bool,
    observe: Option<Py<PyAny>>,
) -> PyResult<Buffer> {
    let request = Request {
        files,
        heap: word(heap)?,
        mode: word::<ReadMode>(mode)?,
        format: word::<FormatChoice>(format)?,
        align: align.map(granule).transpose()?,
        tensor,
        digests: digests.iter().map(|kind| word(kind)).collect::<PyResult<_>>()?,
        manifest,
        writable,
    };
    request.check()?;
    let cancel = CancelToken::new();
    let mut raised = None;
    let loaded = py.detach(|| {
        request.run(&cancel, |progress| {
            if raised.is_some() {
                return;
            }
            let told = Python::attach(|py| {
                py.check_signals()?;
                let Some(observe) = &observe else { return Ok(()) };
                observe.call1(py, (progress.done_bytes, progress.total_bytes)).map(drop)
            });
            if let Err(error) = told {
                raised = Some(error);
                cancel.cancel();
            }
        })
    });
    if let Some(error) = raised {
        // The load may have succeeded nevertheless: free its memory.
        py.detach(|| drop(loaded));
        return Err(error);
    }
    let done = loaded.map_err(|error| error::raised(py, &error))?;
    done.into_buffer(py, writable)
}

/// Open safetensors files, of which only the headers were read. Loads read these files even if others
/// have taken their names since.
#[pyclass(frozen, module = "longshore._core")]
pub(crate) struct OpenedFiles(Opened);

/// Opens a safetensors file, or all shards of an index.
#[pyfunction]
pub(crate) fn open_safetensors(py: Python<'_>, path: PathBuf) -> PyResult<OpenedFiles> {
    let opened = py.detach(|| longshore_load::open(&[path], FormatChoice::Safetensors));
    opened.map(OpenedFiles).map_err(|error| error::raised(py, &error))
}

#[pymethods]
impl OpenedFiles {
    /// Name, dtype and shape of each tensor, in the order of the data.
    #[getter]
    fn tensors(&self) -> Vec<(String, &'static str, Vec<u64>)> {
        let placed = self.0.placed_tensors().map(|placed| placed.tensor);
        placed.map(|it| (it.name.to_owned(), it.dtype.name(), it.shape.to_vec())).collect()
    }

    /// The metadata of all files together.
    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = BTreeMap::new();
        for of_file in &self.0.tensors {
            // The shards of a model have the same metadata.
            if let Header::Safetensors(header) = &of_file.header {
                metadata.extend(header.metadata.clone());
            }
        }
        metadata
    }
}

impl OpenedFiles {
    /// Duplicates the open files for one more load.
    fn again(&self) -> library::Result<Opened> {
        let mut plan = Plan::new();
        for file in self.0.plan.files() {
            plan.push(file.source().try_clone()?)?;
        }
        Ok(Opened::new(plan, self.0.tensors.clone()))
    }
}

/// Returns the tensors of a whole safetensors file that is in memory.
#[pyfunction]
pub(crate) fn parse_safetensors(py: Python<'_>, content: &[u8]) -> PyResult<Vec<Described>> {
    let choice = FormatChoice::Safetensors;
    let header = library::parse_header(Path::new("<bytes>"), content, choice);
    let header = header.map_err(|error| error::raised(py, &error))?;
    let tensors = header.iter().flat_map(Header::tensors).filter(|tensor| !tensor.is_padding());
    let described = tensors.map(|tensor| {
        let TensorView { name, dtype, shape, data, .. } = tensor;
        (name.to_owned(), dtype.name(), shape.to_vec(), data.start, data.end)
    });
    Ok(described.collect())
}

/// Parses a word, such as a heap or a mode, as the command line does.
pub(crate) fn word<T: std::str::FromStr<Err: std::fmt::Display>>(word: &str) -> PyResult<T> {
    word.parse().map_err(|error: T::Err| PyValueError::new_err(error.to_string()))
}

/// Checks an alignment in bytes.
fn granule(bytes: u64) -> PyResult<Granule> {
    Granule::new(bytes).map_err(|_| {
        PyValueError::new_err(format!("align={bytes} is not a power of two (such as 64 or 4096)"))
    })
}

/// The files to load.
#[derive(FromPyObject)]
pub(crate) enum Which {
    Opened(Py<OpenedFiles>),
    Paths(Vec<PathBuf>),
}

/// The checked arguments of a load.
struct Request {
    files: Which,
    heap: Heap,
    mode: ReadMode,
    format: FormatChoice,
    align: Option<Granule>,
    /// The name of the only tensor to load; `None` to load whole files.
    tensor: Option<String>,
    digests: Vec<DigestKind>,
    manifest: Option<PathBuf>,
    writable: bool,
}

/// The result of a load.
struct Done {
    opened: Opened,
    shared: SharedBuffer,
    files: Vec<library::LoadedFile>,
    report: library::Report,
}

impl Request {
    fn check(&self) -> PyResult<()> {
        if matches!(&self.files, Which::Paths(paths) if paths.is_empty()) {
            return Err(PyValueError::new_err("no file is named"));
        }
        if self.tensor.is_some() && !(self.digests.is_empty() && self.manifest.is_none()) {
            return Err(PyValueError::new_err("checksums are of whole files, not of one tensor"));
        }
        if self.writable && !self.memory().seals_content() {
            // A dma-buf needs a CPU access guard (DMA_BUF_IOCTL_SYNC) around each write.
            let heap = &self.heap;
            return Err(PyValueError::new_err(format!(
                "memory of heap '{heap}' cannot be lent for writing; use heap 'memfd'"
            )));
        }
        Ok(())
    }

    /// Returns the requested heap; for "auto", the best heap whose content can be sealed.
    fn memory(&self) -> Heap {
        if self.heap == Heap::Auto { Heap::Memfd } else { self.heap.clone() }
    }

    fn aligned(&self, opened: Opened) -> library::Result<Opened> {
        match self.align {
            Some(alignment) => opened.align(alignment),
            None => Ok(opened),
        }
    }

    fn run(&self, cancel: &CancelToken, observe: impl FnMut(Progress)) -> library::Result<Done> {
        let opened = match (&self.files, &self.tensor) {
            // A single tensor begins at a page, so it is aligned.
            (Which::Opened(files), Some(name)) => only(&files.get().0, name)?,
            (Which::Paths(paths), Some(name)) => {
                only(&longshore_load::open(paths, self.format)?, name)?
            }
            (Which::Opened(files), None) => self.aligned(files.get().again()?)?,
            (Which::Paths(paths), None) => {
                self.aligned(longshore_load::open(paths, self.format)?)?
            }
        };
        let manifest = self.manifest.as_ref().map(Manifest::open).transpose()?;
        let heap = self.memory();
        let sealing =
            if heap.seals_content() && !self.writable { Sealing::Content } else { Sealing::Size };
        let mut loader = Loader::new().heap(heap).mode(self.mode).cancel(cancel).observe(observe);
        for kind in &self.digests {
            loader = loader.digest(*kind);
        }
        if let Some(manifest) = &manifest {
            loader = loader.manifest(manifest);
        }
        let Loaded { buffer, files, report, .. } = loader.load(&opened.plan)?;
        let shared = buffer.share(sealing)?;
        Ok(Done { opened, shared, files, report })
    }
}

/// Returns a plan of only the tensor of that name, or an empty plan if there is none.
fn only(opened: &Opened, name: &str) -> library::Result<Opened> {
    let mut found = Opened::new(Plan::new(), Vec::new());
    let Some(placed) = opened.placed_tensors().find(|placed| placed.tensor.name == name) else {
        return Ok(found);
    };
    let TensorView { dtype: Dtype::Safetensors(dtype), shape, data, .. } = placed.tensor else {
        return Ok(found);
    };
    let source = placed.file.source().try_clone()?;
    let (name, shape, len_bytes) = (name.to_owned(), shape.to_vec(), data.end - data.start);
    let tensor = safetensors::Tensor::new(name, dtype, shape, 0..len_bytes);
    let header = safetensors::Header::new(vec![tensor], BTreeMap::new(), 0);
    found.plan.push_range(source, data)?;
    found.tensors.push(FileTensors::new(0, Header::Safetensors(header)));
    Ok(found)
}

impl Done {
    fn into_buffer(self, py: Python<'_>, writable: bool) -> PyResult<Buffer> {
        let backing = Backing::new(Source::Loaded(self.shared), writable);
        let mut headers: Vec<Option<Header>> = vec![None; self.files.len()];
        for of_file in self.opened.tensors {
            headers[of_file.file_index] = Some(of_file.header);
        }
        let files = self.files.into_iter().zip(headers).map(|(file, header)| File {
            path: file.path,
            offset: file.buffer_offset,
            nbytes: file.len_bytes,
            digests: file.digests,
            header,
            backing: backing.clone(),
            made: Made::new(),
        });
        let files = files.collect();
        Buffer::new(py, backing, Some(Stats::new(self.report)), files)
    }
}
