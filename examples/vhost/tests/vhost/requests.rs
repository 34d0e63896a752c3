//! Requests to the disk, with and without an IOMMU.

use std::os::fd::AsFd;

use longshore::vhost_user::wire::number;

use crate::frontend::{
    DATA, DESCRIPTORS, DISK_BYTES, Descriptor, Frontend, GUEST, INDIRECT, IOVA, MEMORY_BYTES, NEXT,
    SERIAL, STATUS, Served, USER, WRITE, iotlb, state,
};

#[test]
fn the_configuration_has_the_size_of_the_disk() {
    let served = Served::new();
    let mut frontend = Frontend::negotiated(&served);
    let ask = [0_u32, 60, 0].map(u32::to_ne_bytes).concat();
    let answer = frontend.ask(number::GET_CONFIG, &[ask, vec![0; 60]].concat());
    assert_eq!(answer.len(), 72);
    assert_eq!(answer[12..20], (DISK_BYTES / 512).to_le_bytes());
    assert_eq!(frontend.ask_u64(number::GET_QUEUE_NUM), u64::from(longshore_vhost_example::RINGS));
}

/// Makes requests to read, to write, to flush, and for the serial number.
fn exercise(served: &Served, frontend: &mut Frontend) {
    assert_eq!(frontend.read(9, 4096), (0, served.on_disk(9, 4096)));
    // In parts that are not whole sectors, on several pages.
    let base = frontend.base;
    let part = |at: u64, len: u32| Descriptor(base + DATA + at, len, WRITE, 0);
    let parts = [part(0x7f0, 100), part(0x1000, 0), part(0x1f01, 924)];
    assert_eq!(frontend.request(0, 2, &parts), 0);
    let read = [frontend.get(DATA + 0x7f0, 100), frontend.get(DATA + 0x1f01, 924)].concat();
    assert_eq!(read, served.on_disk(2, 1024));
    // More than the device's buffer holds.
    let large = 0x6_0000;
    assert_eq!(frontend.read(0, large), (0, served.on_disk(0, large as usize)));

    let bytes: Vec<u8> = (0..1024).map(|at| (at * 3) as u8).collect();
    frontend.put(DATA + 5, &bytes);
    assert_eq!(frontend.request(1, 77, &[Descriptor(base + DATA + 5, 1024, 0, 0)]), 0);
    assert_eq!(served.on_disk(77, 1024), bytes);
    assert_eq!(frontend.request(4, 0, &[]), 0);

    frontend.put(DATA, &[1; 32]);
    assert_eq!(frontend.request(8, 0, &[Descriptor(base + DATA, 20, WRITE, 0)]), 0);
    let name = [SERIAL.as_bytes(), &[0; 14], &[1; 12]].concat();
    assert_eq!(frontend.get(DATA, 32), name);

    // An indirect table of descriptors.
    let table = 0x7000;
    frontend.put_descriptors(
        table,
        &[
            Descriptor(base + crate::frontend::HEADER, 16, NEXT, 2),
            Descriptor(base + STATUS, 1, WRITE, 0),
            Descriptor(base + DATA, 512, NEXT | WRITE, 1),
        ],
    );
    frontend.put_descriptors(DESCRIPTORS, &[Descriptor(base + table, 48, INDIRECT, 0)]);
    frontend.put(crate::frontend::HEADER, &[0; 8]);
    frontend.put(crate::frontend::HEADER + 8, &8_u64.to_le_bytes());
    frontend.submit(0);
    assert!(frontend.wait());
    assert_eq!(frontend.get(DATA, 512), served.on_disk(8, 512));
    // More requests than the ring has entries.
    for sector in 0..40 {
        assert_eq!(frontend.read(sector, 512), (0, served.on_disk(sector, 512)));
    }
}

#[test]
fn requests_succeed() {
    let served = Served::new();
    exercise(&served, &mut Frontend::ready(&served));
    assert_eq!(served.ended(), "closed by the front-end");
    let counts = served.counts.snapshot();
    assert_eq!((counts.writes, counts.flushes, counts.ids, counts.failed), (1, 1, 1, 0));
    assert_eq!((counts.misses, counts.ring_errors, counts.refused), (0, 0, 0));
}

#[test]
fn requests_succeed_behind_an_iommu() {
    let served = Served::new();
    let mut frontend = Frontend::ready_behind_iommu(&served, Frontend::translate);
    exercise(&served, &mut frontend);
    let misses = frontend.misses;
    // A read of all memory that was used before needs no more translations.
    assert_eq!(frontend.read(0, 0x6_0000).0, 0);
    assert_eq!(frontend.misses, misses);

    // A translation that was invalidated is requested again.
    frontend.done(number::IOTLB_MSG, &iotlb(IOVA + DATA, 0x1000, 0, 0, 3), &[]);
    assert_eq!(frontend.read(0, 512), (0, served.on_disk(0, 512)));
    assert_eq!(frontend.misses, misses + 1);
    frontend.done(number::IOTLB_MSG, &iotlb(0, u64::MAX, 0, 0, 3), &[]);
    assert_eq!(frontend.read(0, 512).0, 0);
    // One for each of descriptors, available ring, used ring, header, status and data.
    assert!(frontend.misses >= misses + 1 + 5, "{} after {misses}", frontend.misses);
    // A large translation replaces the small ones that it covers, and an invalidation of one of its
    // pages invalidates all of it.
    frontend.done(number::IOTLB_MSG, &iotlb(IOVA, MEMORY_BYTES, USER, 3, 2), &[]);
    let misses = frontend.misses;
    assert_eq!(frontend.read(5, 0x1_0000), (0, served.on_disk(5, 0x1_0000)));
    assert_eq!(frontend.misses, misses);
    frontend.done(number::IOTLB_MSG, &iotlb(IOVA + 0x9000, 0x1000, 0, 0, 3), &[]);
    assert_eq!(frontend.read(5, 512).0, 0);
    assert!(frontend.misses > misses);
    // A new memory table removes all translations.
    frontend.set_table();
    let misses = frontend.misses;
    assert_eq!(frontend.read(6, 512), (0, served.on_disk(6, 512)));
    assert!(frontend.misses > misses);
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    assert_eq!(served.counts.snapshot().refused, 0);
}

/// A request fails if its memory is not mapped or translated. The others succeed.
#[test]
fn data_that_is_not_mapped_fails_only_its_request() {
    let served = Served::new();
    for mut frontend in [
        Frontend::ready(&served),
        // The front-end behind an IOMMU is served after this one is dropped.
    ] {
        for at in [0, GUEST - 512, GUEST + MEMORY_BYTES - 511, 1 << 47, u64::MAX - 511, u64::MAX] {
            assert_eq!(frontend.request(0, 0, &[Descriptor(at, 512, WRITE, 0)]), 1, "{at:#x}");
            assert_eq!(frontend.request(1, 0, &[Descriptor(at, 512, 0, 0)]), 1, "{at:#x}");
        }
        assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
    }
    assert_eq!(served.ended(), "closed by the front-end");
    let mut frontend = Frontend::ready_behind_iommu(&served, Frontend::translate);
    for at in [0, IOVA - 512, IOVA + MEMORY_BYTES - 511, 1 << 60, u64::MAX - 511, u64::MAX] {
        assert_eq!(frontend.request(0, 0, &[Descriptor(at, 512, WRITE, 0)]), 1, "{at:#x}");
    }
    assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    assert!(served.counts.snapshot().data_faults >= 18);
}

/// A ring stops when its index is read, also while it waits for a translation. It then continues at that
/// index, with the requests that were not completed.
#[test]
fn a_ring_continues_where_it_stopped() {
    let served = Served::new();
    let mut frontend = Frontend::ready_behind_iommu(&served, Frontend::translate);
    for sector in 0..5 {
        assert_eq!(frontend.read(sector, 512).0, 0);
    }
    // The status cannot be written without a translation, which does not come.
    frontend.done(number::IOTLB_MSG, &iotlb(IOVA + STATUS, 1, 0, 0, 3), &[]);
    frontend.submit(0);
    let channel = frontend.channel.take().unwrap();
    let (miss, _) = crate::frontend::receive(&channel);
    assert_eq!(miss.request, number::BACKEND_IOTLB_MSG);
    let stopped = frontend.ask(number::GET_VRING_BASE, &state(0, 0));
    assert_eq!(stopped, state(0, 5), "the sixth request is not completed");
    frontend.channel = Some(channel);
    // The late reply is ignored.
    frontend.answer(1);
    frontend.next = 5;
    frontend.start_ring(IOVA, 0);
    frontend.next = 6;
    assert!(frontend.wait());
    assert_eq!(frontend.get_u16(crate::frontend::USED + 2), 6);
    assert_eq!(frontend.get(STATUS, 1), [0]);
}

#[test]
fn a_disabled_ring_does_not_run() {
    let served = Served::new();
    let mut frontend = Frontend::ready(&served);
    frontend.done(number::SET_VRING_ENABLE, &state(0, 0), &[]);
    frontend.submit(0);
    assert_eq!(frontend.ask(number::GET_VRING_BASE, &state(0, 0)), state(0, 0));
    frontend.done(number::SET_VRING_ENABLE, &state(0, 1), &[]);
    // Without a kick descriptor it does not start.
    assert_eq!(frontend.ask(number::GET_VRING_BASE, &state(0, 0)), state(0, 0));
    let kick = frontend.kick.try_clone().unwrap();
    frontend.put_descriptors(DESCRIPTORS, &[Descriptor(GUEST + STATUS, 1, WRITE, 0)]);
    frontend.done(number::SET_VRING_KICK, &0_u64.to_ne_bytes(), &[kick.as_fd()]);
    assert!(frontend.wait());
}
