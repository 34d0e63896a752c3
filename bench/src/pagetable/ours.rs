//! Longshore's tables: formats, with coherent and non-coherent walkers.

use std::convert::Infallible;
use std::hint::black_box;

use longshore_mem::isa::IsaToken;
use longshore_mem::{BusAddr, Granule, Iova};
use longshore_pagetable::cache_sync::CacheSync;
use longshore_pagetable::format::{ArmStage1, ArmStage1Config, Format, VtdSecond, VtdSecondConfig};
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Check, Invalidate, PageTable, Prot, TlbGather};

use super::layout::{Piece, Stretch};
use super::tables::Tables;

#[cfg(target_arch = "aarch64")]
pub(super) use longshore_pagetable::cache_sync::DcCvac;
#[cfg(target_arch = "x86_64")]
pub(super) use longshore_pagetable::cache_sync::{ClFlushOpt, Clwb};

/// Returns the instruction that cleans cache lines on this machine.
pub(super) fn cleaned_with() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        match (Clwb::new(), ClFlushOpt::new()) {
            (Some(_), _) => "clwb",
            (None, Some(_)) => "clflushopt",
            (None, None) => "nothing: the machine has neither clwb nor clflushopt",
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        "dc cvac"
    }
}

/// Evaluates the first expression with the machine's cleaning instruction, or the second if the machine
/// has none. This is a macro because each instruction has a type of its own.
macro_rules! with_noncoherent {
    (|$sync:ident| $with:expr, $without:expr) => {{
        #[cfg(target_arch = "x86_64")]
        let made = match (ours::Clwb::new(), ours::ClFlushOpt::new()) {
            (Some($sync), _) => $with,
            (None, Some($sync)) => $with,
            (None, None) => $without,
        };
        #[cfg(target_arch = "aarch64")]
        let made = {
            let $sync = ours::DcCvac::new();
            $with
        };
        made
    }};
}
pub(super) use with_noncoherent;

pub(super) fn vtd(tracks_dirty: bool) -> VtdSecond {
    let config = VtdSecondConfig::new().with_dirty_tracking(tracks_dirty);
    VtdSecond::new(config).expect("a valid configuration")
}

pub(super) fn arm(tracks_dirty: bool) -> ArmStage1 {
    let config = ArmStage1Config::new(Granule::SIZE_4K).with_dirty_tracking(tracks_dirty);
    ArmStage1::new(config).expect("a valid configuration")
}

/// A walker without a TLB.
pub(super) struct NoTlb;

impl Invalidate for NoTlb {
    type Error = Infallible;

    fn flush(&self, gather: &TlbGather) -> Result<(), Infallible> {
        black_box(gather);
        Ok(())
    }
}

/// One sync per entry, as before the published change: a fence after each cleaned entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerEntry<S>(pub(super) S);

impl<S: CacheSync> CacheSync for PerEntry<S> {
    const COHERENT: bool = S::COHERENT;

    #[inline]
    fn clean(&self, entries: &[std::sync::atomic::AtomicU64]) {
        for entry in entries {
            self.0.clean(std::slice::from_ref(entry));
            self.0.fence();
        }
    }

    /// Does nothing: `clean` has already waited.
    #[inline]
    fn fence(&self) {}
}

/// Tables in memory of this process, and the unmapped entries that are not yet freed.
pub(super) struct Ours<F: Format, S: CacheSync> {
    table: PageTable<F, HostPages, S>,
    gather: TlbGather,
}

impl<F: Format, S: CacheSync> Ours<F, S> {
    pub(super) fn new(format: F, sync: S, check: Check) -> Self {
        let table = PageTable::new(format, HostPages::new(), sync).expect("there is memory");
        Self { table: table.with_check(check), gather: TlbGather::new() }
    }

    pub(super) fn with_isa(mut self, token: IsaToken) -> Self {
        self.table = self.table.with_isa(token);
        self
    }
}

impl<F: Format, S: CacheSync> Tables for Ours<F, S> {
    #[inline]
    fn map(&mut self, piece: &Piece) {
        let (iova, bus) = (Iova::new(piece.iova), BusAddr::new(piece.bus));
        let done = self.table.map(iova, bus, piece.len_bytes, Prot::READ_WRITE);
        assert!(done.is_ok());
    }

    #[inline]
    fn unmap(&mut self, stretch: &Stretch) {
        let done = self.table.unmap(Iova::new(stretch.iova), stretch.len_bytes, &mut self.gather);
        assert!(done.is_ok());
    }

    #[inline]
    fn settle(&mut self) {
        let Ok(()) = self.table.finish(std::mem::take(&mut self.gather), &NoTlb);
    }

    fn reset(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            // Parts that are not mapped give an error, which is ignored.
            let _ = self.table.unmap(Iova::new(piece.iova), piece.len_bytes, &mut self.gather);
        }
        let whole = 1 << (self.table.format().geometry().input_bits() - 1);
        self.table
            .reclaim(Iova::new(0), whole, &mut self.gather)
            .expect("the whole range can be scanned");
        self.settle();
    }

    #[inline]
    fn lookup(&self, iova: u64) -> u64 {
        let iova = Iova::new(iova);
        match self.table.lookup(iova) {
            Ok(Some(mapping)) => mapping.translate(iova).map_or(0, BusAddr::raw),
            _ => 0,
        }
    }

    fn count_dirty(&mut self, stretch: &Stretch) -> usize {
        let mut count = 0;
        self.table
            .read_dirty(Iova::new(stretch.iova), stretch.len_bytes, false, &mut self.gather, |_| {
                count += 1;
            })
            .expect("dirty pages are tracked");
        count
    }
}
