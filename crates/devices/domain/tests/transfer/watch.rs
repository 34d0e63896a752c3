//! The reports of a checked domain, and correct use, which it does not report.

use std::sync::{Arc, Mutex};

use longshore_access::Session;
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Builder, Direction, Domain, MappingInfo, Misuse};
use longshore_heap::{Buffer, Heap, Sealing, SharedBuffer};
use longshore_mem::Iova;

#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<Misuse>>>);

impl Reports {
    fn take(&self) -> Vec<Misuse> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Returns the only report.
    fn one(&self) -> Misuse {
        let all = self.take();
        let [misuse] = &all[..] else { panic!("{all:?}") };
        misuse.clone()
    }
}

fn domain(set_up: impl FnOnce(Builder) -> Builder) -> (Domain, Session, Reports) {
    let soft = Soft::new().unwrap();
    let session = soft.space().session();
    let reports = Reports::default();
    let seen = reports.clone();
    let report = move |misuse: &Misuse| seen.0.lock().unwrap().push(misuse.clone());
    let builder = Domain::builder(soft).free_after(None).on_misuse(report);
    (set_up(builder).build(), session, reports)
}

fn buffer(len_bytes: u64) -> Buffer {
    Heap::Memfd.allocate(len_bytes).unwrap()
}

/// Returns true if the mapping was made in this file, at that line.
fn is_here(made: &MappingInfo, line: u32) -> bool {
    made.by.file().ends_with("transfer/watch.rs") && made.by.line() == line
}

#[test]
fn a_leaked_mapping_is_named() {
    let (domain, _, reports) = domain(|builder| builder);
    let local = domain.local();
    drop(local.map(buffer(4096), Direction::ToDevice).unwrap());
    let leaked = local.map(buffer(8192), Direction::FromDevice).unwrap();
    let line = line!() - 1;
    let iova = leaked.iova();
    assert_eq!(domain.dump().mappings.unwrap().len(), 1);
    std::mem::forget(leaked);
    drop(local);
    drop(domain);
    let Misuse::Leaked { mapping } = reports.one() else { panic!("another misuse") };
    assert!(is_here(&mapping, line), "{mapping}");
    assert_eq!((mapping.iova, mapping.len_bytes), (iova, 8192));
    let text = Misuse::Leaked { mapping }.to_string();
    assert!(text.contains("leaked") && text.contains("0x2000 bytes, FromDevice"), "{text}");
}

#[test]
fn accesses_to_bytes_that_the_device_owns_are_reported() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let (domain, _, reports) = domain(|builder| builder.bounce(bounce));
        let mut mapping = domain.map(buffer(4096), Direction::Bidirectional).unwrap();
        let mut bytes = [0; 16];
        mapping.sync_for_cpu(64..128).unwrap();
        mapping.read(64, &mut bytes).unwrap();
        mapping.write(112, &bytes).unwrap();
        assert_eq!(reports.take(), []);

        mapping.read(120, &mut bytes).unwrap();
        let Misuse::DeviceOwns { mapping: made, bytes: owned, operation, at } = reports.one()
        else {
            panic!("another misuse")
        };
        assert_eq!((owned, operation, at.line()), (128..136, "read", line!() - 5));
        assert_eq!((made.iova, made.is_bounced), (mapping.iova(), bounce == Bounce::Always));

        mapping.sync_for_device(80..96).unwrap();
        mapping.write(72, &bytes).unwrap();
        let Misuse::DeviceOwns { bytes: owned, operation, .. } = reports.one() else {
            panic!("another misuse")
        };
        assert_eq!((owned, operation), (80..88, "written"));
        mapping.sync_for_cpu(0..4096).unwrap();
        mapping.read(4080, &mut bytes).unwrap();
        mapping.unmap().unwrap();
        assert_eq!(reports.take(), []);
    }
}

#[test]
fn wrong_and_missing_lengths_are_reported() {
    let (domain, _, reports) = domain(|builder| builder);
    domain.map(buffer(4096), Direction::ToDevice).unwrap().complete(0).unwrap();
    domain.map_reported(buffer(4096)).unwrap().complete(4096).unwrap();
    drop(domain.map_reported(buffer(4096)).unwrap());
    assert_eq!(reports.take(), []);
    domain.map(buffer(4096), Direction::ToDevice).unwrap().complete(1).unwrap();
    assert!(matches!(reports.one(), Misuse::WrongDirection { .. }));
    domain.map_reported(buffer(4096)).unwrap().unmap().unwrap();
    assert!(matches!(reports.one(), Misuse::NotReported { .. }));
    let mut batch = domain.batch();
    domain.map_reported(buffer(4096)).unwrap().unmap_deferred(&mut batch).unwrap();
    batch.flush(drop).unwrap();
    assert!(matches!(reports.one(), Misuse::NotReported { .. }));
}

#[test]
fn a_mapping_that_writes_to_mapped_memory_is_reported() {
    let (domain, _, reports) = domain(|builder| builder);
    let shared: Arc<SharedBuffer> = Arc::new(buffer(4096).share(Sealing::Size).unwrap());
    let one = domain.map(Arc::clone(&shared), Direction::ToDevice).unwrap();
    let two = domain.map(Arc::clone(&shared), Direction::ToDevice).unwrap();
    assert_eq!(reports.take(), []);
    let three = domain.map(shared, Direction::FromDevice).unwrap();
    let line = line!() - 1;
    let Misuse::Overlap { mapping, with } = reports.one() else { panic!("another misuse") };
    assert!(is_here(&mapping, line), "{mapping}");
    assert!([one.iova(), two.iova()].contains(&with.iova));
    drop(three);
}

/// A device can write beyond a transfer in a bounce buffer without a fault.
#[test]
fn a_device_that_writes_too_much_is_reported() {
    let (domain, device, reports) = domain(|builder| builder.bounce(Bounce::Always));
    let local = domain.local();
    let write = |iova: Iova, at: u64, len: usize| {
        device.write(Iova::new(iova.raw() + at), &vec![0x99; len]).unwrap();
    };
    let beyond = || match reports.take()[..] {
        [] => None,
        [Misuse::WroteBeyond { offset, .. }] => Some(offset),
        ref other => panic!("{other:?}"),
    };
    for _ in 0..3 {
        // A transfer that fills its slot.
        let mapping = local.map(buffer(4096), Direction::FromDevice).unwrap();
        write(mapping.iova(), 0, 4096);
        mapping.unmap().unwrap();
        assert_eq!(beyond(), None);

        let mapping = local.map_reported(buffer(3000)).unwrap();
        write(mapping.iova(), 0, 2000);
        mapping.complete(2000).unwrap();
        assert_eq!(beyond(), None);

        let mapping = local.map_reported(buffer(3000)).unwrap();
        write(mapping.iova(), 0, 2007);
        mapping.complete(2000).unwrap();
        assert_eq!(beyond(), Some(2000));

        let mapping = local.map(buffer(3000), Direction::Bidirectional).unwrap();
        write(mapping.iova(), 3500, 1);
        mapping.unmap().unwrap();
        assert_eq!(beyond(), Some(3500));

        // The end of a long transfer.
        let mapping = local.map(buffer((1 << 20) + 5), Direction::FromDevice).unwrap();
        write(mapping.iova(), 0, (1 << 20) + 5);
        mapping.unmap().unwrap();
        assert_eq!(beyond(), None);
        let mapping = local.map(buffer((1 << 20) + 5), Direction::FromDevice).unwrap();
        write(mapping.iova(), 1 << 20, 6);
        mapping.unmap().unwrap();
        assert_eq!(beyond(), Some((1 << 20) + 5));
    }
}

#[test]
fn a_dump_lists_pools_and_mappings() {
    let (domain, _, _) = domain(|builder| builder.bounce(Bounce::Below(8192)));
    let bounced = domain.map(buffer(4096), Direction::FromDevice).unwrap();
    let direct = domain.map(buffer(65_536), Direction::ToDevice).unwrap();
    let dump = domain.dump();
    assert_eq!((dump.backend, dump.bounce), ("soft", Bounce::Below(8192)));
    let [pool] = dump.pools[..] else { panic!("{:?}", dump.pools) };
    assert_eq!((pool.slot_bytes, pool.direction), (4096, Direction::FromDevice));
    assert_eq!((pool.chunks, pool.slots, pool.free_slots), (1, 512, 511));
    assert_eq!(dump.iovas.all_bytes - dump.iovas.free_bytes, (2 << 20) + 65_536);
    let mapped: Vec<_> = dump.mappings.iter().flatten().map(|made| made.iova).collect();
    assert_eq!(mapped.len(), 2);
    assert!(mapped.contains(&bounced.iova()) && mapped.contains(&direct.iova()));
    let text = dump.to_string();
    for part in ["backend soft", "below 8192 bytes", "2 maps (1 bounced)", "1 chunks, 512 slots"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    assert_eq!(text.matches("mapped  IOVA").count(), 2, "{text}");
}
