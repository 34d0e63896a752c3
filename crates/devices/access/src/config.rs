//! How a space is set up.

use longshore_sync::Barrier;

/// The configuration of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceConfig {
    /// Bits of an IOVA that are translated: 31 to 57. More than 48 cost a fifth level.
    pub input_bits: u32,
    /// How unmapping makes sure that sessions see it; `None` for `membarrier` if the kernel has it, and
    /// fences otherwise.
    pub barrier: Option<Barrier>,
    /// Gives the page tables dirty bits, which sessions set as hardware does
    /// ([`Space::read_dirty`](crate::Space::read_dirty)). A write that finds its page clean costs a walk; unmapping takes each
    /// entry by an exchange.
    pub dirty_bits: bool,
    /// Refuses the safe methods that map and unmap: for an owner that lends out sessions of a space,
    /// and whose raw mappings must stay the only ones.
    pub raw_only: bool,
    /// The largest number of bytes that the page tables may take. Mapping fails with
    /// [`Error::TableLimit`](crate::Error::TableLimit) if it would need more. `None` sets no limit.
    ///
    /// A table is 4 KiB. A mapping that is not congruent to its target modulo 2 MiB needs a table for
    /// each 2 MiB, so the tables of 2^38 bytes take 512 MiB.
    pub table_bytes_max: Option<u64>,
    /// Frees page tables as soon as the safe methods that unmap leave them empty. Otherwise an empty
    /// table stays for the next mapping there, which makes mapping and unmapping of the same addresses
    /// faster.
    pub frees_tables: bool,
}

impl SpaceConfig {
    /// Returns a configuration of 48 bits, with the best barrier there is, without dirty bits, with
    /// safe and raw methods, and without a limit of tables.
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

    /// Returns the same for a space in which an untrusted client maps: page tables of at most
    /// [`CLIENT_TABLE_BYTES_MAX`], which unmapping frees.
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

/// The number of bytes of page tables that a client may cause if
/// [`SpaceConfig::table_bytes_max`] does not say otherwise.
///
/// It is enough for 16,000 mappings that share no table, and for 32 GiB in single pages. A virtual
/// machine maps its memory in a few dozen ranges, which need a few tables each.
pub const CLIENT_TABLE_BYTES_MAX: u64 = 64 << 20;
