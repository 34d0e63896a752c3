//! Each command, and the client's reply to it.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use longshore_sys::event_fd;
use longshore_sys::memfd::{self, Backing};
use longshore_vfio_user::client::{Client, ClientError, NoDmaMemory};
use longshore_vfio_user::pci::{CONFIG_REGION, INTX_IRQ, MSIX_IRQ};
use longshore_vfio_user::wire::{
    DmaMap, DmaUnmap, Feature, IrqData, MigrationData, RegionWriteMulti, Request, SetIrqs,
    SmallWrite, SmallWrites, feature,
};
use longshore_vfio_user::{
    Capabilities, DisconnectReason, Errno, Listener, MigrationError, RegionDescription, Server,
};

use crate::rig::{self, BAR_BYTES, REFUSES, Rig, Shared};

fn errno<T: std::fmt::Debug>(done: Result<T, ClientError>) -> u32 {
    match done {
        Err(ClientError::Refused(errno)) => errno.raw(),
        other => panic!("{other:?}"),
    }
}

fn memory(len_bytes: u64) -> OwnedFd {
    let file = memfd::create("vfio-user-test", Backing::Shmem).unwrap();
    memfd::set_len(&file, len_bytes).unwrap();
    file
}

#[test]
fn a_device_is_described_read_and_written() {
    let mut rig = Rig::new(NoDmaMemory);
    let info = rig.client.device_info().unwrap();
    assert_eq!((info.flags, info.regions, info.irqs), (3, 9, 5));
    let lengths: Vec<u64> =
        (0..9).map(|index| rig.client.region_info(index).unwrap().0.len_bytes).collect();
    assert_eq!(lengths, [BAR_BYTES, 0, 0, 0, 0, 0, 0, 256, 0]);
    assert_eq!(rig.client.irq_info(MSIX_IRQ).unwrap().count, 8);
    assert_eq!(rig.client.irq_info(INTX_IRQ).unwrap().flags, 7);
    assert_eq!(errno(rig.client.region_info(9)), 22);
    assert_eq!(errno(rig.client.irq_info(5)), 22);

    let mut id = [0; 4];
    rig.client.region_read(CONFIG_REGION, 0, &mut id).unwrap();
    assert_eq!(id, [0x34, 0x12, 0x78, 0x56]);
    rig.client.region_write(0, 0x40, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    let mut back = [0; 11];
    rig.client.region_read(0, 0x3f, &mut back).unwrap();
    assert_eq!(back, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    rig.client.reset().unwrap();
    assert_eq!(rig.noted().resets, 1);
    let io_fds = Request::DeviceGetRegionIoFds { argsz: 64, index: 0 };
    assert_eq!(errno(rig.client.request(&io_fds, &[])), Errno::EOPNOTSUPP.raw());
    let (served, noted) = rig.hang_up();
    assert_eq!(served.ended, DisconnectReason::ClosedByClient);
    assert_eq!((served.refused_count, served.maps_left_count), (3, 0));
    assert_eq!(noted.lock().unwrap().disconnects, 1);
}

#[test]
fn accesses_past_a_region_or_against_its_mode_are_refused() {
    let read_only = RegionDescription::new(64).read_only();
    let write_only = RegionDescription::new(64).write_only();
    let small = Capabilities::DEFAULT.with_transfer_bytes_max(4096);
    let mut rig = Rig::without_negotiation(NoDmaMemory, small, vec![read_only, write_only]);
    rig.client.negotiate(&Capabilities::DEFAULT).unwrap();
    assert_eq!(rig.client.server_capabilities().transfer_bytes_max, 4096);
    let mut read = |region, offset, count| {
        let request = Request::RegionRead { offset, region, count };
        rig.client.request(&request, &[])
    };
    let past = [(0, BAR_BYTES, 1), (0, BAR_BYTES - 1, 2), (0, u64::MAX, 1), (1, 0, 1), (99, 0, 1)];
    for (region, offset, count) in past {
        assert_eq!(errno(read(region, offset, count)), 22, "{region} {offset:#x} {count}");
    }
    assert!(read(0, BAR_BYTES, 0).is_ok() && read(0, 0, 4096).is_ok());
    for count in [4097, u32::MAX] {
        assert_eq!(errno(read(0, 0, count)), Errno::EMSGSIZE.raw());
    }
    assert_eq!(errno(read(10, 0, 1)), Errno::EPERM.raw());
    assert!(read(9, 63, 1).is_ok());
    assert_eq!(errno(rig.client.region_write(9, 0, &[0])), Errno::EPERM.raw());
    assert_eq!(errno(rig.client.region_write(0, BAR_BYTES - 3, &[0; 4])), 22);
    assert_eq!(errno(rig.client.region_write(0, 0, &[0; 4097])), Errno::EMSGSIZE.raw());
    // Longer than any message may be, so it is not even parsed.
    assert_eq!(errno(rig.client.region_write(0, 0, &[0; 200_000])), Errno::EMSGSIZE.raw());
    assert_eq!(errno(rig.client.region_write(0, REFUSES, &[0])), Errno::ENOSPC.raw());
    assert!(rig.client.region_write(10, 0, &[0; 64]).is_ok());
}

#[test]
fn several_writes_come_in_one_message() {
    let mut rig = Rig::new(NoDmaMemory);
    assert!(rig.client.server_capabilities().write_multiple);
    let write = |offset, count| SmallWrite { offset, region: 0, count, data: *b"ABCDEFGH" };
    let mut ask = |writes: &[SmallWrite]| {
        let payload = SmallWrites::encode(writes);
        let request = Request::parse(15, &payload).unwrap();
        let answer = rig.client.request(&request, &[])?;
        Ok(RegionWriteMulti::parse(&answer.payload).unwrap().done)
    };
    assert_eq!(ask(&[write(0, 8), write(8, 1), write(9, 0)]).unwrap(), 3);
    assert_eq!(ask(&[]).unwrap(), 0);
    assert_eq!(ask(&[write(16, 2), write(REFUSES, 1), write(24, 2)]).unwrap(), 1);
    assert_eq!(errno(ask(&[write(24, 9)])), 22);
    assert_eq!(errno(ask(&[write(BAR_BYTES, 1)])), 22);
    assert_eq!(&rig.noted().registers[..26], b"ABCDEFGHA\0\0\0\0\0\0\0AB\0\0\0\0\0\0\0\0");
}

#[test]
fn memory_is_mapped_and_taken_back() {
    let mut rig = Rig::new(NoDmaMemory);
    let file = memory(0x10_0000);
    let fd = Some((file.as_fd(), 0x3000));
    rig.client.dma_map(0x10_0000, 0x2000, fd, true).unwrap();
    rig.client.dma_map(0x10_2000, 0x1000, None, false).unwrap();
    // The end of the address space, and the page before the first map.
    rig.client.dma_map(u64::MAX - 0xfff, 0x1000, fd, true).unwrap();
    rig.client.dma_map(0xf_f000, 0x1000, fd, true).unwrap();
    for (iova, len_bytes) in [
        (0x10_0000, 0x2000),
        (0x10_1000, 0x1000),
        (0xf_f000, 0x5000),
        (0xf_e000, 0x2000),
        (u64::MAX - 0xfff, 0x1000),
        (0, 0x1_0000_0000),
    ] {
        assert_eq!(errno(rig.client.dma_map(iova, len_bytes, fd, true)), 17, "{iova:#x}");
    }
    for (iova, len_bytes, offset) in [
        (0x20_0000, 0, 0),
        (0x20_0001, 0x1000, 0),
        (0x20_0000, 0x1001, 0),
        (0x20_0000, 0x1000, 1),
        (u64::MAX - 0xfff, 0x2000, 0),
        (0x1000, u64::MAX, 0),
        (0x20_0000, u64::MAX - 0xfff, 0),
        (0x20_0000, 0x1000, u64::MAX - 0xfff),
        (0x20_0000, 0x1000, 1 << 63),
    ] {
        let fd = Some((file.as_fd(), offset));
        let mapped = rig.client.dma_map(iova, len_bytes, fd, true);
        assert_eq!(errno(mapped), 22, "{iova:#x} {len_bytes:#x} {offset:#x}");
    }
    let (read, mmap, file_io) = (DmaMap::READ, DmaMap::BY_MMAP, DmaMap::BY_FILE_IO);
    for (flags, has_file) in [
        (0, true),
        (read | 1 << 4, true),
        (read | mmap, false),
        (read | file_io, false),
        (read | mmap | file_io, true),
        (mmap, true),
        (u32::MAX, true),
    ] {
        let map = DmaMap { flags, offset: 0, iova: 0x20_0000, len_bytes: 0x1000 };
        let files = if has_file { vec![file.as_fd()] } else { vec![] };
        let mapped = rig.client.request(&Request::DmaMap(map), &files);
        assert_eq!(errno(mapped), 22, "{flags:#x} {has_file}");
    }
    // A map that the target refuses leaves nothing behind.
    rig.noted().refuse_next_map = Some(Errno::ENOMEM);
    assert_eq!(errno(rig.client.dma_map(0x20_0000, 0x1000, fd, true)), 12);
    assert_eq!(rig.noted().mapped.len(), 4);
    rig.client.dma_map(0x20_0000, 0x1000, fd, true).unwrap();

    // Only a whole map can be unmapped.
    for (iova, len_bytes) in [(0x10_0000, 0x1000), (0x10_1000, 0x1000), (0, 0), (0x30_0000, 1)] {
        assert_eq!(errno(rig.client.dma_unmap(iova, len_bytes)), 2, "{iova:#x}");
    }
    rig.noted().refuse_next_unmap = Some(Errno::EIO);
    assert_eq!(errno(rig.client.dma_unmap(0x10_0000, 0x2000)), 5);
    rig.client.dma_unmap(0x10_0000, 0x2000).unwrap();
    assert_eq!(errno(rig.client.dma_unmap(0x10_0000, 0x2000)), 2);
    let mut all = DmaUnmap { argsz: 24, flags: DmaUnmap::ALL, iova: 0, len_bytes: 1 };
    assert_eq!(errno(rig.client.request(&Request::DmaUnmap(all), &[])), 22);
    (all.len_bytes, all.flags) = (0, 1);
    assert_eq!(errno(rig.client.request(&Request::DmaUnmap(all), &[])), 22);
    all.flags = DmaUnmap::ALL;
    assert_eq!(rig.client.request(&Request::DmaUnmap(all), &[]).unwrap().payload, all.encode());
    assert!(rig.noted().mapped.is_empty() && rig.noted().files.is_empty());
}

#[test]
fn maps_beyond_the_negotiated_number_are_refused() {
    let limits = Capabilities::DEFAULT.with_dma_maps_max(3).with_page_sizes(0x1_0000);
    let mut rig = Rig::without_negotiation(NoDmaMemory, limits, Vec::new());
    let proposed = Capabilities::DEFAULT.with_page_sizes(0x1_1000);
    rig.client.negotiate(&proposed).unwrap();
    assert_eq!(rig.client.server_capabilities().page_sizes, 0x1_0000);
    assert_eq!(errno(rig.client.dma_map(0x1000, 0x1_0000, None, true)), 22);
    for at in 0..3 {
        rig.client.dma_map(at << 20, 0x1_0000, None, true).unwrap();
    }
    assert_eq!(errno(rig.client.dma_map(3 << 20, 0x1_0000, None, true)), 28);
    rig.client.dma_unmap(0, 0x1_0000).unwrap();
    rig.client.dma_map(3 << 20, 0x1_0000, None, true).unwrap();
}

#[test]
fn interrupts_are_signalled_by_eventfds() {
    let mut rig = Rig::new(NoDmaMemory);
    let irqs = rig.link().interrupts().clone();
    assert_eq!(irqs.raise(MSIX_IRQ, 3), Ok(false), "no eventfd is attached yet");
    let events: Vec<OwnedFd> = (0..8).map(|_| event_fd::create().unwrap()).collect();
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    rig.client.set_irq_events(MSIX_IRQ, 2, &fds[2..5]).unwrap();
    assert_eq!(irqs.raise(MSIX_IRQ, 3), Ok(true));
    assert_eq!(irqs.raise(MSIX_IRQ, 1), Ok(false));
    assert_eq!(irqs.raise(MSIX_IRQ, 8), Err(Errno::EINVAL));
    assert_eq!(irqs.raise(9, 0), Err(Errno::EINVAL));
    let told = || events.iter().map(|event| event_fd::drain(event).unwrap()).collect::<Vec<_>>();
    assert_eq!(told(), [0, 0, 0, 1, 0, 0, 0, 0]);
    let mut set = |action, index, start, count, data| {
        rig.client
            .request(&Request::DeviceSetIrqs(SetIrqs { action, index, start, count, data }), &[])
    };
    // The client raises interrupts itself, all or some.
    let trigger = SetIrqs::TRIGGER;
    set(trigger, MSIX_IRQ, 1, 4, IrqData::Bools(&[1, 1, 0, 1])).unwrap();
    assert_eq!(told(), [0, 0, 1, 0, 1, 0, 0, 0]);
    set(trigger, MSIX_IRQ, 0, 8, IrqData::None).unwrap();
    assert_eq!(told(), [0, 0, 1, 1, 1, 0, 0, 0]);
    for (start, count) in [(0, 9), (8, 1), (u32::MAX, 2), (1, u32::MAX), (1, 0)] {
        assert_eq!(errno(set(trigger, MSIX_IRQ, start, count, IrqData::None)), 22);
    }
    assert_eq!(errno(set(SetIrqs::MASK, MSIX_IRQ, 0, 1, IrqData::None)), 22, "not maskable");
    assert_eq!(errno(set(trigger, 4, 0, 1, IrqData::None)), 22, "no interrupts of this kind");
    assert_eq!(errno(set(trigger, 5, 0, 1, IrqData::None)), 22, "no such kind");
    // Some are detached, then all.
    set(trigger, MSIX_IRQ, 3, 1, IrqData::EventFds).unwrap();
    assert_eq!(irqs.raise(MSIX_IRQ, 3), Ok(false));
    assert_eq!(irqs.raise(MSIX_IRQ, 4), Ok(true));
    set(trigger, MSIX_IRQ, 0, 0, IrqData::None).unwrap();
    assert_eq!(irqs.raise(MSIX_IRQ, 4), Ok(false));
}

#[test]
fn a_line_is_masked_when_it_is_raised() {
    let mut rig = Rig::new(NoDmaMemory);
    let irqs = rig.link().interrupts().clone();
    let event = event_fd::create().unwrap();
    rig.client.set_irq_events(INTX_IRQ, 0, &[event.as_fd()]).unwrap();
    let mut set = |action| {
        let set = SetIrqs { action, index: INTX_IRQ, start: 0, count: 1, data: IrqData::None };
        rig.client.request(&Request::DeviceSetIrqs(set), &[]).map(drop)
    };
    assert_eq!(irqs.raise(INTX_IRQ, 0), Ok(true));
    assert_eq!(irqs.raise(INTX_IRQ, 0), Ok(false), "masked until the client unmasks it");
    assert_eq!(event_fd::drain(&event).unwrap(), 1);
    set(SetIrqs::UNMASK).unwrap();
    assert_eq!(event_fd::drain(&event).unwrap(), 1, "raised while it was masked");
    set(SetIrqs::UNMASK).unwrap();
    assert_eq!(event_fd::drain(&event).unwrap(), 0);
    set(SetIrqs::MASK).unwrap();
    assert_eq!(irqs.raise(INTX_IRQ, 0), Ok(false));
    set(SetIrqs::UNMASK).unwrap();
    assert_eq!(event_fd::drain(&event).unwrap(), 1);
    // Eventfds that report masking are not supported.
    let data = IrqData::EventFds;
    let set = SetIrqs { action: SetIrqs::UNMASK, index: INTX_IRQ, start: 0, count: 1, data };
    let told = rig.client.request(&Request::DeviceSetIrqs(set), &[event.as_fd()]);
    assert_eq!(errno(told), Errno::EOPNOTSUPP.raw());
}

/// Requests a feature; returns the data of the reply.
fn ask_feature(client: &mut Client, flags: u32, data: &[u8]) -> Result<Vec<u8>, ClientError> {
    let argsz = 8 + 4096;
    let answer = client.request(&Request::DeviceFeature(Feature { argsz, flags, data }), &[])?;
    Ok(answer.payload[8..].to_vec())
}

#[test]
fn a_device_is_migrated_through_its_states() {
    let mut rig = Rig::new(NoDmaMemory);
    rig.noted().state = (0..=99).collect();
    let go = |client: &mut Client, state: u32| {
        let data = [state.to_ne_bytes(), [0; 4]].concat();
        ask_feature(client, feature::MIGRATION_STATE | Feature::SET, &data)
    };
    let state = |client: &mut Client| {
        ask_feature(client, feature::MIGRATION_STATE | Feature::GET, &[]).unwrap()[0]
    };
    let client = &mut rig.client;
    let flags = ask_feature(client, feature::MIGRATION | Feature::GET, &[]).unwrap();
    assert_eq!(flags, 0b101_u64.to_ne_bytes());
    assert_eq!(state(client), 2);
    let read = |client: &mut Client, size, argsz| {
        let answer = client.request(&Request::MigrationDataRead { argsz, size }, &[])?;
        Ok(MigrationData::parse(&answer.payload).unwrap().data.to_vec())
    };
    assert_eq!(errno(read(client, 10, 18)), 22, "the device runs");
    go(client, 3).unwrap();
    assert_eq!(state(client), 3);
    assert_eq!(errno(read(client, 60, 67)), 22, "no room for the reply");
    assert_eq!(errno(read(client, u32::MAX, u32::MAX)), Errno::EMSGSIZE.raw());
    assert_eq!(read(client, 60, 68).unwrap(), (0..60).collect::<Vec<u8>>());
    assert_eq!(read(client, 60, 68).unwrap(), (60..100).collect::<Vec<u8>>());
    assert_eq!(errno(go(client, 6)), 22, "not back to pre-copy");
    for nonsense in [0, 5, 7, u32::MAX] {
        assert_eq!(errno(go(client, nonsense)), 22);
    }
    let write = Request::MigrationDataWrite { data: b"state" };
    assert_eq!(errno(client.request(&write, &[])), 22, "not resuming");
    go(client, 4).unwrap();
    assert!(client.request(&write, &[]).is_ok());
    go(client, 2).unwrap();
    let passed = [
        "Running to Stop",
        "Stop to StopCopy",
        "StopCopy to Stop",
        "Stop to Resuming",
        "Resuming to Stop",
        "Stop to Running",
    ];
    assert_eq!(rig.noted().log, passed);
    assert!(rig.noted().state.ends_with(b"state"));
    // A device that fails halfway stays in the state that it reached; a broken one needs a reset.
    let failed = MigrationError { errno: Errno::EIO, is_broken: true };
    rig.noted().refuse_state = Some(failed);
    assert_eq!(errno(go(&mut rig.client, 1)), 5);
    assert_eq!(state(&mut rig.client), 0);
    assert_eq!(errno(go(&mut rig.client, 2)), 22);
    rig.client.reset().unwrap();
    assert_eq!(state(&mut rig.client), 2);
    go(&mut rig.client, 6).unwrap();
    assert_eq!(read(&mut rig.client, 2, 10).unwrap(), [0, 1]);
}

#[test]
fn writes_of_the_device_are_logged() {
    let mut rig = Rig::new(NoDmaMemory);
    let words = |words: &[u64]| words.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<u8>>();
    let report = |client: &mut Client, range: [u64; 3], argsz| {
        let flags = feature::DMA_LOGGING_REPORT | Feature::GET;
        let data = words(&range);
        let asked = Feature { argsz, flags, data: &data };
        client.request(&Request::DeviceFeature(asked), &[]).map(|answer| answer.payload)
    };
    let (start, stop) =
        (feature::DMA_LOGGING_START | Feature::SET, feature::DMA_LOGGING_STOP | Feature::SET);
    let client = &mut rig.client;
    assert_eq!(errno(report(client, [0, 4096, 4096], 4096)), 22, "the log is off");
    assert_eq!(errno(ask_feature(client, stop, &[])), 22);
    let ranges = words(&[512, 2, 0x1000, 0x2000, 0x8000, 0x1000]);
    for wrong in [
        words(&[0, 0]),
        words(&[3000, 0]),
        words(&[4096, 3, 0x1000, 0x2000]),
        words(&[4096]),
        words(&[4096, 1, u64::MAX, 2]),
        words(&[4096, 1, 0, 0]),
        words(&[4096, 0xffff_ffff]),
    ] {
        assert_eq!(errno(ask_feature(client, start, &wrong)), 22, "{wrong:?}");
    }
    let started = ask_feature(client, start, &ranges).unwrap();
    assert_eq!(started[..8], 4096_u64.to_ne_bytes(), "the page size of the log");
    assert_eq!(started[8..], ranges[8..]);
    assert_eq!(errno(ask_feature(client, start, &ranges)), 22, "the log is on");
    let answer = report(client, [0x1000, 65 * 4096, 4096], 4096).unwrap();
    assert_eq!(answer[8..], words(&[0x1000, 65 * 4096, 4096, 0b101, 0]));
    // Without room for the reply, the client gets the length that is needed, and no pages are lost.
    let short = report(client, [0x1000, 65 * 4096, 4096], 47).unwrap();
    assert_eq!((short.len(), short[0]), (8, 48));
    for wrong in [[0, 0, 4096], [u64::MAX, 2, 4096], [0, 4096, 0], [0, 4096, 5000]] {
        assert_eq!(errno(report(client, wrong, 4096)), 22, "{wrong:x?}");
    }
    let huge = report(client, [0, u64::MAX, 1], 4096);
    assert_eq!(errno(huge), Errno::EMSGSIZE.raw());
    ask_feature(client, stop, &[]).unwrap();
    ask_feature(client, start, &words(&[4096, 0])).unwrap();
    let (_, noted) = rig.hang_up();
    let log = noted.lock().unwrap().log.clone();
    assert_eq!(log.len(), 4, "{log:?}");
    assert_eq!(log[3], "stop", "the client is gone");
}

#[test]
fn features_are_probed_before_they_are_used() {
    let mut rig = Rig::new(NoDmaMemory);
    let mut ask = |flags| ask_feature(&mut rig.client, flags, &[]);
    let probe = Feature::PROBE;
    for (number, there_is) in [
        (feature::MIGRATION, Feature::GET),
        (feature::MIGRATION_STATE, Feature::GET | Feature::SET),
        (feature::DMA_LOGGING_START, Feature::SET),
        (feature::DMA_LOGGING_STOP, Feature::SET),
        (feature::DMA_LOGGING_REPORT, Feature::GET),
    ] {
        assert!(ask(number | probe | there_is).is_ok() && ask(number | probe).is_ok());
        let more = Feature::GET | Feature::SET;
        assert_eq!(ask(number | probe | more).is_ok(), there_is == more, "{number}");
        assert_eq!(errno(ask(number)), 22, "no action");
        assert_eq!(errno(ask(number | more)), 22);
        assert_eq!(errno(ask(number | Feature::GET | 1 << 19)), 22);
    }
    for unknown in [0, 3, 5, 9, 0xffff] {
        assert_eq!(errno(ask(unknown | probe)), Errno::ENOTTY.raw());
        assert_eq!(errno(ask(unknown | Feature::GET)), Errno::ENOTTY.raw());
    }
}

#[test]
fn the_next_client_gets_the_same_device_and_no_memory_of_the_last_client() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let noted = Shared::default();
    let mut server = Server::new(rig::device(&noted, Vec::new()), rig::dma(&noted)).unwrap();
    let listener = Listener::bind(&path).unwrap();
    let in_use = Listener::bind(&path).unwrap_err();
    assert_eq!(in_use.kind(), std::io::ErrorKind::AddrInUse);
    let stop = server.stop_handle();
    let thread = std::thread::spawn(move || {
        let mut all = Vec::new();
        server.serve_all(&listener, |served| all.push(served.clone())).unwrap();
        all
    });
    let file = memory(0x10_0000);
    let event = event_fd::create().unwrap();
    for round in 0_u8..5 {
        let mut client = Client::connect(&path, NoDmaMemory).unwrap();
        client.dma_map(0x1000, 0x1000, Some((file.as_fd(), 0)), true).unwrap();
        client.dma_map(0x2000, 0x1000, None, true).unwrap();
        client.set_irq_events(MSIX_IRQ, 0, &[event.as_fd()]).unwrap();
        let mut register = [0];
        client.region_read(0, 0, &mut register).unwrap();
        assert_eq!(register, [round], "the device's state stays");
        client.region_write(0, 0, &[round + 1]).unwrap();
    }
    // One more client, which is served until the server is stopped.
    let mut client = Client::connect(&path, NoDmaMemory).unwrap();
    client.dma_map(0x1000, 0x1000, Some((file.as_fd(), 0)), true).unwrap();
    let held = noted.lock().unwrap().link.clone().unwrap();
    assert_eq!(held.interrupts().raise(MSIX_IRQ, 0), Ok(false), "an earlier client attached it");
    assert_eq!(event_fd::drain(&event).unwrap(), 0);
    stop.stop();
    let mut all = thread.join().unwrap();
    // The second bind connected, to see if a server listens.
    all.retain(|served| served.messages_count > 0);
    assert_eq!(all.len(), 6);
    assert!(
        all[..5].iter().all(|served| served.ended == DisconnectReason::ClosedByClient),
        "{all:?}"
    );
    assert_eq!(all[5].ended, DisconnectReason::Stopped);
    let noted = noted.lock().unwrap();
    assert!(noted.mapped.is_empty() && noted.files.is_empty());
    assert_eq!((noted.connects, noted.disconnects), (6, 6));
    assert!(!path.exists(), "the listener removes its name");
    assert!(matches!(client.device_info(), Err(ClientError::Closed)));
    // The link is closed even if a thread of the device still holds it.
    assert!(!held.is_connected());
}

#[test]
fn a_name_without_a_listener_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&path).unwrap();
    assert!(UnixStream::connect(&path).is_ok());
    // A file that replaced the listener's socket is not removed.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file").unwrap();
    drop(listener);
    let mut text = String::new();
    File::open(&path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "a file");
    assert!(Listener::bind(&path).is_err(), "a file is not taken over");
}

#[test]
fn an_idle_server_is_stopped_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&dir.path().join("socket")).unwrap();
    let noted = Shared::default();
    let mut server = Server::new(rig::device(&noted, Vec::new()), rig::dma(&noted)).unwrap();
    let stop = server.stop_handle();
    let thread = std::thread::spawn(move || server.serve_all(&listener, |_| ()));
    std::thread::sleep(Duration::from_millis(10));
    stop.stop();
    thread.join().unwrap().unwrap();
    assert_eq!(noted.lock().unwrap().connects, 0);
}
