//! The client's memory, accessed by messages while the client sends commands or does not answer.

use std::io::Write as _;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use longshore_mem::Iova;
use longshore_vfio_user::wire::{Command, DmaAccess, MessageKind, Request};
use longshore_vfio_user::{
    Capabilities, DisconnectReason, DmaError, DmaErrorKind, Errno, Link, MessageHeader,
};

use crate::rig::{READ_INLINE, Ram, Raw, Rig, serve_until};

const LONG: Duration = Duration::from_secs(20);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// Reads `len` bytes at `iova` on a thread, as a device does.
fn read_on_thread(
    link: &Link,
    iova: u64,
    len: usize,
) -> thread::JoinHandle<Result<Vec<u8>, DmaError>> {
    let link = link.clone();
    thread::spawn(move || {
        let mut bytes = vec![0; len];
        link.read(Iova::new(iova), &mut bytes).map(|()| bytes)
    })
}

#[test]
fn threads_read_and_write_memory_while_the_client_sends_commands() {
    let mut rig = Rig::new(Ram(pattern(64 << 10)));
    let link = rig.link();
    let threads: Vec<_> = (0..4_u64)
        .map(|index| {
            let link = link.clone();
            thread::spawn(move || {
                let (start, mut bytes) = (index * 4096, [0; 100]);
                for round in 0..50_u64 {
                    let at = start + round * 16;
                    link.read(Iova::new(at), &mut bytes[..16]).unwrap();
                    assert_eq!(bytes[..16], pattern(64 << 10)[at as usize..][..16]);
                    link.write(Iova::new(0x8000 + at), &bytes[..16]).unwrap();
                }
            })
        })
        .collect();
    let mut rounds = 0_u32;
    while threads.iter().any(|thread| !thread.is_finished()) {
        let mut back = [0; 4];
        rig.client.region_write(0, 0x20, &rounds.to_le_bytes()).unwrap();
        rig.client.region_read(0, 0x20, &mut back).unwrap();
        assert_eq!(u32::from_le_bytes(back), rounds);
        rounds += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let Ram(ram) = rig.client.memory();
    for index in 0..4 {
        let (from, to) = (index * 4096, 0x8000 + index * 4096);
        assert_eq!(ram[from..from + 800], ram[to..to + 800]);
    }
    let (served, _) = rig.hang_up();
    assert_eq!((served.refused_count, served.stray_replies_count), (0, 0));
    assert!(!link.is_connected());
    let gone = DmaError { done_bytes: 0, kind: DmaErrorKind::Disconnected };
    assert_eq!(link.read(Iova::new(0), &mut [0]), Err(gone));
}

#[test]
fn transfers_are_split_by_the_clients_limit() {
    let mut rig =
        Rig::without_negotiation(Ram(pattern(1 << 20)), Capabilities::DEFAULT, Vec::new());
    rig.client.negotiate(&Capabilities::DEFAULT.with_transfer_bytes_max(10_000)).unwrap();
    let link = rig.link();
    let reader = read_on_thread(&link, 3, 100_000);
    let (asked, bytes) = serve_until(&mut rig.client, reader);
    let bytes = bytes.unwrap();
    assert_eq!(asked, 10);
    assert_eq!(bytes, pattern(1 << 20)[3..100_003]);
    let writer = thread::spawn(move || link.write(Iova::new(500_001), &bytes));
    assert_eq!(serve_until(&mut rig.client, writer), (10, Ok(())));
    let Ram(ram) = rig.client.memory();
    assert_eq!(ram[3..100_003], ram[500_001..600_001]);
    // Past the end of the memory, the bytes before the end are read.
    let link = rig.link();
    let reader = read_on_thread(&link, (1 << 20) - 25_000, 40_000);
    let failed = serve_until(&mut rig.client, reader).1.unwrap_err();
    let kind = DmaErrorKind::Refused(Errno::EFAULT);
    assert_eq!(failed, DmaError { done_bytes: 20_000, kind });
    let wraps = link.read(Iova::new(u64::MAX), &mut [0; 2]).unwrap_err();
    assert_eq!(wraps, DmaError { done_bytes: 0, kind });
    assert_eq!(link.read(Iova::new(7), &mut []), Ok(()), "nothing to read, no message");
}

#[test]
fn a_device_may_read_within_a_command_and_later_commands_wait() {
    let mut raw = Raw::new(LONG);
    let iova = 0x1234_u64.to_le_bytes();
    raw.request(100, &Request::RegionWrite { offset: READ_INLINE, region: 0, data: &iova });
    for id in 0..20 {
        let data = [id as u8; 2];
        raw.request(200 + id, &Request::RegionWrite { offset: 0, region: 0, data: &data });
        raw.request(300 + id, &Request::RegionRead { offset: 0, region: 0, count: 2 });
    }
    let (asked, payload) = raw.receive();
    assert_eq!(
        (asked.kind(), asked.command),
        (Some(MessageKind::Command), Command::DmaRead.number())
    );
    let access = DmaAccess::parse(&payload).unwrap();
    assert_eq!((access.iova, access.count), (0x1234, 16));
    let reply = DmaAccess { data: b"sixteen bytes ok", ..access }.encode();
    raw.send(asked.reply(reply.len()), &reply);
    assert_eq!(raw.receive().0.id, 100);
    for id in 0..20 {
        assert_eq!(raw.receive().0.id, 200 + id);
        let (header, payload) = raw.receive();
        assert_eq!((header.id, &payload[16..]), (300 + id, &[id as u8; 2][..]));
    }
    assert_eq!(raw.noted.lock().unwrap().inline, Some(Ok(*b"sixteen bytes ok")));
}

#[test]
fn too_many_commands_during_a_read_fail_the_read_and_are_all_answered() {
    let mut raw = Raw::new(LONG);
    let iova = 0_u64.to_le_bytes();
    raw.request(0, &Request::RegionWrite { offset: READ_INLINE, region: 0, data: &iova });
    for id in 1..=150 {
        raw.request(id, &Request::RegionRead { offset: 0, region: 0, count: 1 });
    }
    let (asked, _) = raw.receive();
    assert_eq!(asked.command, Command::DmaRead.number());
    for id in 0..=150 {
        assert_eq!(raw.receive().0.id, id);
    }
    let failed = DmaError { done_bytes: 0, kind: DmaErrorKind::TooManyCommands };
    assert_eq!(raw.noted.lock().unwrap().inline, Some(Err(failed)));
    // A late reply is not a reply to any other command.
    raw.send(asked.reply(0), &[]);
    let served = raw.hang_up();
    assert_eq!((served.ended, served.stray_replies_count), (DisconnectReason::ClosedByClient, 0));
}

#[test]
fn posted_commands_are_done_and_not_answered() {
    let mut raw = Raw::new(LONG);
    let write = Request::RegionWrite { offset: 0, region: 0, data: &[7] }.encode();
    raw.send(MessageHeader::command_without_reply(1, Command::RegionWrite, write.len()), &write);
    let nonsense = MessageHeader::command_without_reply(2, Command::RegionWrite, 3);
    raw.send(nonsense, &[1, 2, 3]);
    raw.request(3, &Request::RegionRead { offset: 0, region: 0, count: 1 });
    let (header, payload) = raw.receive();
    assert_eq!((header.id, payload[16]), (3, 7));
    assert_eq!(raw.hang_up().refused_count, 1);
}

#[test]
fn replies_may_be_short_and_must_be_valid() {
    let mut raw = Raw::new(LONG);
    let link = raw.link.clone();
    let reader = read_on_thread(&link, 0, 30);
    for (at, len) in [(0_u64, 13), (13, 17)] {
        let (asked, payload) = raw.receive();
        let access = DmaAccess::parse(&payload).unwrap();
        assert_eq!((access.iova, access.count), (at, 30 - at));
        let data = &pattern(30)[at as usize..][..len];
        let reply = DmaAccess { count: len as u64, data, ..access }.encode();
        raw.send(asked.reply(reply.len()), &reply);
    }
    assert_eq!(reader.join().unwrap().unwrap(), pattern(30));

    let access = DmaAccess { iova: 0, count: 8, data: &[0; 8] };
    let wrong = [
        DmaAccess { count: 0, data: &[], ..access }.encode(),
        DmaAccess { count: 7, ..access }.encode(),
        DmaAccess { count: 9, data: &[0; 9], ..access }.encode(),
        DmaAccess { count: u64::MAX, ..access }.encode(),
        vec![0; 15],
        Vec::new(),
    ];
    let refused = |errno| DmaErrorKind::Refused(errno);
    for payload in wrong {
        let reader = read_on_thread(&link, 0, 8);
        let (asked, _) = raw.receive();
        raw.send(asked.reply(payload.len()), &payload);
        let failed = reader.join().unwrap().unwrap_err();
        assert_eq!(failed.kind, refused(Errno::EINVAL), "{payload:?}");
    }
    for (number, errno) in [(19, Errno::from_raw(19)), (0, Errno::EIO)] {
        let reader = read_on_thread(&link, 0, 8);
        let (asked, _) = raw.receive();
        raw.send(asked.error_reply(number), &[]);
        assert_eq!(reader.join().unwrap().unwrap_err().kind, refused(errno));
    }
    // A reply to another command.
    let reader = read_on_thread(&link, 0, 8);
    let (asked, _) = raw.receive();
    let other = MessageHeader::command(asked.id, Command::DmaWrite, 0).reply(16);
    raw.send(other, &[0; 16]);
    assert_eq!(reader.join().unwrap().unwrap_err().kind, refused(Errno::EINVAL));
    // A reply to no command.
    raw.send(MessageHeader::command(9999, Command::DmaRead, 0).reply(0), &[]);

    // Replies to writes may have no payload.
    for answer in [vec![], DmaAccess { data: &[], ..access }.encode()] {
        let link = link.clone();
        let writer = thread::spawn(move || link.write(Iova::new(0), &[1; 8]));
        let (asked, payload) = raw.receive();
        assert_eq!(payload[16..], [1; 8]);
        raw.send(asked.reply(answer.len()), &answer);
        writer.join().unwrap().unwrap();
    }
    let served = raw.hang_up();
    assert_eq!((served.ended, served.stray_replies_count), (DisconnectReason::ClosedByClient, 1));
}

#[test]
fn unmapping_cancels_reads_that_wait_for_the_client() {
    let mut raw = Raw::new(LONG);
    let link = raw.link.clone();
    let low = read_on_thread(&link, 0x1000, 16);
    let (asked_low, _) = raw.receive();
    let high = read_on_thread(&link, 0x2000, 16);
    let (asked_high, payload) = raw.receive();
    assert_eq!(link.cancel(&(0x1010..0x2000)), 0, "neither");
    assert_eq!(link.cancel(&(0x100f..0x1010)), 1);
    let cancelled = DmaError { done_bytes: 0, kind: DmaErrorKind::Cancelled };
    assert_eq!(low.join().unwrap(), Err(cancelled));
    // The late reply is dropped, and the other one arrives.
    let access = DmaAccess { data: b"the first sixtee", ..DmaAccess::parse(&payload).unwrap() };
    let reply = access.encode();
    raw.send(asked_low.reply(reply.len()), &reply);
    let reply = DmaAccess { data: b"then another one", ..access }.encode();
    raw.send(asked_high.reply(reply.len()), &reply);
    assert_eq!(high.join().unwrap().unwrap(), b"then another one");
    assert_eq!(raw.hang_up().stray_replies_count, 0);
}

#[test]
fn a_read_of_a_client_that_does_not_answer_times_out() {
    let mut raw = Raw::new(Duration::from_millis(50));
    let mut bytes = [0; 8];
    let timed_out = DmaError { done_bytes: 0, kind: DmaErrorKind::TimedOut };
    assert_eq!(raw.link.read(Iova::new(0), &mut bytes), Err(timed_out));
    assert_eq!(raw.link.write(Iova::new(0), &bytes), Err(timed_out));
    // The client is still connected.
    raw.receive();
    raw.receive();
    raw.request(1, &Request::RegionRead { offset: 0, region: 0, count: 1 });
    assert_eq!(raw.receive().0.id, 1);
}

#[test]
fn a_client_that_answers_byte_by_byte_does_not_extend_the_deadline() {
    const LEN: usize = 64;
    for is_read in [true, false] {
        let mut raw = Raw::new(Duration::from_millis(200));
        let (link, stream) = (raw.link.clone(), raw.stream.try_clone().unwrap());
        let device = thread::spawn(move || {
            let done = match is_read {
                true => link.read(Iova::new(0), &mut [0; LEN]),
                false => link.write(Iova::new(0), &[0; LEN]),
            };
            // The client gets no more commands.
            stream.shutdown(Shutdown::Both).unwrap();
            done
        });
        while let Some((asked, payload)) = raw.receive_unless_closed() {
            // Each reply arrives in time.
            thread::sleep(Duration::from_millis(50));
            let data: &[u8] = if is_read { &[7] } else { &[] };
            let access = DmaAccess::parse(&payload).unwrap();
            let reply = DmaAccess { count: 1, data, ..access }.encode();
            let header = asked.reply(reply.len()).encode();
            // The device may have closed the socket.
            let _ = raw.stream.write_all(&[&header[..], &reply].concat());
        }
        let failed = device.join().unwrap().expect_err("the device waited for every byte");
        assert_eq!(failed.kind, DmaErrorKind::TimedOut);
        assert!(failed.done_bytes < LEN);
        assert_eq!(raw.ended().ended, DisconnectReason::ClosedByClient);
    }
}

#[test]
fn reads_of_a_client_that_dies_fail_at_once() {
    let raw = Raw::new(LONG);
    let readers: Vec<_> = (0..4).map(|at| read_on_thread(&raw.link, at * 64, 16)).collect();
    let mut raw = raw;
    for _ in 0..4 {
        raw.receive();
    }
    assert_eq!(raw.hang_up().ended, DisconnectReason::ClosedByClient);
    let gone = DmaError { done_bytes: 0, kind: DmaErrorKind::Disconnected };
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Err(gone));
    }
}

#[test]
fn a_client_that_does_not_receive_its_replies_is_disconnected() {
    let mut raw = Raw::new(Duration::from_millis(100));
    for id in 0..1000 {
        let read = Request::RegionRead { offset: 0, region: 0, count: 0x2000 };
        let payload = read.encode();
        let header = MessageHeader::command(id, read.command(), payload.len());
        let bytes = [&header.encode()[..], &payload].concat();
        if raw.stream.write_all(&bytes).is_err() {
            break;
        }
    }
    assert_eq!(raw.ended().ended, DisconnectReason::SendTimedOut);
}

#[test]
fn no_command_is_sent_to_a_client_before_its_capabilities_are_known() {
    let mut rig = Rig::without_negotiation(Ram(Vec::new()), Capabilities::DEFAULT, Vec::new());
    assert!(rig.client.device_info().is_err(), "the version comes first");
    assert!(rig.noted().link.is_none());
    rig.client.negotiate(&Capabilities::DEFAULT.with_transfer_bytes_max(0)).unwrap();
    let failed = rig.link().read(Iova::new(0), &mut [0]).unwrap_err();
    assert_eq!(failed.kind, DmaErrorKind::Disconnected);
    assert!(rig.client.negotiate(&Capabilities::DEFAULT).is_err(), "once");
}
