//! Front-ends that send invalid messages, or take their memory away. Each ends with an error that
//! reports the reason, or with a broken ring, and the next front-end is served.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use longshore::vhost_user::wire::number;
use longshore_sys::{event_fd, memfd, unix_socket};
use rustix::fs::OFlags;

use crate::frontend::{
    ACCESS_PLATFORM, AVAILABLE, DATA, DESCRIPTORS, Descriptor, ENTRIES, Frontend, GUEST, HEADER,
    INDIRECT, IOVA, MEMORY_BYTES, NEXT, PROTOCOL_FEATURES, STATUS, Served, USED, USER, VERSION_1,
    WRITE, addresses, iotlb, state, table,
};

fn raw(request: u32, flags: u32, len: u32, payload: &[u8]) -> Vec<u8> {
    [&[request, flags, len].map(u32::to_ne_bytes).concat(), payload].concat()
}

/// Connects, and returns when the server serves this connection. A client that is not served yet is
/// disconnected if it sends descriptors.
fn connect_served(served: &Served) -> UnixStream {
    let mut socket = served.connect();
    io::Write::write_all(&mut socket, &raw(number::GET_FEATURES, 1, 0, &[])).unwrap();
    // A header and a number.
    io::Read::read_exact(&mut socket, &mut [0; 20]).unwrap();
    socket
}

#[test]
fn invalid_messages_end_the_connection() {
    let served = Served::new();
    for (bytes, why) in [
        (raw(number::GET_FEATURES, 0, 0, &[]), "flags"),
        (raw(number::GET_FEATURES, 2, 0, &[]), "flags"),
        (raw(number::GET_FEATURES, 0x11, 0, &[]), "flags"),
        (raw(number::GET_FEATURES, 1, 513, &[0; 513]), "claims a payload of 513"),
        (raw(number::SET_MEM_TABLE, 1, u32::MAX, &[]), "claims a payload"),
        (raw(0, 1, 0, &[]), "is unknown, or was not negotiated"),
        (raw(26, 1, 0, &[]), "is unknown, or was not negotiated"),
        (raw(u32::MAX, 1, 0, &[]), "is unknown, or was not negotiated"),
        (raw(number::GET_FEATURES, 1, 8, &[0; 8]), "is not its length"),
        (raw(number::SET_FEATURES, 1, 4, &[0; 4]), "is not its length"),
        (raw(number::SET_VRING_ADDR, 1, 39, &[0; 39]), "is not its length"),
        (raw(number::SET_MEM_TABLE, 1, 7, &[0; 7]), "is not its length"),
        (raw(number::SET_MEM_TABLE, 1, 8, &state(1, 0)), "is not its length"),
        (raw(number::SET_MEM_TABLE, 1, 8, &state(9, 0)), "regions is 9"),
        (raw(number::SET_VRING_ENABLE, 1, 8, &state(0, 2)), "enabling is 2"),
        (raw(number::GET_CONFIG, 1, 12, &[0xff; 12]), "is not its length"),
        (raw(number::GET_CONFIG, 1, 13, &[&state(256, 1)[..], &[0; 5]].concat()), "the offset"),
        (raw(number::IOTLB_MSG, 1, 25, &[0; 25]), "is not its length"),
        (raw(number::IOTLB_MSG, 1, 32, &[0; 32]), "the kind is 0"),
    ] {
        let socket = served.connect();
        unix_socket::send(&socket, &bytes, &[]).unwrap();
        let ended = served.ended();
        assert!(ended.contains(why), "{bytes:?}: {ended}");
    }
    served.still_serves();
    // The front-end disconnects within a message.
    for cut in [1, 11, 12, 19] {
        let socket = served.connect();
        let bytes = raw(number::SET_FEATURES, 1, 8, &[0; 8]);
        unix_socket::send(&socket, &bytes[..cut], &[]).unwrap();
        drop(socket);
        served.ends_with("in the middle of a message");
    }
    let frontends = served.counts.snapshot().clients;
    drop(served.connect());
    assert_eq!(served.ended(), "closed by the front-end");
    assert_eq!(served.counts.snapshot().clients, frontends + 1);
}

#[test]
fn unexpected_descriptors_are_refused_and_closed() {
    let served = Served::new();
    let one = memfd::create("unwanted", memfd::Backing::Shmem).unwrap();
    let link = |entry: io::Result<std::fs::DirEntry>| std::fs::read_link(entry.unwrap().path());
    let is_one = |link: std::path::PathBuf| link.to_string_lossy().contains("memfd:unwanted");
    let links = || std::fs::read_dir("/proc/self/fd").unwrap().filter_map(move |it| link(it).ok());
    let count = || links().filter(|link| is_one(link.clone())).count();
    let mut frontend = Frontend::ready(&served);
    let before = count();
    let region = table(&[[GUEST, MEMORY_BYTES, USER, 0]]);
    let fd = one.as_fd();
    frontend.refused(number::SET_MEM_TABLE, &region, &[]);
    frontend.refused(number::SET_MEM_TABLE, &region, &[fd, fd]);
    frontend.refused(number::SET_OWNER, &[], &[fd]);
    frontend.refused(number::SET_VRING_KICK, &0_u64.to_ne_bytes(), &[]);
    frontend.refused(number::SET_VRING_CALL, &(1_u64 << 8).to_ne_bytes(), &[fd]);
    frontend.refused(number::SET_BACKEND_REQ_FD, &[], &[]);
    frontend.refused(number::IOTLB_MSG, &iotlb(0, 0, 0, 0, 3), &[fd, fd, fd]);
    assert_eq!(frontend.read(3, 512).0, 0, "the old memory table is still used");
    // Another thread closes the descriptors.
    let begin = Instant::now();
    while count() != before && begin.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(count(), before, "descriptors are left");
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    // If no acknowledgement is requested, the connection ends.
    let mut frontend = Frontend::negotiated(&served);
    frontend.send(number::SET_MEM_TABLE, &region, &[], false);
    served.ends_with("the message has 0 descriptors");
}

#[test]
fn an_invalid_memory_table_is_refused_as_a_whole() {
    let served = Served::new();
    let mut frontend = Frontend::ready(&served);
    let memory = frontend.memory.try_clone().unwrap();
    let half = MEMORY_BYTES / 2;
    let good = [GUEST, half, USER, 0];
    for (bad, why) in [
        ([GUEST + half - 0x1000, half, USER + half, half], "guest addresses overlap"),
        ([GUEST + half, half, USER + half - 0x1000, half], "user addresses overlap"),
        ([GUEST, half, USER, 0], "the same region twice"),
        ([GUEST + half + 1, half, USER + half, half], "not whole pages"),
        ([GUEST + half, half - 1, USER + half, half], "not whole pages"),
        ([GUEST + half, half, USER + half + 8, half], "not whole pages"),
        ([GUEST + half, half, USER + half, half + 512], "not whole pages"),
        ([GUEST + half, 0, USER + half, half], "empty"),
        ([1 << 48, half, USER + half, half], "above the guest's address space"),
        ([u64::MAX - 0xfff, 0x1000, USER + half, half], "at the end of 64 bits"),
        ([GUEST + half, 1 << 47, USER + half, 0], "too long to be mapped"),
        ([GUEST + half, u64::MAX - 0xfff, USER + half, half], "longer than the address space"),
        ([GUEST + half, half, u64::MAX - 0xfff, half], "beyond the front-end's address space"),
        ([GUEST + half, half, USER + half, i64::MAX as u64 - 0xfff], "beyond the end of the file"),
    ] {
        let payload = table(&[good, bad]);
        let fds = [memory.as_fd(), memory.as_fd()];
        assert_eq!(frontend.acknowledged(number::SET_MEM_TABLE, &payload, &fds), 1, "{why}");
    }
    // An eventfd cannot be mapped.
    let event = event_fd::create().unwrap();
    frontend.refused(number::SET_MEM_TABLE, &table(&[good]), &[event.as_fd()]);
    // The previous table is still used.
    assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
    // An empty table is valid, but the ring is not in its memory.
    frontend.done(number::SET_MEM_TABLE, &table(&[]), &[]);
    assert!(!frontend.wait_broken());
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}

#[test]
fn invalid_rings_are_refused() {
    let served = Served::new();
    let mut frontend = Frontend::ready(&served);
    let file = memfd::create("no eventfd", memfd::Backing::Shmem).unwrap();
    for index in [4, 99, u32::MAX] {
        frontend.refused(number::SET_VRING_NUM, &state(index, 16), &[]);
        frontend.refused(number::SET_VRING_BASE, &state(index, 0), &[]);
        frontend.refused(number::SET_VRING_ENABLE, &state(index, 1), &[]);
        frontend.refused(number::SET_VRING_ADDR, &addresses(index, 0, USER), &[]);
    }
    for num in [0, 3, 2048, 1 << 16, u32::MAX] {
        frontend.refused(number::SET_VRING_NUM, &state(1, num), &[]);
    }
    frontend.refused(number::SET_VRING_BASE, &state(1, 1 << 16), &[]);
    for base in [0, USER - 0x1000, USER + MEMORY_BYTES, USER + 1, USER + 2, u64::MAX - 0xffff] {
        assert_eq!(
            frontend.acknowledged(number::SET_VRING_ADDR, &addresses(0, 0, base), &[]),
            1,
            "{base:#x}"
        );
    }
    let word = 0_u64.to_ne_bytes();
    for request in [number::SET_VRING_KICK, number::SET_VRING_CALL, number::SET_VRING_ERR] {
        frontend.refused(request, &word, &[file.as_fd()]);
    }
    frontend.refused(number::SET_VRING_KICK, &(1_u64 << 8).to_ne_bytes(), &[]);
    for features in [1_u64 << 63, 1 << 34, PROTOCOL_FEATURES | 1 << 24] {
        frontend.refused(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
    }
    frontend.refused(number::SET_PROTOCOL_FEATURES, &(1_u64 << 8).to_ne_bytes(), &[]);
    let config = [&state(0, 1)[..], &[0; 5]].concat();
    frontend.refused(number::SET_CONFIG, &config, &[]);
    assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
    frontend.send(number::GET_VRING_BASE, &state(7, 0), &[], false);
    served.ends_with("no ring 7: the device has");
}

#[test]
fn invalid_translations_are_refused() {
    let served = Served::new();
    // Without an IOMMU there are no translations.
    let mut frontend = Frontend::ready(&served);
    frontend.refused(number::IOTLB_MSG, &iotlb(IOVA, 0x1000, USER, 3, 2), &[]);
    frontend.refused(number::IOTLB_MSG, &iotlb(IOVA, 0x1000, USER, 3, 3), &[]);
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    let mut frontend = Frontend::ready_behind_iommu(&served, Frontend::translate);
    assert_eq!(frontend.read(3, 512).0, 0);
    for (iova, len_bytes, user, access) in [
        (IOVA, 0x1000, USER - 0x1000, 3),
        (IOVA, 0x2000, USER + MEMORY_BYTES - 0x1000, 3),
        (IOVA, 0x1000, USER + MEMORY_BYTES, 3),
        (IOVA, MEMORY_BYTES + 0x1000, USER, 3),
        (IOVA, u64::MAX - 0xfff, USER, 3),
        (IOVA, 0x1000, 0, 3),
        (IOVA, 0x1000, u64::MAX - 0xfff, 3),
        (IOVA, 0, USER, 3),
        (IOVA, 0x800, USER, 3),
        (IOVA + 0x10, 0x1000, USER, 3),
        (IOVA, 0x1000, USER + 0x10, 3),
        (1 << 48, 0x1000, USER, 3),
        (u64::MAX - 0xfff, 0x1000, USER, 3),
        (IOVA, 0x1000, USER, 0),
    ] {
        let update = iotlb(iova, len_bytes, user, access, 2);
        let answer = frontend.acknowledged(number::IOTLB_MSG, &update, &[]);
        assert_eq!(answer, 1, "{iova:#x} {len_bytes:#x} {user:#x}");
    }
    assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
    frontend.send(number::IOTLB_MSG, &iotlb(0, 0, 0, 3, 4), &[], true);
    served.ends_with("the kind is 4");
}

/// The front-end reports a translation without sending one, refuses, sends no valid reply, or closes the
/// channel.
#[test]
fn a_front_end_that_does_not_translate_breaks_the_ring() {
    let served = Served::new();
    let never: crate::frontend::Translate = |frontend, _, _| frontend.answer(0);
    let refuses: crate::frontend::Translate = |frontend, _, _| frontend.answer(1);
    let garbage: crate::frontend::Translate = |frontend, _, _| {
        let _ = unix_socket::send(frontend.channel.as_ref().unwrap(), &[0x5a; 20], &[]);
    };
    let hangs_up: crate::frontend::Translate = |frontend, _, _| frontend.channel = None;
    for (translate, misses) in [(never, 8), (refuses, 1), (garbage, 1), (hangs_up, 1)] {
        let mut frontend = Frontend::ready_behind_iommu(&served, translate);
        // The ring reads its available index at once, and fails.
        assert!(!frontend.wait_broken());
        assert_eq!(frontend.misses, misses);
        // Its index can still be read.
        assert_eq!(frontend.ask(number::GET_VRING_BASE, &state(0, 0)), state(0, 0));
        drop(frontend);
        assert_eq!(served.ended(), "closed by the front-end");
    }
    assert_eq!(served.counts.snapshot().ring_errors, 4);
    served.still_serves();
}

#[test]
fn an_invalid_chain_breaks_only_its_ring() {
    let served = Served::new();
    let header = Descriptor(GUEST + HEADER, 16, NEXT, 1);
    let chains: &[(&str, &[Descriptor])] = &[
        ("a descriptor that is its own next one", &[Descriptor(GUEST + HEADER, 16, NEXT, 0)]),
        (
            "a loop",
            &[
                header,
                Descriptor(GUEST + DATA, 512, NEXT | WRITE, 2),
                Descriptor(GUEST + DATA, 512, NEXT | WRITE, 1),
            ],
        ),
        ("a next index beyond the ring", &[Descriptor(GUEST + HEADER, 16, NEXT, ENTRIES)]),
        (
            "a readable descriptor after a writable one",
            &[Descriptor(GUEST + STATUS, 1, NEXT | WRITE, 1), Descriptor(GUEST + HEADER, 16, 0, 0)],
        ),
        ("an empty table", &[Descriptor(GUEST + DATA, 0, INDIRECT, 0)]),
        ("a table with part of an entry", &[Descriptor(GUEST + DATA, 17, INDIRECT, 0)]),
        ("a table that is too long", &[Descriptor(GUEST + DATA, u32::MAX - 15, INDIRECT, 0)]),
        ("a table that is not mapped", &[Descriptor(1 << 46, 16, INDIRECT, 0)]),
        ("a table at the end of 64 bits", &[Descriptor(u64::MAX - 7, 32, INDIRECT, 0)]),
        ("a table with a next descriptor", &[Descriptor(GUEST + DATA, 16, INDIRECT | NEXT, 1)]),
        ("a status that is not mapped", &[header, Descriptor(1 << 46, 1, WRITE, 0)]),
    ];
    for (what, chain) in chains {
        let mut frontend = Frontend::ready(&served);
        frontend.put_descriptors(DESCRIPTORS, chain);
        frontend.submit(0);
        assert!(!frontend.wait(), "{what}");
        // A driver that sets the ring up again can use it again.
        assert_eq!(frontend.ask(number::GET_VRING_BASE, &state(0, 0)), state(0, 0), "{what}");
        frontend.next = 0;
        frontend.put(USED, &[0; 0x100]);
        frontend.put(AVAILABLE, &[0; 0x100]);
        frontend.start_ring(USER, 0);
        assert_eq!(frontend.read(3, 512).0, 0, "{what}");
        drop(frontend);
        assert_eq!(served.ended(), "closed by the front-end");
    }
    // A table in a table.
    let mut frontend = Frontend::ready(&served);
    frontend.put_descriptors(DATA, &[Descriptor(GUEST + DATA, 16, INDIRECT, 0)]);
    frontend.put_descriptors(DESCRIPTORS, &[Descriptor(GUEST + DATA, 16, INDIRECT, 0)]);
    frontend.submit(0);
    assert!(!frontend.wait());
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    // Heads and an available index beyond the ring.
    for head in [ENTRIES, u16::MAX] {
        let mut frontend = Frontend::ready(&served);
        frontend.submit(head);
        assert!(!frontend.wait());
        drop(frontend);
        assert_eq!(served.ended(), "closed by the front-end");
    }
    let mut frontend = Frontend::ready(&served);
    frontend.next = ENTRIES;
    frontend.submit(0);
    assert!(!frontend.wait());
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    assert_eq!(served.counts.snapshot().ring_errors, chains.len() as u64 + 4);
    served.still_serves();
}

#[test]
fn invalid_requests_fail() {
    let served = Served::new();
    let mut frontend = Frontend::ready(&served);
    let data = |len, flags| [Descriptor(GUEST + DATA, len, flags, 0)];
    assert_eq!(frontend.request(99, 0, &[]), 2, "an unknown type");
    assert_eq!(frontend.request(0, 0, &data(511, WRITE)), 1, "not whole sectors");
    assert_eq!(frontend.request(1, 0, &data(513, 0)), 1, "not whole sectors");
    for sector in [2048, 2047, u64::MAX, u64::MAX / 512, 1 << 55] {
        assert_eq!(
            frontend.request(0, sector, &data(1024, WRITE)),
            1,
            "{sector} is beyond the end"
        );
        assert_eq!(frontend.request(1, sector, &data(1024, 0)), 1, "{sector} is beyond the end");
    }
    let all = [Descriptor(GUEST, u32::MAX, WRITE, 0); 3];
    assert_eq!(frontend.request(0, 0, &all), 1, "more than the disk has");
    // Without a header, and without a status.
    frontend.put_descriptors(DESCRIPTORS, &[Descriptor(GUEST + STATUS, 1, WRITE, 0)]);
    frontend.submit(0);
    assert!(frontend.wait());
    assert_eq!(frontend.get(STATUS, 1), [1]);
    frontend.put_descriptors(DESCRIPTORS, &[Descriptor(GUEST + HEADER, 16, 0, 0)]);
    frontend.submit(0);
    assert!(frontend.wait());
    assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
    assert_eq!(served.counts.snapshot().ring_errors, 0);
}

/// The front-end truncates its memory: first the data of a request, then the ring.
#[test]
fn memory_that_vanishes_is_a_fault() {
    let served = Served::new();
    let mut frontend = Frontend::ready(&served);
    assert_eq!(frontend.read(3, 4096).0, 0);
    frontend.memory.set_len(DATA).unwrap();
    assert_eq!(frontend.request(0, 0, &[Descriptor(GUEST + DATA, 4096, WRITE, 0)]), 1);
    assert_eq!(frontend.request(1, 0, &[Descriptor(GUEST + DATA, 4096, 0, 0)]), 1);
    assert_eq!(served.counts.snapshot().data_faults, 2);
    frontend.memory.set_len(0).unwrap();
    event_fd::signal(&frontend.kick).unwrap();
    assert!(!frontend.wait_broken());
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}

/// A front-end keeps the interrupt's eventfd full, and clears `O_NONBLOCK` of both eventfds. It can do
/// so at any moment, because it shares them.
#[test]
fn blocking_eventfds_do_not_block_a_ring() {
    let served = Served::new();
    let mut frontend = Frontend::ready(&served);
    let stop = Arc::new(AtomicBool::new(false));
    let (call, stopped) = (frontend.call.try_clone().unwrap(), Arc::clone(&stop));
    let hostile = thread::spawn(move || {
        while !stopped.load(Ordering::Acquire) {
            set_blocking(&call, false);
            let _ = rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes());
            let _ = rustix::io::write(&call, &1_u64.to_ne_bytes());
            set_blocking(&call, true);
        }
    });
    for _ in 0..200 {
        assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
    }
    // A kick wakes the ring's thread, and is drained before the thread reads it.
    set_blocking(&frontend.kick, true);
    for _ in 0..20_000 {
        event_fd::signal(&frontend.kick).unwrap();
        event_fd::drain(&frontend.kick).unwrap();
    }
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    stop.store(true, Ordering::Release);
    hostile.join().unwrap();
    served.still_serves();
}

fn set_blocking(event: &OwnedFd, blocks: bool) {
    let flags = rustix::fs::fcntl_getfl(event).unwrap() & !OFlags::NONBLOCK;
    let flags = if blocks { flags } else { flags | OFlags::NONBLOCK };
    rustix::fs::fcntl_setfl(event, flags).unwrap();
}

/// A front-end turns the IOMMU on and off while a ring runs.
#[test]
fn translation_can_be_turned_on_and_off() {
    let served = Served::new();
    let mut frontend = Frontend::ready(&served);
    assert_eq!(frontend.read(3, 512).0, 0);
    let features = PROTOCOL_FEATURES | VERSION_1 | ACCESS_PLATFORM;
    frontend.done(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
    // The ring's address is an IOVA now, for which there is no translation.
    assert!(!frontend.wait_broken());
    let features = PROTOCOL_FEATURES | VERSION_1;
    frontend.done(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
    frontend.done(number::SET_VRING_ADDR, &addresses(0, 0, USER), &[]);
    assert_eq!(frontend.read(3, 512), (0, served.on_disk(3, 512)));
}

/// xorshift64: the same numbers in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number, often one near a limit.
    fn number(&mut self) -> u64 {
        let near = [0, 1, GUEST, USER, IOVA, MEMORY_BYTES, 1 << 32, 1 << 48, u64::MAX, 0x1000];
        let at = near[self.below(near.len() as u64) as usize];
        match self.below(4) {
            0 => self.next() >> self.below(64),
            1 => at.wrapping_add(self.below(0x4000)).wrapping_sub(0x2000),
            _ => at,
        }
    }
}

/// Front-ends send messages that are almost valid, and have random rings.
#[test]
fn random_front_ends_do_no_harm() {
    let served = Served::new();
    let mut noise = Noise(0x1234_5678_9abc_def1);
    for round in 0..200 {
        let frontend = if round % 2 == 0 {
            Frontend::ready(&served)
        } else {
            Frontend::ready_behind_iommu(&served, Frontend::translate)
        };
        let memory = frontend.memory.try_clone().unwrap();
        let event = event_fd::create().unwrap();
        for at in 0..0x40 {
            let at = [DESCRIPTORS, AVAILABLE, USED][at as usize % 3] + 8 * (at / 3);
            frontend.put(at, &noise.number().to_le_bytes());
        }
        event_fd::signal(&frontend.kick).unwrap();
        for _ in 0..12 {
            let request = 1 + noise.below(26) as u32;
            let len = [0, 8, 16, 32, 40, 12, 40, 72][noise.below(8) as usize];
            let mut payload: Vec<u8> =
                (0..len / 4).flat_map(|_| (noise.number() as u32).to_ne_bytes()).collect();
            if noise.below(2) == 0 {
                payload = (0..len / 8).flat_map(|_| noise.number().to_ne_bytes()).collect();
            }
            if request == number::SET_MEM_TABLE {
                let region = std::array::from_fn(|_| noise.number());
                payload = table(&[[GUEST, MEMORY_BYTES, USER, 0], region]);
            }
            let descriptors = [memory.as_fd(), event.as_fd(), memory.as_fd()];
            let some = &descriptors[..noise.below(4) as usize];
            // Most ask for an acknowledgement, so that the connection does not end.
            let flags = if noise.below(8) == 0 { 1 } else { 1 | 1 << 3 };
            let bytes = raw(request, flags, payload.len() as u32, &payload);
            // The connection may have ended.
            if unix_socket::send(&frontend.socket, &bytes, some).is_err() {
                break;
            }
        }
        drop(frontend);
        served.ended();
    }
    assert!(served.counts.snapshot().refused > 100, "{}", served.counts.snapshot());
    served.still_serves();
}

/// A front-end sends the server its own end of the connection, and exits. No other process can end the
/// connection then.
#[test]
fn a_front_end_that_sends_its_own_end_does_not_keep_the_connection_open() {
    let served = Served::new();
    let channel = raw(number::SET_BACKEND_REQ_FD, 1, 0, &[]);
    let socket = connect_served(&served);
    unix_socket::send(&socket, &channel, &[socket.as_fd()]).unwrap();
    drop(socket);
    served.ends_with("has an address");
    // With the start of a message, directly and in the queue of another socket. This is done one after
    // the other, because a client that is not served yet is disconnected if it sends descriptors.
    let late = "ended: the other end did not answer, or did not take what it was sent";
    let socket = connect_served(&served);
    unix_socket::send(&socket, &channel[..4], &[socket.as_fd()]).unwrap();
    drop(socket);
    assert_eq!(served.ended(), late);
    let nested_in = connect_served(&served);
    let (nest, other) = UnixStream::pair().unwrap();
    unix_socket::send(&other, b"nested", &[nested_in.as_fd()]).unwrap();
    unix_socket::send(&nested_in, &channel[..4], &[nest.as_fd()]).unwrap();
    drop((nested_in, nest, other));
    assert_eq!(served.ended(), late);
    // In the queue of a channel with an invalid message, which the server may have closed already.
    let socket = connect_served(&served);
    let (channel_end, other) = UnixStream::pair().unwrap();
    unix_socket::send(&socket, &channel, &[channel_end.as_fd()]).unwrap();
    unix_socket::send(&other, &[0xff; 12], &[]).unwrap();
    let sent = unix_socket::send(&other, b"own end", &[socket.as_fd()]);
    assert!(sent.is_ok() || sent.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe));
    drop((socket, channel_end, other));
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}
