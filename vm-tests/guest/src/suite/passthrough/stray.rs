//! DMA to addresses that are not mapped, or not writable.

use longshore_domain::Direction;
use longshore_heap::{Buffer, Heap};
use longshore_mem::Iova;

use super::rig::{Interface, remaps_interrupts};
use crate::outcome::{Passed, TestResult, ensure};

const PAGE: u64 = 4096;
const STRAY: [u8; 16] = [0xee; 16];

/// A device's forbidden write changes no byte of any memory that is, or was, mapped; and a forbidden
/// read returns nothing.
pub(super) fn leaves_all(interface: Interface) -> TestResult {
    let (builder, device) = interface.domain_and_device()?;
    let domain = builder.guard_bytes(PAGE).build();
    let mut fill = 0x10;
    let mut buffer = |pages: u64| -> Result<(Buffer, u8), Box<dyn std::error::Error>> {
        fill += 1;
        let mut buffer = Heap::Memfd.allocate(pages * PAGE)?;
        buffer.write()?.fill(fill);
        Ok((buffer, fill))
    };
    let whole = |buffer: &Buffer, fill: u8| -> Result<bool, Box<dyn std::error::Error>> {
        Ok(buffer.read()?.iter().all(|byte| *byte == fill))
    };

    let (one_page, one_fill) = buffer(1)?;
    let (for_reading, reading_fill) = buffer(2)?;
    let (for_writing, writing_fill) = buffer(2)?;
    let (to_unmap, unmapped_fill) = buffer(2)?;
    let one_page = domain.map(one_page, Direction::Bidirectional)?;
    let for_reading = domain.map(for_reading, Direction::ToDevice)?;
    let for_writing = domain.map(for_writing, Direction::FromDevice)?;
    let to_unmap = domain.map(to_unmap, Direction::Bidirectional)?;

    // The device has just used this mapping, so the IOMMU caches it.
    let just_unmapped = to_unmap.iova();
    device.store(just_unmapped, &[unmapped_fill; 16]);
    let mut seen = [0; 16];
    ensure!(device.fetch(just_unmapped, &mut seen), "{to_unmap:?} is not there");
    let unmapped = to_unmap.unmap().map_err(|failed| failed.error)?;

    let at = |iova: Iova, offset: u64| Iova::new(iova.raw() + offset);
    let strays = [
        ("never mapped", Iova::new(0x1234_5000), true),
        ("far beyond", Iova::new((1 << 38) + 0x1000), true),
        ("page zero", Iova::new(0), true),
        ("just unmapped", just_unmapped, true),
        ("just unmapped, second page", at(just_unmapped, PAGE), true),
        ("behind one page", at(one_page.iova(), PAGE), true),
        ("mapped for reading", for_reading.iova(), false),
        ("mapped for reading, second page", at(for_reading.iova(), PAGE), false),
    ];
    for (what, iova, is_unreadable) in strays {
        device.store(iova, &STRAY);
        if is_unreadable {
            let mut seen = [0; 16];
            ensure!(!device.fetch(iova, &mut seen), "{what}: the device has read {seen:x?}");
        }
        ensure!(whole(&unmapped, unmapped_fill)?, "{what}: a byte of unmapped memory changed");
    }
    // A write across the end of a page may arrive in the mapped part.
    device.store(at(one_page.iova(), PAGE - 8), &STRAY);
    let mut seen = [0; 16];
    let is_read = device.fetch(for_writing.iova(), &mut seen);
    // Linux sets the read bit in every entry of VT-d's second stage.
    ensure!(!is_read || remaps_interrupts(), "write-only memory was read: {seen:x?}");
    // A write to the same mapping still works.
    device.store(at(for_writing.iova(), PAGE), &STRAY);

    ensure!(
        whole(&for_reading.unmap().map_err(|failed| failed.error)?, reading_fill)?,
        "read-only memory changed"
    );
    ensure!(whole(&unmapped, unmapped_fill)?, "unmapped memory changed");
    let one_page = one_page.unmap().map_err(|failed| failed.error)?;
    let one_page = one_page.read()?;
    ensure!(one_page[..4088].iter().all(|byte| *byte == one_fill), "another byte changed");
    let tail = &one_page[4088..];
    ensure!(tail == [0xee; 8] || tail == [one_fill; 8], "a part of a word arrived: {tail:x?}");
    let for_writing = for_writing.unmap().map_err(|failed| failed.error)?;
    let for_writing = for_writing.read()?;
    ensure!(for_writing[4096..4112] == STRAY, "an allowed write did not arrive");
    let others = for_writing[..4096].iter().chain(&for_writing[4112..]);
    ensure!(others.into_iter().all(|byte| *byte == writing_fill), "another byte changed");
    Ok(Passed::Yes)
}
