//! `longshore-domain` on the kernel's address spaces, with a QEMU device that does DMA.

#[path = "../../../../crates/devices/domain/tests/conformance/suite.rs"]
mod conformance;
mod edu;
mod others;
pub(crate) mod owner;
mod rig;
mod stray;

use std::{fs, panic};

use longshore_domain::backend::OpenError;
use longshore_domain::{Bounce, Direction, Domain, Error};
use longshore_heap::Heap;
use longshore_mem::{DmaMemory, Iova};

use self::rig::{GRANULE, Interface, remaps_interrupts};
use super::{Suite, Test};
use crate::outcome::{Passed, TestResult, ensure};

/// The tests of an interface: each case of the conformance suite, and more.
macro_rules! tests {
    ($interface:expr) => {
        &[
            Test {
                name: "every_case_of_the_suite_is_listed",
                run: every_case_of_the_suite_is_listed,
            },
            case!($interface, "the_device_sees_what_is_mapped"),
            case!($interface, "the_device_may_do_what_the_direction_says"),
            case!($interface, "what_was_unmapped_is_out_of_reach"),
            case!($interface, "a_dropped_mapping_is_out_of_reach"),
            case!($interface, "a_chosen_address_is_kept"),
            case!($interface, "a_gap_stops_the_device"),
            case!($interface, "a_narrow_device_gets_low_addresses"),
            case!($interface, "a_batch_is_taken_back_at_once"),
            case!($interface, "a_full_space_gives_the_memory_back"),
            case!($interface, "borrowed_bytes_are_lent_for_a_scope"),
            case!($interface, "coherent_memory_is_seen_by_both"),
            case!($interface, "elements_of_a_pool_stay_mapped"),
            case!($interface, "a_mapping_is_used_more_than_once"),
            case!($interface, "odd_memory_is_refused"),
            case!($interface, "threads_map_beside_each_other"),
            Test { name: "stray_dma_leaves_every_byte", run: || stray::leaves_all($interface) },
            Test { name: "limits_are_the_kernels", run: || limits_are_the_kernels($interface) },
            Test { name: "bounced_bytes_arrive", run: || bounced_bytes_arrive($interface) },
            Test { name: "udmabufs_are_mapped_by_their_memfd", run: || udmabuf($interface) },
            Test { name: "system_heaps_cannot_be_mapped", run: || system_heap($interface) },
            Test { name: "a_refused_mapping_leaves_nothing", run: || refused_maps($interface) },
            Test { name: "refusals_say_what_to_do", run: || refusals($interface) },
            Test { name: "the_bounce_policy_is_calibrated", run: || calibrated($interface) },
            Test { name: "a_device_can_be_reopened", run: || again_and_again($interface) },
            Test {
                name: "an_ordinary_user_gets_instructions",
                run: || others::may_not($interface),
            },
            Test { name: "neighbours_of_the_kernel", run: || others::neighbour($interface) },
            Test { name: "locked_memory_has_a_limit", run: || others::limit($interface) },
            Test { name: "a_process_is_killed_in_a_transfer", run: || others::killed($interface) },
        ]
    };
}

macro_rules! case {
    ($interface:expr, $name:literal) => {
        Test { name: $name, run: || run_case($interface, $name) }
    };
}

pub(super) const VFIO_INTEL: Suite = Suite { name: "vfio_intel", tests: tests!(Interface::Vfio) };
pub(super) const VFIO_VIRTIO: Suite = Suite { name: "vfio_virtio", tests: tests!(Interface::Vfio) };
pub(super) const IOMMUFD_INTEL: Suite =
    Suite { name: "iommufd_intel", tests: tests!(Interface::Iommufd) };
pub(super) const IOMMUFD_VIRTIO: Suite =
    Suite { name: "iommufd_virtio", tests: tests!(Interface::Iommufd) };

fn run_case(interface: Interface, name: &str) -> TestResult {
    let cases = conformance::cases::<Interface>();
    let (_, case) = cases.iter().find(|case| case.0 == name).ok_or("the suite has no such case")?;
    // One case panics on purpose and catches it; other panics go to the previous hook.
    let outer = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref() != Some(&"in the scope") {
            outer(info);
        }
    }));
    case(&interface);
    Ok(Passed::Yes)
}

fn every_case_of_the_suite_is_listed() -> TestResult {
    for (name, _) in conformance::cases::<Interface>() {
        let is_listed = VFIO_INTEL.tests.iter().any(|test| test.name == name);
        ensure!(is_listed, "{name} is a case of the suite, and no test");
    }
    Ok(Passed::Yes)
}

/// The interrupt window cannot be mapped, and the addresses beside it can.
fn limits_are_the_kernels(interface: Interface) -> TestResult {
    const WINDOW: u64 = 0xfee0_0000;
    let (builder, device) = interface.domain_and_device()?;
    let domain = builder.build();
    let limits = domain.limits();
    println!("{limits:x?}");
    ensure!(limits.granule == GRANULE, "{limits:?}");
    for at in [WINDOW, WINDOW + 0xf_f000] {
        let buffer = Heap::Memfd.allocate(4096)?;
        let refused = domain.map_at(Iova::new(at), buffer, Direction::ToDevice);
        let refused = refused.err().ok_or(format!("{at:#x} can be mapped"))?;
        ensure!(matches!(*refused.error, Error::Iova(_)), "{refused}");
    }
    for at in [WINDOW - 0x1000, WINDOW + 0x10_0000, 1 << 38] {
        let mut buffer = Heap::Memfd.allocate(4096)?;
        buffer.write()?.fill(0x3c);
        let mapping = domain.map_at(Iova::new(at), buffer, Direction::ToDevice)?;
        let mut seen = [0; 64];
        ensure!(device.fetch(mapping.iova(), &mut seen), "{at:#x} is mapped");
        ensure!(seen == [0x3c; 64], "{at:#x}: {seen:x?}");
    }
    Ok(Passed::Yes)
}

fn bounced_bytes_arrive(interface: Interface) -> TestResult {
    let (builder, device) = interface.domain_and_device()?;
    let domain = builder.bounce(Bounce::Always).build();
    for _ in 0..3 {
        let mut buffer = Heap::Memfd.allocate(3000)?;
        buffer.write()?.fill(0x41);
        let mapping = domain.map(buffer, Direction::Bidirectional)?;
        ensure!(mapping.is_bounced(), "{mapping:?}");
        let mut seen = [0; 3000];
        ensure!(device.fetch(mapping.iova(), &mut seen), "{mapping:?} is not there");
        ensure!(seen.iter().all(|byte| *byte == 0x41), "other bytes than the buffer's were seen");
        device.store(Iova::new(mapping.iova().raw() + 2990), &[0x42; 10]);
        let buffer = mapping.unmap().map_err(|failed| failed.error)?;
        ensure!(buffer.read()?[2989..] == *b"ABBBBBBBBBB", "{:x?}", &buffer.read()?[2980..]);
    }
    ensure!(domain.counters().bounced == 3, "{:?}", domain.counters());
    Ok(Passed::Yes)
}

fn udmabuf(interface: Interface) -> TestResult {
    let (builder, device) = interface.domain_and_device()?;
    let domain = builder.build();
    let mut buffer = Heap::Udmabuf.allocate(3 * 4096)?;
    buffer.write()?.fill(0x51);
    let mapping = domain.map(buffer, Direction::Bidirectional)?;
    let mut seen = [0; 3 * 4096];
    ensure!(device.fetch(mapping.iova(), &mut seen), "{mapping:?} is not there");
    ensure!(seen.iter().all(|byte| *byte == 0x51), "other bytes than the buffer's were seen");
    device.store(Iova::new(mapping.iova().raw() + 8192), b"by DMA");
    let buffer = mapping.unmap().map_err(|failed| failed.error)?;
    ensure!(buffer.read()?[8192..8198] == *b"by DMA", "what the device wrote is not there");
    Ok(Passed::Yes)
}

/// Buffers of system heaps have no memfd. Mapping one is an error with the reason, and nothing is left.
fn system_heap(interface: Interface) -> TestResult {
    let (builder, _device) = interface.domain_and_device()?;
    let domain = builder.build();
    let buffer = Heap::DmaHeap("system".to_owned()).allocate(4096)?;
    let len = buffer.host().len();
    let refused = domain.map(buffer, Direction::ToDevice).err().ok_or("it was mapped")?;
    let text = refused.to_string();
    ensure!(text.contains("it is a dma-buf"), "{text}");
    ensure!(refused.value.host().len() == len, "another buffer came back");
    let iovas = domain.iovas();
    ensure!(iovas.free_bytes() == iovas.all_bytes(), "addresses were lost");
    Ok(Passed::Yes)
}

/// If the kernel refuses a mapping, memory and addresses are returned, and the next mapping works.
fn refused_maps(interface: Interface) -> TestResult {
    let limit = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
    let before = fs::read_to_string(limit)?;
    // The mailbox is one of the five mappings. The limit does not apply to iommufd.
    fs::write(limit, "5")?;
    let opened = interface.domain_and_device();
    fs::write(limit, before.trim())?;
    let (builder, device) = opened?;
    let domain = builder.build();
    let map = || {
        domain.map(Heap::Memfd.allocate(4096)?, Direction::Bidirectional).map_err(|failed| {
            let text = failed.to_string();
            Box::<dyn std::error::Error>::from(format!(
                "{text} ({} bytes)",
                failed.value.host().len()
            ))
        })
    };
    let mut mappings = (0..4).map(|_| map()).collect::<Result<Vec<_>, _>>()?;
    let free_bytes = domain.iovas().free_bytes();
    match (interface, map()) {
        (Interface::Vfio, Err(refused)) => {
            let text = refused.to_string();
            ensure!(text.contains("dma_entry_limit") && text.contains("(4096 bytes)"), "{text}");
        }
        (Interface::Iommufd, Ok(fifth)) => drop(fifth),
        (_, other) => return Err(format!("{:?}", other.map(|mapping| mapping.iova())).into()),
    }
    ensure!(domain.iovas().free_bytes() == free_bytes, "addresses were lost");
    drop(mappings.pop());
    mappings.push(map()?);
    for mapping in &mappings {
        device.store(mapping.iova(), b"here");
    }
    for mapping in mappings {
        let buffer = mapping.unmap().map_err(|failed| failed.error)?;
        ensure!(buffer.read()?[..4] == *b"here", "a mapping is not where it says");
    }
    Ok(Passed::Yes)
}

fn refusals(interface: Interface) -> TestResult {
    let folder = interface.prepare()?;
    let address = edu::address(&folder);
    let refusal = || interface.open(&address).err().ok_or("the device was opened");

    edu::set_driver(&folder, None)?;
    let refused = refusal()?;
    ensure!(matches!(refused, OpenError::OtherDriver { .. }), "{refused}");
    edu::set_driver(&folder, Some("vfio-pci"))?;

    let opened = interface.open(&address)?;
    let refused = refusal()?;
    ensure!(matches!(refused, OpenError::InUse { .. }), "opened twice: {refused}");
    drop(opened);

    if !remaps_interrupts() {
        fs::write(interface.unsafe_interrupts(), "0")?;
        let refused = refusal()?;
        fs::write(interface.unsafe_interrupts(), "1")?;
        ensure!(matches!(refused, OpenError::UnsafeInterrupts { .. }), "{refused}");
        let text = refused.to_string();
        ensure!(text.contains(interface.unsafe_interrupts()), "{text}");
    }
    interface.open(&address)?;
    Ok(Passed::Yes)
}

/// With defaults, the domain chooses the interface and the bounce policy.
fn calibrated(interface: Interface) -> TestResult {
    let folder = interface.prepare()?;
    let (builder, _device) = Domain::open_device(&edu::address(&folder))?;
    let domain = builder.build();
    let is_interfaces = format!("{domain:?}").contains(&format!("backend: {interface:?}"));
    ensure!(is_interfaces, "expected {interface:?}: {domain:?}");
    let calibration = domain.calibration().ok_or("nothing was measured")?;
    println!("{calibration}");
    // The two system calls of a mapping take more instructions than a copy of 4 KiB.
    ensure!(matches!(calibration.bounce, Bounce::Below(4097..)), "{calibration}");
    let mapping = domain.map(Heap::Memfd.allocate(4096)?, Direction::ToDevice)?;
    ensure!(mapping.is_bounced(), "{mapping:?}");
    Ok(Passed::Yes)
}

/// A closed domain leaves nothing behind, even if its device is closed later.
fn again_and_again(interface: Interface) -> TestResult {
    let descriptors = || fs::read_dir("/proc/self/fd").map(Iterator::count);
    let before = descriptors()?;
    for turn in 0..6 {
        let (builder, device) = interface.domain_and_device()?;
        let domain = builder.build();
        let mapping = domain.map(Heap::Memfd.allocate(1 << 20)?, Direction::Bidirectional)?;
        device.store(mapping.iova(), b"there");
        ensure!(
            mapping.unmap().map_err(|failed| failed.error)?.read()?[..5] == *b"there",
            "turn {turn}"
        );
        if turn % 2 == 0 {
            drop(domain);
            drop(device);
        } else {
            drop(device);
            drop(domain);
        }
        ensure!(descriptors()? == before, "turn {turn}: descriptors are left open");
    }
    Ok(Passed::Yes)
}
