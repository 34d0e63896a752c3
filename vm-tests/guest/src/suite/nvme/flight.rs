//! Commands that are in flight at the end: their memory is unmapped only after the controller has given
//! them up, and the IOMMU reports no stray access.

use std::time::Duration;

use longshore_domain::{Bounce, Direction, Domain, Error as DomainError, Local, Mapping};
use longshore_heap::{Buffer, Heap};
use longshore_mem::Iova;
use longshore_nvme::{
    Controller, Error, Interface, Namespace, Opcode, Options, PciDevice, Queue, Segment,
};
use longshore_vm_tests::fixture;

use super::rig::{self, KernelLog};
use crate::outcome::{Passed as Outcome, TestResult, ensure};

const SLOW: &str = fixture::DRIVEN_SLOW;
const DEPTH: u16 = 8;
/// So short that all commands take one second, because QEMU waits for its disk when they are cancelled.
const LEN_BYTES: u64 = fixture::DRIVEN_SLOW_BYTES_PER_SECOND / DEPTH as u64;

type Held<'l, 'd> = Mapping<'l, Buffer, Local<'d>>;

/// Submits as many reads of the slow disk as possible; half of them are bounced.
fn fill<'l, 'd>(
    domain: &Domain,
    local: &'l Local<'d>,
    queue: &mut Queue<'_, 'd, PciDevice, Held<'l, 'd>>,
    namespace: &Namespace,
    len_bytes: u64,
) -> rig::Result<()> {
    for index in 0..DEPTH {
        domain.set_bounce(if index % 2 == 0 { Bounce::Never } else { Bounce::Always });
        let buffer = Heap::Memfd.allocate(len_bytes)?;
        let mapping = local.map_reported(buffer).map_err(DomainError::from)?;
        let segment = Segment { iova: mapping.iova(), len_bytes };
        let lba = u64::from(index) * 128;
        queue.submit(Opcode::Read, namespace, lba, &[segment], mapping).map_err(Error::from)?;
    }
    queue.ring();
    std::thread::sleep(Duration::from_millis(30));
    Ok(())
}

pub(super) fn reset(interface: Interface) -> TestResult {
    let mut log = KernelLog::from_now()?;
    rig::drive(interface, SLOW, Options::default(), |domain, controller, namespace| {
        for _ in 0..2 {
            let local = domain.local();
            let mut queue = controller.queue(DEPTH)?;
            fill(domain, &local, &mut queue, &namespace, LEN_BYTES)?;
            ensure!(queue.in_flight() == DEPTH, "{queue:?}");
            let mut idle = controller.queue::<()>(1)?;
            controller.stop()?;
            ensure!(!controller.is_running(), "the controller still runs");
            // Commands cannot be executed, and none completes.
            submit(&mut idle, &namespace)?;
            let stopped = idle.wait().err().ok_or("a command ended")?;
            ensure!(matches!(stopped, Error::Stopped), "{stopped}");
            ensure!(
                matches!(controller.namespace(1), Err(Error::Stopped)),
                "the controller answers"
            );
            drop(idle);
            let held: Vec<_> = queue.close()?.collect();
            ensure!(held.len() == usize::from(DEPTH), "{} mappings", held.len());
            for mapping in held {
                let buffer = mapping.unmap().map_err(DomainError::from)?;
                ensure!(buffer.len() == LEN_BYTES, "another buffer was returned");
            }
            drop(local);
            controller.restart()?;
            reads(domain, controller, &namespace)?;
        }
        Ok(())
    })?;
    let faults = log.faults()?;
    ensure!(faults.is_empty(), "{faults:?}");
    Ok(Outcome::Yes)
}

/// Closes a queue with commands in flight; the controller continues with other queues.
pub(super) fn closed(interface: Interface) -> TestResult {
    let mut log = KernelLog::from_now()?;
    rig::drive(interface, SLOW, Options::default(), |domain, controller, namespace| {
        let queues = controller.queues_left();
        for turn in 0..2 {
            let local = domain.local();
            let mut queue = controller.queue(DEPTH)?;
            fill(domain, &local, &mut queue, &namespace, LEN_BYTES)?;
            if turn == 0 {
                drop(queue);
            } else {
                let held = queue.close()?.count();
                ensure!(held == usize::from(DEPTH), "{held} mappings");
            }
            ensure!(controller.is_running(), "it was stopped");
            ensure!(controller.queues_left() == queues, "a queue was lost");
            reads(domain, controller, &namespace)?;
        }
        Ok(())
    })?;
    let faults = log.faults()?;
    ensure!(faults.is_empty(), "{faults:?}");
    Ok(Outcome::Yes)
}

/// Drops everything, in each order that compiles. Then a stray read shows that the log would have a
/// fault.
pub(super) fn dropped(interface: Interface) -> TestResult {
    let mut log = KernelLog::from_now()?;
    for stops in [false, true] {
        rig::drive(interface, SLOW, Options::default(), |domain, controller, namespace| {
            let local = domain.local();
            let mut queue = controller.queue(DEPTH)?;
            fill(domain, &local, &mut queue, &namespace, LEN_BYTES)?;
            if stops {
                controller.stop()?;
            }
            Ok(())
        })?;
    }
    let faults = log.faults()?;
    ensure!(faults.is_empty(), "{faults:?}");
    rig::drive(interface, fixture::DRIVEN_RAW, Options::default(), |_, controller, namespace| {
        let mut queue = controller.queue(1)?;
        // Nothing is mapped at this address, and no other device is there.
        let segment = Segment { iova: Iova::new(0x1234_5000), len_bytes: 4096 };
        queue.submit(Opcode::Read, &namespace, 0, &[segment], ())?;
        println!("a stray read: {:?}", queue.wait()?.result);
        Ok(())
    })?;
    let faults = log.faults()?;
    ensure!(!faults.is_empty(), "a stray access was not in the log");
    println!("{faults:?}");
    Ok(Outcome::Yes)
}

/// Reads that do not end in time return an error, and nothing is lost.
pub(super) fn timed_out(interface: Interface) -> TestResult {
    let options = Options::default().io_timeout(Duration::from_millis(100));
    rig::drive(interface, SLOW, options, |domain, controller, namespace| {
        let local = domain.local();
        let mut queue = controller.queue(DEPTH)?;
        // A quarter of a second each.
        fill(domain, &local, &mut queue, &namespace, 2 * LEN_BYTES)?;
        let late = loop {
            match queue.wait() {
                Ok(done) => done.result?,
                Err(error) => break error,
            }
        };
        let text = late.to_string();
        ensure!(matches!(late, Error::TimedOut { .. }), "{text}");
        ensure!(text.contains("Read of ") && text.contains("100ms"), "{text}");
        let held = queue.close()?.count();
        ensure!(held > 0, "nothing was in flight");
        Ok(Outcome::Yes)
    })
}

/// Submits a command whose result is ignored.
fn submit(queue: &mut Queue<'_, '_, PciDevice, ()>, namespace: &Namespace) -> rig::Result<()> {
    Ok(queue.submit_flush(namespace, ())?)
}

/// Checks that reading works.
fn reads(domain: &Domain, controller: &Controller<'_>, namespace: &Namespace) -> rig::Result<()> {
    domain.set_bounce(Bounce::Never);
    let buffer = Heap::Memfd.allocate(4096)?;
    let mapping = domain.map(buffer, Direction::FromDevice).map_err(DomainError::from)?;
    let mut queue = controller.queue(1)?;
    let segment = Segment { iova: mapping.iova(), len_bytes: 4096 };
    queue.submit(Opcode::Read, namespace, 9, &[segment], ())?;
    queue.wait()?.result?;
    queue.close()?.for_each(drop);
    let buffer = mapping.unmap().map_err(DomainError::from)?;
    rig::expect(fixture::DRIVEN_SEED, 9 * 512, &buffer.read()?)
}
