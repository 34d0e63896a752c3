//! Tests of controllers that misbehave: memory is not unmapped while the controller may access it.

use std::time::Duration;

use longshore_domain::backend::Soft;
use longshore_domain::{Domain, Local, Mapping};
use longshore_heap::Buffer;
use longshore_nvme::{Controller, Error, Opcode, Queue, Segment};

use crate::model::{Model, Traits};
use crate::{buffer, content, options, with_model};

type Held<'l, 'd> = Mapping<'l, Buffer, Local<'d>>;

/// Submits three reads that do not end.
fn fill<'l, 'd>(
    local: &'l Local<'d>,
    queue: &mut Queue<'_, 'd, &Model, Held<'l, 'd>>,
    model: &Model,
) {
    model.faulty.holds_io.set(true);
    let namespace = queue.controller().namespace(1).unwrap();
    for lba in 0..3 {
        let mapping = local.map_reported(buffer(4096)).unwrap();
        let segment = Segment { iova: mapping.iova(), len_bytes: 4096 };
        queue.submit(Opcode::Read, &namespace, lba, &[segment], mapping).unwrap();
    }
    queue.ring();
}

#[test]
fn a_command_that_does_not_end_times_out_and_close_returns_its_memory() {
    with_model(Traits::default(), options(), |model, domain, controller| {
        let local = domain.local();
        let mut queue = controller.queue(4).unwrap();
        fill(&local, &mut queue, model);
        let late = queue.wait().unwrap_err();
        assert!(late.to_string().starts_with("Read of 8 blocks from LBA 0x"), "{late}");
        assert!(late.to_string().contains("did not end within 200ms"), "{late}");
        assert_eq!(queue.close().unwrap().count(), 3);
        // The controller has aborted the commands, so none is left to execute.
        assert_eq!(model.go_on(), 0);
        assert!(controller.is_running());
    });
}

#[test]
fn a_late_command_still_reaches_its_memory() {
    with_model(Traits::default(), options(), |model, domain, controller| {
        let local = domain.local();
        let mut queue = controller.queue(4).unwrap();
        fill(&local, &mut queue, model);
        assert!(matches!(queue.wait().unwrap_err(), Error::TimedOut { .. }));
        assert_eq!(model.go_on(), 3);
        for lba in 0..3 {
            let done = queue.wait().unwrap();
            done.result.unwrap();
            let buffer = done.payload.complete(4096).unwrap();
            assert!(*buffer.read().unwrap() == content()[lba * 512..][..4096]);
        }
    });
}

#[test]
fn a_controller_that_does_not_delete_a_queue_is_stopped() {
    with_model(Traits::default(), options(), |model, domain, controller| {
        let local = domain.local();
        let mut queue = controller.queue(4).unwrap();
        fill(&local, &mut queue, model);
        model.faulty.holds_admin.set(true);
        assert_eq!(queue.close().unwrap().count(), 3);
        assert!(!controller.is_running() && !model.is_enabled());
        let stopped = controller.namespace(1).unwrap_err();
        assert!(matches!(stopped, Error::Stopped), "{stopped}");
        model.faulty.holds_admin.set(false);
        model.faulty.holds_io.set(false);
        controller.restart().unwrap();
        assert_eq!(controller.namespace(1).unwrap().block_log2, 9);
    });
}

#[test]
fn a_controller_that_does_not_stop_is_reset_by_the_bus() {
    with_model(Traits::default(), options(), |model, domain, controller| {
        let local = domain.local();
        let mut queue = controller.queue(4).unwrap();
        fill(&local, &mut queue, model);
        model.faulty.does_not_stop.set(true);
        controller.stop().unwrap();
        assert_eq!(queue.close().unwrap().count(), 3);
        assert_eq!(model.go_on(), 0);
    });
}

/// The memory stays mapped, and is never used for anything else.
#[test]
fn memory_of_a_controller_that_does_not_stop_is_leaked() {
    let soft = Soft::new().unwrap();
    let model = &Model::new(soft.space().session(), Traits::default(), content());
    let domain = Domain::builder(soft).build();
    let controller = Controller::new(&domain, model, options()).unwrap();
    let local = domain.local();
    let mut queue = controller.queue(4).unwrap();
    fill(&local, &mut queue, model);
    model.faulty.does_not_stop.set(true);
    model.faulty.does_not_reset.set(true);
    model.faulty.holds_admin.set(true);
    let lost = queue.close().map(Iterator::count).unwrap_err();
    assert!(lost.to_string().contains("never freed"), "{lost}");
    assert!(matches!(controller.stop(), Err(Error::Lost(_))));
    let before = domain.iovas().free_bytes();
    // At least three buffers, three pages of the queue (rings and lists), and three of the admin queue.
    assert!(before <= domain.iovas().all_bytes() - 9 * 4096);
    assert_eq!(domain.counters().unmaps, 0);
    drop((local, controller));
    assert_eq!(domain.counters().unmaps, 0);
}

#[test]
fn rings_of_a_queue_that_was_lost_while_it_was_created_are_leaked() {
    let soft = Soft::new().unwrap();
    let model = &Model::new(soft.space().session(), Traits::default(), content());
    let domain = Domain::builder(soft).build();
    let controller = Controller::new(&domain, model, options()).unwrap();
    let before = domain.iovas().free_bytes();
    model.faulty.does_not_stop.set(true);
    model.faulty.does_not_reset.set(true);
    model.faulty.holds_admin.set(true);
    let lost = controller.queue::<()>(4).unwrap_err();
    assert!(matches!(lost, Error::Lost(_)), "{lost}");
    // The submission and the completion queue. The controller does not have the address of the lists.
    assert_eq!(domain.iovas().free_bytes(), before - 2 * 4096);
}

#[test]
fn a_fatal_status_and_a_missing_device_are_reported() {
    for is_gone in [false, true] {
        with_model(Traits::default(), options(), |model, domain, controller| {
            let local = domain.local();
            let mut queue = controller.queue(4).unwrap();
            fill(&local, &mut queue, model);
            model.faulty.is_fatal.set(!is_gone);
            model.faulty.is_gone.set(is_gone);
            let error = queue.wait().unwrap_err();
            assert!(
                matches!(error, Error::Fatal { .. }) && !is_gone
                    || matches!(error, Error::Gone) && is_gone,
                "{error}"
            );
            assert_eq!(queue.close().unwrap().count(), 3);
        });
    }
}

#[test]
fn a_controller_that_does_not_become_ready_leaves_nothing_mapped() {
    let soft = Soft::new().unwrap();
    let model = &Model::new(soft.space().session(), Traits::default(), content());
    let domain = Domain::builder(soft).build();
    model.faulty.is_fatal.set(true);
    let refused = Controller::new(&domain, model, options()).unwrap_err();
    assert!(refused.to_string().contains("fatal error"), "{refused}");
    model.faulty.is_fatal.set(false);
    model.faulty.holds_admin.set(true);
    let refused = Controller::new(&domain, model, options()).unwrap_err();
    assert!(refused.to_string().contains("Identify"), "{refused}");
    model.faulty.holds_admin.set(false);
    model.faulty.is_gone.set(true);
    let refused = Controller::new(&domain, model, options()).unwrap_err();
    assert!(matches!(refused, Error::Gone), "{refused}");
    domain.shrink(Duration::ZERO).unwrap();
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
    assert_eq!(model.strays(), 0);
}

#[test]
fn doorbells_beyond_the_registers_are_refused() {
    let soft = Soft::new().unwrap();
    let traits = Traits { stride_log2: 15, ..Traits::default() };
    let model = &Model::new(soft.space().session(), traits, content());
    let domain = Domain::builder(soft).build();
    let refused = Controller::new(&domain, model, options()).unwrap_err();
    assert!(refused.to_string().contains("CAP.DSTRD"), "{refused}");
    assert!(!model.is_enabled());
}
