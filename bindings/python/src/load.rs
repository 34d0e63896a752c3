//! Loads files, without holding the GIL during the load.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use longshore_formats::{Header, TensorView, safetensors};
use longshore_heap::{Heap, Sealing};
use longshore_load::{self as library, DigestKind, Manifest, Progress};
use longshore_load::{FileTensors, FormatChoice, Opened, PlannedFile};
use longshore_load::{Loaded, Loader, Plan, ReadMode, Rows};
use longshore_mem::Granule;
use longshore_remote::Remote;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::cancel::CancelToken;
use crate::error;
use crate::file::{File, Made};
use crate::files::{Identity, Name, Named, identity};
use crate::memory::{Backing, Source};
use crate::servers;
use crate::small::{self, Small};
use crate::stats::Stats;

/// A tensor of a header: its name, dtype, shape, and the begin and end of its data in the file.
type Described = (String, &'static str, Vec<u64>, u64, u64);

/// Loads files; `longshore.load` describes the arguments.
///
/// `observe` is called with the bytes done and the total, about twenty times a second. An exception
/// that it or a signal handler raises stops the load and is raised by this function. With `private`,
/// the buffer has no descriptor.
#[pyfunction]
#[pyo3(signature = (
    files, *, heap, mode, format, align, tensor, rows, digests, manifest, writable, private,
    storage_options, timeout, connections, observe, cancel
))]
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
    rows: Option<(u64, u64)>,
    digests: Vec<String>,
    manifest: Option<PathBuf>,
    writable: bool,
    private: bool,
    storage_options: Vec<(String, String)>,
    timeout: Option<f64>,
    connections: Option<usize>,
    observe: Option<Py<PyAny>>,
    cancel: Option<Py<CancelToken>>,
) -> PyResult<Buffer> {
    let cancel = CancelToken::for_call(cancel.as_ref().map(Py::get));
    let files = match files {
        Which::Opened(files) => Files::Opened(files),
        Which::Named(names) => {
            let named = Named::new(py, names, servers::access(&storage_options, timeout)?)?;
            Files::Named(Box::new(named.cancel(&cancel)))
        }
    };
    let request = Request {
        files,
        heap: word(heap)?,
        mode: word::<ReadMode>(mode)?,
        format: word::<FormatChoice>(format)?,
        align: align.map(granule).transpose()?,
        only: tensor.map(|name| Only { name, rows: rows.map(|(start, end)| start..end) }),
        digests: digests.iter().map(|kind| word(kind)).collect::<PyResult<_>>()?,
        manifest,
        writable,
        private,
        connections,
    };
    request.check()?;
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
    // The notes about opened files were shown when they were opened.
    if let Files::Named(named) = &request.files
        && let Err(error) = servers::warn(py, named.remote())
    {
        py.detach(|| drop(done));
        return Err(error);
    }
    done.into_buffer(py, writable)
}

/// Open safetensors files, of which only the headers were read. Loads read these files even if others
/// have taken their names since.
#[pyclass(frozen, module = "longshore._core")]
pub(crate) struct OpenedFiles {
    remote: Remote,
    opened: Opened,
    places: Places,
}

/// The index of the file in [`Opened::tensors`] and that of the tensor in its header, by name. A model
/// has thousands of tensors, so a search for each would take seconds.
type Places = HashMap<String, (usize, usize)>;

/// A tensor's name, dtype and shape, and the range of its bytes in the data section of its file.
type Entry = (String, &'static str, Vec<u64>, (u64, u64));

/// Opens a safetensors file, or all shards of an index.
#[pyfunction]
#[pyo3(signature = (path, *, storage_options, timeout))]
#[expect(clippy::needless_pass_by_value, reason = "Python values are converted to it")]
pub(crate) fn open_safetensors(
    py: Python<'_>,
    path: PathBuf,
    storage_options: Vec<(String, String)>,
    timeout: Option<f64>,
) -> PyResult<OpenedFiles> {
    let remote = servers::access(&storage_options, timeout)?;
    let opened = py.detach(|| remote.open(&[path], FormatChoice::Safetensors));
    let opened = opened.map_err(|error| error::raised(py, &error))?;
    servers::warn(py, &remote)?;
    Ok(OpenedFiles::new(remote, opened))
}

#[pymethods]
impl OpenedFiles {
    /// The tensors, in the order of the data.
    #[getter]
    fn tensors(&self) -> Vec<Entry> {
        let headers = self.opened.tensors.iter().map(|of_file| &of_file.header);
        let tensors = headers.flat_map(|header| {
            let data = header.data_offset();
            let tensors = header.tensors().filter(|tensor| !tensor.is_padding());
            tensors.map(move |it| {
                let range = (it.data.start - data, it.data.end - data);
                (it.name.to_owned(), it.dtype.name(), it.shape.to_vec(), range)
            })
        });
        tensors.collect()
    }

    /// The versions of the files, in their order.
    #[getter]
    fn identities(&self) -> Vec<Identity> {
        self.opened.plan.files().iter().map(|file| identity(&file.source().version())).collect()
    }

    /// The metadata of all files together.
    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = BTreeMap::new();
        for of_file in &self.opened.tensors {
            // The shards of a model have the same metadata.
            if let Header::Safetensors(header) = &of_file.header {
                metadata.extend(header.metadata.clone());
            }
        }
        metadata
    }
}

impl OpenedFiles {
    fn new(remote: Remote, opened: Opened) -> Self {
        let mut places = Places::new();
        for (file, of_file) in opened.tensors.iter().enumerate() {
            let names = of_file.header.tensors().enumerate().filter(|(_, it)| !it.is_padding());
            for (at, tensor) in names {
                // The first tensor of a name is loaded.
                places.entry(tensor.name.to_owned()).or_insert((file, at));
            }
        }
        Self { remote, opened, places }
    }

    /// Returns a tensor; `None` if there is none of that name.
    fn find(&self, only: &Only) -> library::Result<Option<Found<'_>>> {
        let Some(&(file, at)) = self.places.get(&only.name) else { return Ok(None) };
        let of_file = &self.opened.tensors[file];
        let Header::Safetensors(header) = &of_file.header else { return Ok(None) };
        let Some(tensor) = header.tensors.get(at) else { return Ok(None) };
        let (mut shape, mut data) = (tensor.shape.clone(), tensor.data.clone());
        if let (Some(rows), Some(view)) = (&only.rows, of_file.header.tensors().nth(at))
            && let Some(part) = Rows::Range(rows.clone()).of(&view)?
        {
            shape[0] = part.rows.end - part.rows.start;
            data = part.data;
        }
        let range = 0..data.end - data.start;
        let found = safetensors::Tensor::new(tensor.name.as_str(), tensor.dtype, shape, range);
        let header = safetensors::Header::new(vec![found], BTreeMap::new(), 0);
        let file = &self.opened.plan.files()[of_file.file_index];
        Ok(Some(Found { file, data, header: Header::Safetensors(header) }))
    }

    /// Duplicates the open files for one more load.
    fn again(&self) -> library::Result<Opened> {
        let mut plan = Plan::new();
        for file in self.opened.plan.files() {
            plan.push(file.source().try_clone()?)?;
        }
        Ok(Opened::new(plan, self.opened.tensors.clone()))
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

/// The files to load, as Python passes them.
#[derive(FromPyObject)]
pub(crate) enum Which {
    Opened(Py<OpenedFiles>),
    Named(Vec<Name>),
}

/// The files to load.
enum Files {
    Opened(Py<OpenedFiles>),
    Named(Box<Named>),
}

/// The checked arguments of a load.
struct Request {
    files: Files,
    heap: Heap,
    mode: ReadMode,
    format: FormatChoice,
    align: Option<Granule>,
    /// The only tensor to load; `None` to load whole files.
    only: Option<Only>,
    digests: Vec<DigestKind>,
    manifest: Option<PathBuf>,
    writable: bool,
    /// `true` if no other process can get the memory, because the caller does not hand out the
    /// buffer. It then needs no descriptor.
    private: bool,
    /// The number of connections to servers, if the caller chose it.
    connections: Option<usize>,
}

/// A tensor to load alone.
struct Only {
    name: String,
    /// Its rows, if not all.
    rows: Option<Range<u64>>,
}

/// A tensor that is found, or rows of it.
struct Found<'a> {
    file: &'a PlannedFile,
    /// The range of its bytes in the file.
    data: Range<u64>,
    /// A header with only this tensor, whose data is at the beginning.
    header: Header,
}

/// The result of a load.
struct Done {
    opened: Opened,
    source: Source,
    files: Vec<library::LoadedFile>,
    report: library::Report,
}

impl Request {
    fn check(&self) -> PyResult<()> {
        if self.only.is_some() && !(self.digests.is_empty() && self.manifest.is_none()) {
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

    /// Returns the access to servers.
    fn remote(&self) -> &Remote {
        match &self.files {
            Files::Opened(files) => &files.get().remote,
            Files::Named(named) => named.remote(),
        }
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

    fn run(
        &self,
        cancel: &library::CancelToken,
        mut observe: impl FnMut(Progress),
    ) -> library::Result<Done> {
        // Opened files can be loaded long after they were opened.
        self.remote().restart_time_limit();
        let opened = match (&self.files, &self.only) {
            (Files::Opened(files), Some(only)) => {
                let found = files.get().find(only)?;
                if let Some(found) = &found
                    && let Some(done) = self.small_tensor(found, cancel, &mut observe)?
                {
                    return Ok(done);
                }
                alone(found)?
            }
            (Files::Named(named), Some(only)) => {
                let opened = named.open(self.format)?;
                alone(OpenedFiles::new(named.remote().clone(), opened).find(only)?)?
            }
            (Files::Opened(files), None) => self.aligned(files.get().again()?)?,
            (Files::Named(named), None) => self.aligned(named.open(self.format)?)?,
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
        if let Some(count) = self.connections {
            loader = loader.connections(count);
        }
        if let Some(mut small) = self.small(opened.plan.len_bytes()) {
            let (files, report) = loader.load_into(&opened.plan, small.bytes_mut())?;
            return Ok(Done { opened, source: Source::Small(small), files, report });
        }
        let Loaded { buffer, files, report, .. } = loader.load(&opened.plan)?;
        let source = match if self.private { buffer.into_private()? } else { Err(buffer) } {
            Ok(private) => Source::Private(private),
            Err(buffer) => Source::Loaded(buffer.share(sealing)?),
        };
        Ok(Done { opened, source, files, report })
    }

    /// Loads one tensor if it is small: without descriptors of its own.
    fn small_tensor(
        &self,
        found: &Found<'_>,
        cancel: &library::CancelToken,
        observe: &mut dyn FnMut(Progress),
    ) -> library::Result<Option<Done>> {
        let began = Instant::now();
        let Found { file, data, header } = found;
        let len_bytes = data.end - data.start;
        let Some(mut small) = self.small(len_bytes) else { return Ok(None) };
        if cancel.is_cancelled() {
            return Err(library::Error::Cancelled { done_bytes: 0, total_bytes: len_bytes });
        }
        file.source().read_range(data.start, small.bytes_mut())?;
        let opened = Opened::new(Plan::new(), vec![FileTensors::new(0, header.clone())]);
        let path = file.source().path().to_owned();
        let files = vec![library::LoadedFile::new(path, 0, len_bytes)];
        let elapsed = began.elapsed();
        observe(Progress::new(len_bytes, len_bytes, elapsed));
        let report = library::Report::of_small(len_bytes, elapsed);
        Ok(Some(Done { opened, source: Source::Small(small), files, report }))
    }

    /// Allocates memory for a load that is small and private, and for which the caller chose neither
    /// a heap nor a way of reading.
    fn small(&self, len_bytes: u64) -> Option<Small> {
        let alignment_bytes = self.align.map_or(1, Granule::bytes);
        let is_small = self.private
            && len_bytes <= small::MAX_BYTES
            && alignment_bytes <= small::ALIGNMENT_MAX_BYTES
            && self.heap == Heap::Auto
            && matches!(self.mode, ReadMode::Auto | ReadMode::Buffered);
        // Without memory for it, the load reports the error of its heap.
        if !is_small {
            return None;
        }
        Small::new(len_bytes as usize, alignment_bytes as usize)
    }
}

/// Returns a plan of only this tensor, or an empty plan.
fn alone(found: Option<Found<'_>>) -> library::Result<Opened> {
    let mut opened = Opened::new(Plan::new(), Vec::new());
    let Some(Found { file, data, header }) = found else { return Ok(opened) };
    // A single tensor begins at a page, so it is aligned.
    opened.plan.push_range(file.source().try_clone()?, data)?;
    opened.tensors.push(FileTensors::new(0, header));
    Ok(opened)
}

impl Done {
    fn into_buffer(self, py: Python<'_>, writable: bool) -> PyResult<Buffer> {
        let heap = match &self.source {
            Source::Small(_) => "private".to_owned(),
            _ => self.report.heap.to_string(),
        };
        let stats = Stats::new(self.report, heap);
        let backing = Backing::new(self.source, writable);
        let mut headers: Vec<Option<Header>> = vec![None; self.files.len()];
        for of_file in self.opened.tensors {
            headers[of_file.file_index] = Some(of_file.header);
        }
        // The plan of a small tensor has no file.
        let mut identities =
            self.opened.plan.files().iter().map(|file| identity(&file.source().version()));
        let files = self.files.into_iter().zip(headers).map(|(file, header)| File {
            identity: identities.next(),
            path: file.path,
            offset: file.buffer_offset,
            nbytes: file.len_bytes,
            digests: file.digests,
            header,
            backing: backing.clone(),
            made: Made::new(),
        });
        let files = files.collect();
        Buffer::new(py, backing, Some(stats), files)
    }
}
