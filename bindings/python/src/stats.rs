//! `longshore.Stats`: the statistics of a load.

use longshore_load::{Engine, Report};
use longshore_mem::Granule;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The statistics of a load: bytes, times, pages, and how the files were read.
#[pyclass(frozen, module = "longshore")]
pub(crate) struct Stats {
    report: Report,
    heap: String,
}

impl Stats {
    /// Creates the statistics of a load into memory of that name.
    pub(crate) fn new(report: Report, heap: String) -> Self {
        Self { report, heap }
    }
}

#[pymethods]
impl Stats {
    /// The bytes of the content.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.report.content_bytes
    }

    /// The bytes that were read, by any mode.
    #[getter]
    fn bytes_read(&self) -> u64 {
        self.report.by_route.total()
    }

    /// The seconds from the call to the finished buffer.
    #[getter]
    fn seconds(&self) -> f64 {
        self.report.elapsed.as_secs_f64()
    }

    /// The bytes per second over the whole load.
    #[getter]
    fn bytes_per_second(&self) -> f64 {
        self.report.bytes_per_second()
    }

    /// The seconds spent on prefaulting pages, summed over all threads; most of it overlaps with
    /// reading.
    #[getter]
    fn allocating_seconds(&self) -> f64 {
        self.report.allocating.as_secs_f64()
    }

    /// The seconds spent on reserving and mapping the address range.
    #[getter]
    fn mapping_seconds(&self) -> f64 {
        self.report.mapping.as_secs_f64()
    }

    /// The seconds from the first read to the last.
    #[getter]
    fn reading_seconds(&self) -> f64 {
        self.report.reading.as_secs_f64()
    }

    /// The heap that the memory came from.
    #[getter]
    fn heap(&self) -> &str {
        &self.heap
    }

    /// The page sizes as text, such as "2 MiB" or "2 MiB 50%, base 50%".
    #[getter]
    fn pages(&self) -> String {
        self.report.pages.to_string()
    }

    /// The page size in bytes of at least nine tenths of the memory; None if the sizes are mixed.
    #[getter]
    fn page_size(&self) -> Option<u64> {
        self.report.pages.prevailing().map(Granule::bytes)
    }

    /// The bytes in pages of each size.
    #[getter]
    fn page_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pages = self.report.pages;
        let sizes = [
            ("hugetlb_2m", pages.hugetlb_2m_bytes),
            ("huge_2m", pages.huge_2m_bytes),
            ("mid_64k", pages.mid_64k_bytes),
            ("base", pages.base_bytes),
            ("unknown", pages.unknown_bytes),
        ];
        dict(py, &sizes)
    }

    /// The bytes that were read in each mode.
    #[getter]
    fn bytes_by_mode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ways = self.report.by_route;
        let ways = [
            ("direct", ways.direct),
            ("page_cache", ways.page_cache),
            ("uncached", ways.uncached),
            ("buffered", ways.buffered),
            ("remote", ways.remote),
            ("staged", ways.staged),
        ];
        dict(py, &ways)
    }

    /// The engine of the direct reads: "io_uring" or "threads".
    #[getter]
    fn engine(&self) -> &'static str {
        match self.report.engine {
            Engine::Uring => "io_uring",
            Engine::Threads { .. } => "threads",
            _ => "unknown",
        }
    }

    /// The reason why direct reads did not use io_uring; None if they did or there were none.
    #[getter]
    fn ring_refused(&self) -> Option<&str> {
        match &self.report.engine {
            Engine::Threads { ring_refused } => ring_refused.as_deref(),
            _ => None,
        }
    }

    /// The bytes by which the files' resident pages in the page cache grew; None if the kernel does
    /// not report them.
    #[getter]
    fn page_cache_growth_bytes(&self) -> Option<i64> {
        self.report.page_cache_growth_bytes
    }

    fn __repr__(&self) -> String {
        format!(
            "<longshore.Stats: {} bytes in {:.3} s, {:.2} GB/s, {} in {} pages>",
            self.nbytes(),
            self.seconds(),
            self.bytes_per_second() / 1e9,
            self.report.heap,
            self.report.pages,
        )
    }
}

fn dict<'py>(py: Python<'py>, entries: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in entries {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
