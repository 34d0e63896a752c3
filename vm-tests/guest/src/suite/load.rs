//! Loading from real disks into real dma-bufs: another process checks every byte, and a failed load
//! leaves nothing.

mod aligned;
mod content;
mod refusals;

use super::{Suite, Test};

pub(super) const SUITE: Suite = Suite {
    name: "load",
    tests: &[
        Test { name: "ext4_into_udmabuf", run: content::ext4_into_udmabuf },
        Test { name: "ext4_into_system_heap", run: content::ext4_into_system_heap },
        Test { name: "ext4_into_memfd", run: content::ext4_into_memfd },
        Test { name: "xfs_into_udmabuf", run: content::xfs_into_udmabuf },
        Test { name: "erofs_into_udmabuf", run: content::erofs_into_udmabuf },
        Test { name: "overlayfs_into_udmabuf", run: content::overlayfs_into_udmabuf },
        Test { name: "tmpfs_into_udmabuf", run: content::tmpfs_into_udmabuf },
        Test {
            name: "every_mode_loads_the_same_content",
            run: content::every_mode_loads_the_same_content,
        },
        Test { name: "direct_reads_go_through_io_uring", run: content::direct_reads_use_io_uring },
        Test { name: "without_io_uring_threads_read", run: content::without_io_uring_threads_read },
        Test { name: "many_files_fill_one_buffer", run: content::many_files_fill_one_buffer },
        Test { name: "nvme_reads_aligned_tensors_into_place", run: aligned::nvme_reads_into_place },
        Test { name: "aligned_tensors_in_any_memory", run: aligned::any_disk_into_any_memory },
        Test { name: "bad_sector_fails_the_load", run: refusals::bad_sector_fails_the_load },
        Test { name: "cancelling_leaves_nothing", run: refusals::cancelling_leaves_nothing },
        Test { name: "killing_leaves_nothing", run: refusals::killing_leaves_nothing },
        Test { name: "too_much_for_the_machine", run: refusals::too_much_for_the_machine },
        Test {
            name: "two_loads_do_not_plan_with_the_same_memory",
            run: refusals::two_loads_do_not_plan_with_the_same_memory,
        },
        Test { name: "too_much_for_the_control_group", run: refusals::too_much_for_the_group },
        Test { name: "too_many_descriptors", run: refusals::too_many_descriptors },
    ],
};
