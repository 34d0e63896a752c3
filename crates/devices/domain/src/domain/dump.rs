//! A snapshot of a domain for printing.

use std::fmt;

use super::Domain;
use crate::backend::Limits;
use crate::counters::Counters;
use crate::dma_pool::DmaPoolUsage;
use crate::iova::IovaUsage;
use crate::policy::Bounce;
use crate::pool::PoolUsage;
use crate::watch::{MappingInfo, Watch};

/// A snapshot of a domain. It may be inexact while other threads use the domain.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The name of the backend.
    pub backend: &'static str,
    /// The limits of the backend.
    pub limits: Limits,
    /// The policy of bounce buffers.
    pub bounce: Bounce,
    /// The usage of the addresses.
    pub iovas: IovaUsage,
    /// The pools that have chunks.
    pub pools: Vec<PoolUsage>,
    /// The DMA pools, including those that were dropped and have elements in use.
    pub dma_pools: Vec<DmaPoolUsage>,
    /// The counters.
    pub counters: Counters,
    /// The mappings by IOVA, if the domain is [checked](crate::Builder::on_misuse).
    pub mappings: Option<Vec<MappingInfo>>,
}

impl Domain {
    /// Returns a snapshot for printing: limits, addresses, pools, counters, and the mappings if the
    /// domain is [checked](crate::Builder::on_misuse).
    pub fn dump(&self) -> Dump {
        Dump {
            backend: self.state().core.backend.name(),
            limits: self.limits().clone(),
            bounce: self.bounce(),
            iovas: self.iovas().usage(),
            pools: self.state().pools.usage(self.limits().granule.bytes()),
            dma_pools: self.state().dma_pools.all().iter().map(|pool| pool.usage()).collect(),
            counters: self.counters(),
            mappings: self.state().watch.as_ref().map(Watch::live),
        }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, limits, bounce, iovas, pools, dma_pools, counters, mappings } = self;
        writeln!(f, "backend {backend}, granule {}", limits.granule)?;
        let IovaUsage { all_bytes, free_bytes, longest_free_bytes } = iovas;
        let used = all_bytes - free_bytes;
        writeln!(
            f,
            "IOVAs   {used:#x} bytes used, {free_bytes:#x} free, {longest_free_bytes:#x} of them in one piece"
        )?;
        match bounce {
            Bounce::Never => writeln!(f, "bounce  only if necessary")?,
            Bounce::Below(bytes) => writeln!(f, "bounce  below {bytes} bytes")?,
            Bounce::Always => writeln!(f, "bounce  all that fit")?,
        }
        let Counters { maps, unmaps, bounced, copied_bytes, flushes, leaked, .. } = counters;
        writeln!(
            f,
            "done    {maps} maps ({bounced} bounced), {unmaps} unmaps, {copied_bytes} bytes copied, \
             {flushes} flushes, {leaked} leaked"
        )?;
        let Counters { pool_bytes, pool_peak_bytes, pool_grows, pool_shrinks, .. } = counters;
        writeln!(
            f,
            "pools   {pool_bytes} bytes, peak {pool_peak_bytes}; {pool_grows} chunks made, \
             {pool_shrinks} freed"
        )?;
        for PoolUsage { slot_bytes, direction, chunks, slots, free_slots } in pools {
            writeln!(
                f,
                "        {slot_bytes:>7} {direction:?}: {chunks} chunks, {slots} slots, {free_slots} free"
            )?;
        }
        for pool in dma_pools {
            writeln!(f, "DMA pool {pool}")?;
        }
        for made in mappings.iter().flatten() {
            writeln!(f, "mapped  {made}")?;
        }
        Ok(())
    }
}
