//! `longshore-nvme` in a guest: this process drives QEMU's NVMe controllers.

mod flight;
mod rig;
mod transfers;
mod whole;

use longshore_nvme::{Interface, Options, SglSupport};
use longshore_vm_tests::fixture;

use super::{Suite, Test};
use crate::outcome::{Passed, TestResult, ensure};

/// The tests of one interface.
macro_rules! tests {
    ($interface:expr) => {
        &[
            Test { name: "identify_is_right", run: || identify_is_right($interface) },
            Test { name: "a_gigabyte_arrives_byte_exact", run: || whole::raw($interface) },
            Test { name: "a_files_extents_arrive_byte_exact", run: || whole::file($interface) },
            Test { name: "the_example_program_works", run: || whole::program($interface) },
            Test { name: "written_blocks_read_back", run: || transfers::written($interface) },
            Test { name: "unaligned_buffers_bounce", run: || transfers::unaligned($interface) },
            Test { name: "the_controllers_limit_is_kept", run: || transfers::limit($interface) },
            Test { name: "prps_and_sgls_are_alike", run: || transfers::pointers($interface) },
            Test { name: "rings_wrap_many_times", run: || transfers::wrapping($interface) },
            Test { name: "refusals_have_a_reason", run: || transfers::refused($interface) },
            Test { name: "a_reset_gives_memory_back", run: || flight::reset($interface) },
            Test { name: "a_queue_ends_with_its_commands", run: || flight::closed($interface) },
            Test { name: "dropped_in_flight_nothing_faults", run: || flight::dropped($interface) },
            Test { name: "a_timeout_is_an_error", run: || flight::timed_out($interface) },
        ]
    };
}

pub(super) const VFIO_INTEL: Suite =
    Suite { name: "nvme_vfio_intel", tests: tests!(Interface::Vfio) };
pub(super) const VFIO_VIRTIO: Suite =
    Suite { name: "nvme_vfio_virtio", tests: tests!(Interface::Vfio) };
pub(super) const IOMMUFD_INTEL: Suite =
    Suite { name: "nvme_iommufd_intel", tests: tests!(Interface::Iommufd) };
pub(super) const IOMMUFD_VIRTIO: Suite =
    Suite { name: "nvme_iommufd_virtio", tests: tests!(Interface::Iommufd) };

fn identify_is_right(interface: Interface) -> TestResult {
    rig::drive(interface, fixture::DRIVEN_RAW, Options::default(), |_, controller, namespace| {
        println!("{controller:?}, {namespace:?}");
        let data = controller.identify();
        ensure!((&*data.model, &*data.serial) == ("QEMU NVMe Ctrl", "nvme-raw"), "{data:?}");
        ensure!(data.sgl == SglSupport::Bytes && data.has_write_cache, "{data:?}");
        ensure!(namespace.len() == fixture::DRIVEN_BYTES, "{namespace:?}");
        ensure!(namespace.block_bytes() == 512, "{namespace:?}");
        // QEMU's default, MDTS = 7.
        ensure!(controller.max_transfer_bytes() == 512 << 10, "{controller:?}");
        ensure!(controller.namespace_ids()? == [1], "{:?}", controller.namespace_ids());
        let missing = controller.namespace(2).err().ok_or("there is a namespace 2")?;
        ensure!(missing.to_string().contains("namespace 2"), "{missing}");
        ensure!(controller.queues_left() == 8, "{} queues", controller.queues_left());
        Ok(())
    })?;
    rig::drive(
        interface,
        fixture::DRIVEN_SMALL,
        Options::default(),
        |_, controller, namespace| {
            ensure!(namespace.block_bytes() == 4096, "{namespace:?}");
            ensure!(namespace.len() == 2 * fixture::DRIVEN_SMALL_BYTES, "{namespace:?}");
            ensure!(controller.max_transfer_bytes() == 16 << 10, "{controller:?}");
            Ok(())
        },
    )?;
    Ok(Passed::Yes)
}
