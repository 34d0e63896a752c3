//! Tests of the driver on a model of a controller in the same process. The driver's domain is a space, and
//! the model accesses it by IOVA through a session.

mod misbehaviour;
mod model;

use std::time::Duration;

use longshore_domain::backend::Soft;
use longshore_domain::{Direction, Domain, Error as DomainError};
use longshore_heap::{Buffer, Heap};
use longshore_nvme::{
    Controller, DataPointerFormat, DiskRange, Error, Extent, ExtentList, Opcode, Options, Segment,
    load, store,
};

use self::model::{Model, Traits};

const DISK_BYTES: usize = 4 << 20;

/// Returns the content of the disk. All words differ.
fn content() -> Vec<u8> {
    (0..DISK_BYTES as u64 / 8).flat_map(|word| (word * 0x9e37_79b9).to_le_bytes()).collect()
}

fn options() -> Options {
    let timeout = Duration::from_millis(200);
    Options::default().admin_timeout(timeout).io_timeout(timeout)
}

/// Runs `work` with a model and its driver. Panics if memory stays mapped, or an access by the model
/// failed.
fn with_model(
    traits: Traits,
    options: Options,
    work: impl for<'m, 'd> FnOnce(&'m Model, &'d Domain, &mut Controller<'d, &'m Model>),
) {
    let soft = Soft::new().unwrap();
    let model = &Model::new(soft.space().session(), traits, content());
    let domain = Domain::builder(soft).free_after(None).build();
    let mut controller = Controller::new(&domain, model, options).unwrap();
    work(model, &domain, &mut controller);
    drop(controller);
    domain.shrink(Duration::ZERO).unwrap();
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes(), "something is mapped");
    assert_eq!((model.strays(), domain.counters().leaked), (0, 0));
}

fn buffer(len_bytes: u64) -> Buffer {
    Heap::Memfd.allocate(len_bytes).unwrap()
}

#[test]
fn reads_return_the_content_of_the_disk() {
    for (stride_log2, block_log2, max_transfer_log2_pages, sgl) in
        [(0, 9, 3, 1), (2, 12, 0, 0), (7, 9, 1, 2), (0, 13, 5, 1)]
    {
        for format in [DataPointerFormat::Prp, DataPointerFormat::Shortest] {
            let ready_timeout = 1;
            let traits =
                Traits { stride_log2, block_log2, max_transfer_log2_pages, sgl, ready_timeout };
            let options = options().format(format);
            with_model(traits, options, |model, _, controller| {
                let namespace = controller.namespace(1).unwrap();
                assert_eq!(namespace.len(), DISK_BYTES as u64);
                let range = DiskRange { disk_offset: 1 << 13, offset: 0, len_bytes: 3 << 20 };
                let read = load(controller, &namespace, 7, &[range], buffer(3 << 20), |_| {});
                let expected = &model.disk()[1 << 13..][..3 << 20];
                assert!(*read.unwrap().read().unwrap() == *expected, "{stride_log2} {block_log2}");
            });
        }
    }
}

#[test]
fn writes_change_the_content_of_the_disk() {
    with_model(Traits::default(), options(), |model, _, controller| {
        let namespace = controller.namespace(1).unwrap();
        let mut source = buffer(100 << 10);
        source.write().unwrap().fill(0x5a);
        let range = DiskRange { disk_offset: 512, offset: 0, len_bytes: 100 << 10 };
        store(controller, &namespace, 3, &[range], source, |_| {}).unwrap();
        let mut expected = content();
        expected[512..512 + (100 << 10)].fill(0x5a);
        assert!(model.disk() == expected);
        assert_eq!(model.flushes(), 1);
    });
}

#[test]
fn a_files_extents_become_the_file() {
    let extent =
        |file_offset, disk_offset, len_bytes| Extent { file_offset, disk_offset, len_bytes };
    let list = ExtentList {
        file: "file".into(),
        disk: "disk".into(),
        len_bytes: 50_000,
        extents: vec![
            extent(0, 1 << 20, 8192),
            extent(8192, 4096, 4096),
            // A hole, and a last block that is not whole.
            extent(40_960, 1 << 21, 12_288),
        ],
    };
    with_model(Traits::default(), options(), |_, _, controller| {
        let namespace = controller.namespace(1).unwrap();
        let memory = buffer(list.memory_bytes(&namespace).unwrap());
        let ranges = list.disk_ranges(&namespace).unwrap();
        let file = load(controller, &namespace, 4, &ranges, memory, |_| {}).unwrap();
        let (bytes, disk) = (file.read().unwrap(), content());
        assert!(bytes[..8192] == disk[1 << 20..][..8192]);
        assert!(bytes[8192..12_288] == disk[4096..8192]);
        assert!(bytes[12_288..40_960].iter().all(|byte| *byte == 0));
        assert!(bytes[40_960..50_000] == disk[1 << 21..][..50_000 - 40_960]);
    });
}

#[test]
fn doorbells_are_written_once_for_all_commands() {
    with_model(Traits::default(), options(), |model, domain, controller| {
        let namespace = controller.namespace(1).unwrap();
        let mapping = domain.map(buffer(4096), Direction::FromDevice).unwrap();
        let segment = Segment { iova: mapping.iova(), len_bytes: 4096 };
        let mut queue = controller.queue(16).unwrap();
        assert_eq!(model.doorbells(), 0);
        for round in 0..20 {
            for lba in 0..16 {
                queue.submit(Opcode::Read, &namespace, lba, &[segment], lba).unwrap();
            }
            let full = queue.submit(Opcode::Read, &namespace, 0, &[segment], 99).unwrap_err();
            assert!(matches!(full.error, Error::QueueFull { depth: 16 }) && full.payload == 99);
            queue.ring();
            // One write for the completions of the previous round, and one for the submissions.
            assert_eq!(model.doorbells(), if round == 0 { 1 } else { 2 });
            let ended: Vec<_> = std::iter::from_fn(|| queue.take().unwrap()).collect();
            assert!(ended.iter().all(|done| done.result.is_ok()));
            assert_eq!(
                ended.iter().map(|done| done.payload).collect::<Vec<_>>(),
                [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
            );
        }
    });
}

#[test]
fn segments_of_many_mappings_are_one_transfer() {
    for format in [DataPointerFormat::Prp, DataPointerFormat::Sgl] {
        let options = options().format(format);
        with_model(Traits::default(), options, |_, domain, controller| {
            let namespace = controller.namespace(1).unwrap();
            let map = |len| domain.map(buffer(len), Direction::FromDevice).unwrap();
            let mappings = [map(8192), map(4096), map(12_288)];
            let segments: Vec<_> = mappings
                .iter()
                .map(|mapping| Segment { iova: mapping.iova(), len_bytes: mapping.len() })
                .collect();
            let mut queue = controller.queue(1).unwrap();
            queue.submit(Opcode::Read, &namespace, 40, &segments, ()).unwrap();
            queue.wait().unwrap().result.unwrap();
            let disk = content();
            let mut at = 40 * 512;
            for mapping in mappings {
                let bytes = mapping.unmap().map_err(DomainError::from).unwrap();
                let bytes = bytes.read().unwrap();
                assert!(*bytes == disk[at..at + bytes.len()], "{format:?}");
                at += bytes.len();
            }
        });
    }
}

#[test]
fn the_error_of_a_failed_command_names_the_command() {
    with_model(Traits::default(), options(), |_, domain, controller| {
        let namespace = controller.namespace(1).unwrap();
        let mapping = domain.map(buffer(4096), Direction::FromDevice).unwrap();
        let segment = Segment { iova: mapping.iova(), len_bytes: 4096 };
        let mut queue = controller.queue(1).unwrap();
        queue.submit(Opcode::Read, &namespace, namespace.blocks - 7, &[segment], ()).unwrap();
        let error = queue.wait().unwrap().result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "Read of 8 blocks from LBA 0x1ff9 of namespace 1: LBA Out of Range (status code type \
             0x0, code 0x80)"
        );
        assert!(matches!(queue.wait().unwrap_err(), Error::Idle));
        let missing = controller.namespace(2).unwrap_err();
        assert!(missing.to_string().contains("namespace 2"), "{missing}");
    });
}

#[test]
fn dropping_a_controller_shuts_it_down_and_stops_it() {
    let soft = Soft::new().unwrap();
    let model = &Model::new(soft.space().session(), Traits::default(), content());
    let domain = Domain::builder(soft).build();
    let controller = Controller::new(&domain, model, options()).unwrap();
    assert!(model.is_enabled() && !model.was_shut_down());
    drop(controller);
    assert!(!model.is_enabled() && model.was_shut_down());
}
