//! The configuration of a space.

use longshore_sync::Barrier;

/// The configuration of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceConfig {
    /// The number of bits of an IOVA that are translated: 31 to 57. More than 48 need a fifth level.
    pub input_bits: u32,
    /// The barrier with which unmapping makes sure that all sessions see the change. `None` selects
    /// `membarrier` if the kernel has it, and fences otherwise.
    pub barrier: Option<Barrier>,
    /// `true` to have dirty bits in the page tables, which sessions set as hardware does
    /// ([`Space::read_dirty`](crate::Space::read_dirty)). Each write to a clean page costs a page-table
    /// walk, and unmapping clears each entry with an atomic exchange.
    pub dirty_bits: bool,
    /// `true` to let the safe methods that map and unmap fail with
    /// [`Error::RawOnly`](crate::Error::RawOnly). This is for an owner that gives others access to its
    /// space, but must be the only one to map in it.
    pub raw_only: bool,
    /// The maximum size of the page tables in bytes. Mapping fails with
    /// [`Error::TableLimit`](crate::Error::TableLimit) if it would need more. `None` sets no limit.
    ///
    /// A table has 4 KiB. If an IOVA and its target differ modulo 2 MiB, the mapping needs a table for
    /// each 2 MiB, so the tables for 2^38 bytes take 512 MiB.
    pub table_bytes_max: Option<u64>,
    /// `true` to free page tables as soon as the safe methods that unmap leave them empty. Otherwise an
    /// empty table stays for the next mapping there, which makes mapping and unmapping of the same
    /// addresses faster.
    pub frees_tables: bool,
}

impl SpaceConfig {
    /// Returns a configuration with 48 bits, the fastest barrier that the kernel has, safe and raw
    /// methods, no dirty bits, and no limit on page tables.
    pub const fn new() -> Self {
        Self {
            input_bits: 48,
            barrier: None,
            dirty_bits: false,
            raw_only: false,
            table_bytes_max: None,
            frees_tables: false,
        }
    }

    /// Returns a configuration for a space in which an untrusted client maps: at most
    /// [`CLIENT_TABLE_BYTES_MAX`] of page tables, which unmapping frees.
    pub const fn for_client() -> Self {
        let table_bytes_max = Some(CLIENT_TABLE_BYTES_MAX);
        Self { table_bytes_max, frees_tables: true, ..Self::new() }
    }

    /// Returns the same with [`input_bits`](Self::input_bits).
    #[must_use]
    pub const fn with_input_bits(self, input_bits: u32) -> Self {
        Self { input_bits, ..self }
    }

    /// Returns the same with [`barrier`](Self::barrier).
    #[must_use]
    pub const fn with_barrier(self, barrier: Option<Barrier>) -> Self {
        Self { barrier, ..self }
    }

    /// Returns the same with [`dirty_bits`](Self::dirty_bits).
    #[must_use]
    pub const fn with_dirty_bits(self, dirty_bits: bool) -> Self {
        Self { dirty_bits, ..self }
    }

    /// Returns the same with [`raw_only`](Self::raw_only).
    #[must_use]
    pub const fn with_raw_only(self, raw_only: bool) -> Self {
        Self { raw_only, ..self }
    }

    /// Returns the same with [`table_bytes_max`](Self::table_bytes_max).
    #[must_use]
    pub const fn with_table_bytes_max(self, table_bytes_max: Option<u64>) -> Self {
        Self { table_bytes_max, ..self }
    }

    /// Returns the same with [`frees_tables`](Self::frees_tables).
    #[must_use]
    pub const fn with_frees_tables(self, frees_tables: bool) -> Self {
        Self { frees_tables, ..self }
    }
}

/// The default limit, in bytes, on the page tables of a space in which a client maps
/// ([`SpaceConfig::table_bytes_max`]).
///
/// It is enough for 16,000 mappings that share no table, and for 32 GiB in single pages. A virtual
/// machine maps its memory in a few dozen ranges, which need a few tables each.
pub const CLIENT_TABLE_BYTES_MAX: u64 = 64 << 20;
