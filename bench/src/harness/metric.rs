//! Every metric that a bench measures: its name in rows, goals and tables, and its unit.

use serde::de::{Deserialize as _, Deserializer, Error};

/// A metric: its name and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
}

macro_rules! metrics {
    ($($(#[$attribute:meta])* $constant:ident: $name:literal, $unit:literal;)*) => {
        $($(#[$attribute])* pub(crate) const $constant: Metric = Metric { name: $name, unit: $unit };)*
        const NAMES: &[&str] = &[$($name),*];
    };
}

metrics! {
    /// The bytes of the file or of the transfers, divided by the time.
    SPEED: "speed", "GB/s";
    BYTES_PER_CLOCK: "speed", "B/clock";
    ACCESS_RATE: "speed", "accesses/us";
    TRANSFER_RATE: "speed", "transfers/us";
    TIME_MS: "time", "ms";
    TIME_US: "time", "us";
    TIME_NS: "time", "ns";
    /// Ticks of the time-stamp counter. A core that runs faster than the counter needs more cycles of
    /// its own.
    #[cfg(target_arch = "x86_64")]
    CYCLES: "cycles", "TSC cycles";
    /// Ticks of the generic timer, which is slower than the core.
    #[cfg(target_arch = "aarch64")]
    CYCLES: "cycles", "timer ticks";
    /// Cycles at the measured clock rate of the core.
    CORE_CYCLES: "cycles", "cycles";
    CODE: "code", "B";

    /// User and system time of the process, divided by the file's size.
    CPU_PER_GIB: "cpu", "s/GiB";

    /// The growth of the file's pages in the page cache.
    PAGE_CACHE: "page_cache_growth", "MiB";
    /// The peak memory of the process minus the file's size; memory from before the load is included.
    PEAK_OVER_FILE: "peak_over_file", "MiB";
    /// The peak memory of the process minus the memory of its stream.
    PEAK_OVER_MEMORY: "peak_over_memory", "MiB";
    /// The time from the call to the first tensor of a stream.
    FIRST_TENSOR: "first_tensor", "ms";
    /// The bytes that a stream read, divided by the model's size.
    READ_SHARE: "read_share", "of the model";
    /// The bytes that the disk read for a process.
    READ_FROM_DISK: "read_from_disk", "MiB";
    /// The bytes that a server sent to a process.
    RECEIVED: "received", "MiB";
    /// The memory of all processes: each page that several processes map is counted once.
    MEMORY_SUM: "memory_sum", "MiB";
    /// The same, with the pages of the model that are in the page cache, divided by the model's size.
    COPIES: "copies", "of the model";
    TOKEN_RATE: "speed", "tokens/s";
    /// The time of the interpreter's imports.
    IMPORT: "import", "ms";

    LINES_CLEANED: "lines cleaned", "";
    FENCES: "fences", "";
    INVALIDATIONS: "invalidations", "";
    TABLES: "tables taken or freed", "";

    BARRIERS: "barriers", "";
    WAITED: "waited", "";
    REMAPS: "remaps", "1/s";
    REMAP_TIME: "a remap", "us";

    IN_FLIGHT: "in_flight", "MiB";
    POOL_PEAK: "pool_peak", "MiB";
    KINDS: "kinds", "";
    /// The pool's peak, minus one chunk for each kind, divided by the bytes in flight.
    PEAK_OVER_IN_FLIGHT: "peak_over_in_flight", "";
    /// The same when half of the transfers have ended.
    HALF_OVER_IN_FLIGHT: "half_over_in_flight", "";
    CHUNKS_AT_REST: "chunks_at_rest", "";
    AT_REST_AFTER: "at_rest_after", "ms";
    /// The share of the I/Os that went through bounce buffers.
    BOUNCED: "bounced", "of the I/Os";
    /// The number of unmapping calls for each I/O.
    FLUSHES: "flushes", "per I/O";
    MAP_TIME: "map_time", "ms/GB";
    UNMAP_TIME: "unmap_time", "ms/GB";
    MAP_AND_UNMAP_TIME: "map_and_unmap_time", "ms/GB";
}

/// Deserializes a metric's name.
///
/// # Errors
/// Returns an error if no bench measures a metric of that name, so that a misspelt name is not reported
/// as "not run".
pub(crate) fn known_name<'de, D: Deserializer<'de>, T: From<String>>(
    source: D,
) -> Result<T, D::Error> {
    let name = String::deserialize(source)?;
    if NAMES.contains(&name.as_str()) {
        return Ok(name.into());
    }
    let known: std::collections::BTreeSet<&str> = NAMES.iter().copied().collect();
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    Err(D::Error::custom(format!("unknown metric '{name}' (expected one of: {known})")))
}
