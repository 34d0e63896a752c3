//! The loader, which returns a filled buffer.

use std::path::PathBuf;
use std::time::Instant;

use longshore_heap::{Buffer, Heap};

use crate::budget;
use crate::digest_kind::DigestKind;
use crate::error::Result;
use crate::fill::{self, KernelReads, Reads, Tuning};
use crate::mode::ReadMode;
use crate::plan::Plan;
use crate::progress::{CancelToken, Progress};
use crate::report::Report;
use crate::verify::Manifest;

/// The size of a read.
///
/// In measurements, virtio and NVMe disks reached their limit with reads of 4 to 8 MiB at a queue depth
/// of 4 to 8, and did not with reads below 1 MiB. Measure again with
/// `longshore-bench load --filter tuning`.
const PIECE_BYTES: u64 = 8 << 20;
const DEPTH: u32 = 8;
/// The limit on threads that copy from the page cache. Two saturate the memory of a small machine, and
/// more than four were not faster in any measurement.
const WORKERS_MAX: usize = 4;

/// The default prefault window: the number of bytes by which prefaulted pages may be ahead of the reads.
/// It is the batch size of the published series of measurements.
pub const POPULATE_AHEAD_DEFAULT_BYTES: u64 = 128 << 20;

/// A builder for loads. [`Loader::new`] makes it, chained calls configure it, and [`Loader::load`] runs
/// the load.
///
/// ```no_run
/// use longshore_heap::{Heap, Sealing};
/// use longshore_load::{Loader, Plan};
///
/// let plan = Plan::from_path("model.safetensors")?;
/// let loaded = Loader::new().heap(Heap::Memfd).load(&plan)?;
/// println!("{:.2} GB/s", loaded.report.bytes_per_second() / 1e9);
/// let shared = loaded.buffer.share(Sealing::Content)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Loader<'a> {
    pub(crate) heap: Heap,
    pub(crate) mode: ReadMode,
    pub(crate) populate_ahead_bytes: u64,
    pub(crate) memory_max: Option<u64>,
    pub(crate) piece_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) use_uring: bool,
    pub(crate) connections: Option<usize>,
    pub(crate) digests: Vec<DigestKind>,
    pub(crate) manifest: Option<&'a Manifest>,
    pub(crate) cancel: CancelToken,
    pub(crate) observe: Option<Box<dyn FnMut(Progress) + 'a>>,
}

/// A filled buffer, with its files and a report of the load.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The complete buffer, whose content was verified if the loader has a manifest.
    pub buffer: Buffer,
    /// The files, in the order of the plan.
    pub files: Vec<LoadedFile>,
    /// The report of the load.
    pub report: Report,
}

/// One file of a [`Loaded`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadedFile {
    /// The path.
    pub path: PathBuf,
    /// The offset of the file in the buffer.
    pub buffer_offset: u64,
    /// The number of bytes in the buffer: the length of the file, or of its aligned layout.
    pub len_bytes: u64,
    /// The requested checksums, computed over the file as it is on the disk.
    pub digests: Vec<(DigestKind, String)>,
}

impl Default for Loader<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Loader<'a> {
    /// Makes a loader that chooses the best available heap and read mode.
    pub fn new() -> Self {
        Self {
            heap: Heap::Auto,
            mode: ReadMode::Auto,
            populate_ahead_bytes: POPULATE_AHEAD_DEFAULT_BYTES,
            memory_max: None,
            piece_bytes: PIECE_BYTES,
            depth: DEPTH,
            use_uring: true,
            connections: None,
            digests: Vec::new(),
            manifest: None,
            cancel: CancelToken::new(),
            observe: None,
        }
    }

    /// Sets the heap of the buffer.
    pub fn heap(mut self, heap: Heap) -> Self {
        self.heap = heap;
        self
    }

    /// Sets the read mode.
    pub fn mode(mut self, mode: ReadMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the prefault window, in bytes. Prefaulted pages are always at least one read ahead.
    pub fn populate_ahead(mut self, bytes: u64) -> Self {
        self.populate_ahead_bytes = bytes;
        self
    }

    /// Sets a limit on the length of the buffer, in bytes. A longer load fails with
    /// [`Error::NotEnoughMemory`](crate::Error::NotEnoughMemory).
    pub fn memory_max(mut self, bytes: u64) -> Self {
        self.memory_max = Some(bytes);
        self
    }

    /// Sets the size of a read in bytes. It is clamped to 2 MiB to 1 GiB, and rounded up to a multiple
    /// of 2 MiB. The default is right for most disks.
    pub fn read_size(mut self, bytes: u64) -> Self {
        self.piece_bytes = bytes.clamp(2 << 20, 1 << 30).next_multiple_of(2 << 20);
        self
    }

    /// Sets the number of direct reads in flight, clamped to 1 to 256. The default is right for most
    /// disks.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.clamp(1, 256);
        self
    }

    /// Sets whether direct reads may use io_uring. If not, threads make them.
    pub fn use_uring(mut self, use_uring: bool) -> Self {
        self.use_uring = use_uring;
        self
    }

    /// Sets the number of connections over which files of other machines are read, clamped to 1 to 256. Otherwise
    /// it grows from 16 to at most 128 while the throughput does.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = Some(count.clamp(1, 256));
        self
    }

    /// Adds a checksum to compute over every file.
    pub fn digest(mut self, kind: DigestKind) -> Self {
        if !self.digests.contains(&kind) {
            self.digests.push(kind);
        }
        self
    }

    /// Verifies the files against a manifest: computes its kinds of checksums, and fails if one differs.
    pub fn manifest(mut self, manifest: &'a Manifest) -> Self {
        self.manifest = Some(manifest);
        manifest.kinds().into_iter().fold(self, Self::digest)
    }

    /// Sets the token that cancels the load.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Sets a function that is called with the progress: about twenty times a second, on the thread that
    /// calls [`Loader::load`], and once at the end.
    pub fn observe(mut self, observe: impl FnMut(Progress) + 'a) -> Self {
        self.observe = Some(Box::new(observe));
        self
    }

    /// Reads every file of `plan` into a new buffer.
    ///
    /// # Errors
    /// Any of [`crate::Error`]. A load that fails leaves no descriptor and no memory behind.
    pub fn load(self, plan: &Plan) -> Result<Loaded> {
        self.load_by(plan, &KernelReads)
    }

    pub(crate) fn load_by(mut self, plan: &Plan, reads: &dyn Reads) -> Result<Loaded> {
        let began = Instant::now();
        let resident_before = resident_bytes(plan);
        let mut claim = budget::check(plan.len_bytes(), &self.heap, self.memory_max)?;

        let reservation = self.heap.reserve(plan.len_bytes())?;
        let mapping = began.elapsed();
        budget::check_pages(&mut claim, plan.len_bytes(), reservation.heap())?;
        let tuning = self.tuning();
        let reading_began = Instant::now();
        let mut observe = self.observe.take();
        let observe = |progress: Progress, left_bytes| {
            claim.lower_to(left_bytes);
            if let Some(observe) = &mut observe {
                observe(progress);
            }
        };
        let filled =
            fill::fill(plan, &reservation, &tuning, &self.digests, &self.cancel, reads, observe)?;
        let reading = reading_began.elapsed();

        for file in plan.files() {
            file.source().check_unchanged()?;
        }
        let files = self.files(plan, filled.digests)?;
        let resident_after = resident_bytes(plan);
        let buffer = reservation.finish()?;
        let report = Report {
            content_bytes: plan.content_bytes(),
            elapsed: began.elapsed(),
            allocating: filled.populating,
            prefault_share: filled.prefault_share,
            mapping,
            reading,
            heap: buffer.heap().clone(),
            pages: buffer.page_report(),
            by_route: filled.by_route,
            engine: filled.engine,
            page_cache_growth_bytes: resident_before
                .zip(resident_after)
                .map(|(before, after)| after.cast_signed() - before.cast_signed()),
        };
        Ok(Loaded { buffer, files, report })
    }

    pub(crate) fn tuning(&self) -> Tuning {
        Tuning {
            mode: self.mode,
            populate_ahead_bytes: self.populate_ahead_bytes,
            piece_bytes: self.piece_bytes,
            depth: self.depth,
            use_uring: self.use_uring,
            connections: self.connections,
            workers: std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX),
        }
    }

    pub(crate) fn files(&self, plan: &Plan, digests: Vec<Vec<String>>) -> Result<Vec<LoadedFile>> {
        // Without checksums, `digests` is empty.
        let digests = digests.into_iter().chain(std::iter::repeat_with(Vec::new));
        let mut files = Vec::with_capacity(plan.files().len());
        for (file, digests) in plan.files().iter().zip(digests) {
            let digests: Vec<_> = self.digests.iter().copied().zip(digests).collect();
            if let Some(manifest) = self.manifest {
                manifest.check(file.source().path(), &digests)?;
            }
            files.push(LoadedFile {
                path: file.source().path().to_owned(),
                buffer_offset: file.buffer_offset(),
                len_bytes: file.buffer_range().end - file.buffer_offset(),
                digests,
            });
        }
        Ok(files)
    }
}

impl std::fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("heap", &self.heap)
            .field("mode", &self.mode)
            .field("populate_ahead_bytes", &self.populate_ahead_bytes)
            .finish_non_exhaustive()
    }
}

/// Returns the number of bytes of all files that are in the page cache. A file that occurs twice in the
/// plan is counted twice.
fn resident_bytes(plan: &Plan) -> Option<u64> {
    plan.files().iter().map(|file| file.source().resident_bytes()).sum()
}
