//! The cases that are shown with a plot: what people would compare first.

use super::super::plot::Scale;

/// A case, by one of its metrics.
pub(super) struct Featured {
    pub(super) bench: &'static str,
    pub(super) case: &'static str,
    pub(super) metric: &'static str,
    pub(super) title: &'static str,
    pub(super) scale: Scale,
    pub(super) more_is_better: bool,
    /// How the names of the candidates begin that are ours.
    pub(super) ours: &'static [&'static str],
}

const LIBRARY: &[&str] = &["longshore"];
const TABLES: &[&str] = &["VT-d", "Arm"];

macro_rules! featured {
    ($($bench:literal $case:literal $metric:literal $scale:ident $better:ident $ours:expr, $title:literal;)*) => {
        pub(super) const FEATURED: &[Featured] = &[$(Featured {
            bench: $bench,
            case: $case,
            metric: $metric,
            title: $title,
            scale: Scale::$scale,
            more_is_better: featured!(@ $better),
            ours: $ours,
        }),*];
    };
    (@ more) => { true };
    (@ less) => { false };
}
featured! {
    "load" "cold" "speed" Linear more LIBRARY, "A large file from the disk";
    "load" "cold" "page_cache_growth" Linear less LIBRARY, "What that leaves in the page cache";
    "load" "cold" "peak_over_file" Linear less LIBRARY, "Memory it takes beyond the file’s size";
    "load" "warm" "speed" Linear more LIBRARY, "The same file from the page cache";
    "load" "overlap" "speed" Linear more LIBRARY, "Reading while memory is made";
    "load" "first-use" "time" Log less LIBRARY, "First use: 1 MiB, from a process’s start to its end";
    "load" "align" "time" Linear less LIBRARY, "Every tensor at a multiple";
    "load" "python" "speed" Linear more LIBRARY, "The same by Python";
    "load" "python-import" "time" Linear less LIBRARY, "Importing a Python package, from a process’s start to its end";
    "load" "attach" "time" Log less LIBRARY, "A model of 1 GiB that a server holds";
    "iov" "copy, 4 KiB" "speed" Linear more LIBRARY, "A copy of 4 KiB";
    "iov" "copy, DRAM" "speed" Linear more LIBRARY, "A copy beyond the caches";
    "iov" "checksum, 4 KiB" "speed" Linear more LIBRARY, "The internet checksum of 4 KiB";
    "iov" "copy+checksum, DRAM" "speed" Linear more LIBRARY, "Copy and checksum beyond the caches";
    "iov" "crc32c, L1" "speed" Linear more LIBRARY, "CRC-32C in the first cache";
    "iov" "empty step" "cycles" Linear less &["Own", "Foreign", "Page", "Sparse"], "A segment with a step that does nothing";
    "pagetable" "map 4K" "time" Linear less TABLES, "Mapping a page of 4 KiB";
    "pagetable" "unmap 4K" "time" Linear less TABLES, "Unmapping it";
    "pagetable" "map 1G of 4K" "time" Log less TABLES, "Mapping 1 GiB in pages of 4 KiB";
    "pagetable" "unmap 1G of 4K" "time" Log less TABLES, "Unmapping that";
    "pagetable" "lookup, random in 1G" "time" Linear less TABLES, "Looking up a page in 1 GiB";
    "access" "mix, hot, 16 maps" "cycles" Linear less LIBRARY, "An access of the published mix, 16 mappings";
    "access" "mix, hot, 4096 maps" "cycles" Linear less LIBRARY, "The same, 4,096 mappings";
    "access" "mix, hot, 262144 maps" "cycles" Linear less LIBRARY, "The same, 262,144 mappings";
    "access" "read 8, hot, 16 maps" "cycles" Linear less LIBRARY, "A read of 8 bytes, 16 mappings";
    "access" "dirty log, mix, hot, 16 maps" "cycles" Linear less LIBRARY, "With a dirty log";
    "access" "unmap 4K" "time" Log less &[""], "Unmapping a page while sessions are there";
    "bounce" "map + unmap 4K, soft" "time" Log less &["no session", "all parked", "idle", "one busy"], "Mapping and unmapping a page of 4 KiB, on the host";
    "bounce" "bounce 4K" "time" Linear less LIBRARY, "A bounce of 4 KiB there and back, on the host";
    "bounce" "guest, virtio-iommu, 4k, depth 64" "speed" Linear more &["bounce", "static", "policy", "map"], "Reads of 4 KiB in the guest, virtio-iommu";
    "bounce" "guest, intel-iommu, 128k, depth 64" "speed" Linear more &["bounce", "static", "policy", "map"], "Reads of 128 KiB in the guest, intel-iommu";
}
