//! The log of the pages that the device writes: kept by a space, read by the client.

use std::sync::Arc;

use longshore_mem::{AddrRange, Granule, Iova};

use crate::Errno;
use crate::dma::DirtyLog;
use longshore_access::dirty::{self, Log, LogError};
use longshore_access::{Logs, Space};

/// The largest number of pages of a log: 256 MiB of bits, of which only those of written pages take
/// memory. At 4 KiB a page that is 8 TiB; for a larger range, pages are larger.
const PAGES_LOG2_MAX: u32 = 31;

/// The log of a space, by IOVA.
#[derive(Debug)]
pub(crate) struct SpaceLog {
    space: Space,
    /// `None` while logging is off.
    log: Option<Arc<dirty::DirtyLog<Iova>>>,
}

impl SpaceLog {
    pub(crate) fn new(space: Space) -> Self {
        Self { space, log: None }
    }

    fn logs_with(&self, by_iova: Log<Iova>) -> Logs {
        self.space.logs().with_iova(by_iova)
    }

    /// Returns all addresses from the lowest of `ranges` to the highest, as far as the space translates
    /// them, or all that the space translates if `ranges` is empty.
    fn hull(&self, ranges: &[AddrRange<Iova>]) -> Result<AddrRange<Iova>, Errno> {
        let input_bits = self.space.input_bits();
        let last_of_space = u64::MAX >> (64 - input_bits.clamp(1, 64));
        let starts = ranges.iter().map(|range| range.start().raw());
        let lasts = ranges.iter().filter_map(|range| Some(range.last()?.raw()));
        let first = starts.min().unwrap_or(0);
        let last = lasts.max().unwrap_or(last_of_space).min(last_of_space);
        let len_bytes = last.checked_sub(first).and_then(|span| span.checked_add(1));
        let len_bytes = len_bytes.ok_or(Errno::EINVAL)?;
        AddrRange::new(Iova::new(first), len_bytes).map_err(|_| Errno::EINVAL)
    }
}

impl DirtyLog for SpaceLog {
    fn start(&mut self, ranges: &[AddrRange<Iova>], page_bytes: u64) -> Result<u64, Errno> {
        if self.log.is_some() || !self.space.logs().by_iova.is_off() {
            // The owner of the space logs already.
            return Err(Errno::EBUSY);
        }
        let hull = self.hull(ranges)?;
        let least_bytes = hull.len().div_ceil(1 << PAGES_LOG2_MAX).next_power_of_two();
        let page_bytes = page_bytes.max(least_bytes).clamp(4096, 1 << 40);
        let granule = Granule::new(page_bytes).map_err(|_| Errno::EINVAL)?;
        let log = Arc::new(dirty::DirtyLog::new(granule, hull)?);
        let logs = self.logs_with(Log::Internal(Arc::clone(&log)));
        log.start(|| self.space.set_logs(logs))?;
        self.log = Some(log);
        Ok(page_bytes)
    }

    fn stop(&mut self) -> Result<(), Errno> {
        let log = self.log.as_ref().ok_or(Errno::EINVAL)?;
        log.stop(|| self.space.set_logs(self.logs_with(Log::Off)))?;
        self.log = None;
        Ok(())
    }

    fn report(
        &mut self,
        range: AddrRange<Iova>,
        page_bytes: u64,
        bitmap: &mut [u64],
    ) -> Result<(), Errno> {
        let log = self.log.as_ref().ok_or(Errno::EINVAL)?;
        let Some(last_of_range) = range.last() else { return Ok(()) };
        let first_of_range = range.start();
        self.space.collect(log, range, |pages| {
            let Some(last_of_pages) = pages.last() else { return };
            // The log's pages may be larger than `range`: mark the rest again, for a later report.
            if let Some(before @ 1..) = first_of_range.checked_offset_from(pages.start()) {
                log.mark(pages.start(), before);
            }
            if let (Some(after @ 1..), Some(at)) =
                (last_of_pages.checked_offset_from(last_of_range), last_of_range.checked_add(1))
            {
                log.mark(at, after);
            }
            let first = pages.start().max(first_of_range).raw() - first_of_range.raw();
            let last = last_of_pages.min(last_of_range).raw() - first_of_range.raw();
            for page in first / page_bytes..=last / page_bytes {
                bitmap[(page / 64) as usize] |= 1 << (page % 64);
            }
        })?;
        Ok(())
    }
}

impl Drop for SpaceLog {
    fn drop(&mut self) {
        if self.log.is_some() {
            // Stopping fails only if this thread holds a pin of the space; logging then goes on without
            // a reader.
            let _ = self.stop();
        }
    }
}

impl From<LogError> for Errno {
    fn from(error: LogError) -> Self {
        match error {
            LogError::OutOfMemory { .. } => Self::ENOMEM,
            _ => Self::EINVAL,
        }
    }
}
