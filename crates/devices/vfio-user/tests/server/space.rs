//! The client's memory in a space, accessed by sessions.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_access::{ReadWrite, Reason, Space};
use longshore_mem::Iova;
use longshore_sys::event_fd;
use longshore_sys::memfd::{self, Backing};
use longshore_vfio_user::client::{Client, ClientError, DmaMemory, NoDmaMemory};
use longshore_vfio_user::wire::{Command, DmaMap, DmaUnmap, Feature, Request, feature};
use longshore_vfio_user::{
    ConnectionSummary, DisconnectReason, Link, MessageHeader, Server, SpaceDma,
};

use crate::rig::{self, Ram, Shared};

/// A client of a server that keeps memory in a space.
struct Setup<M> {
    client: Client<M>,
    /// The client's socket, for messages that the client does not send itself.
    stream: UnixStream,
    space: Space,
    noted: Shared,
    server: JoinHandle<ConnectionSummary>,
}

impl<M: DmaMemory> Setup<M> {
    fn new(memory: M) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (noted, space) = (Shared::default(), Space::new().unwrap());
        let dma = SpaceDma::new(space.clone());
        let server = Server::new(rig::device(&noted, Vec::new()), dma).unwrap();
        // Longer than the client waits, so that the server does not time out first.
        let mut server = server.reply_timeout(Duration::from_secs(60));
        let server = thread::spawn(move || server.serve(theirs).unwrap());
        let stream = ours.try_clone().unwrap();
        let mut client = Client::from_stream(ours, memory).unwrap();
        client.device_info().unwrap();
        Self { client, stream, space, noted, server }
    }

    fn link(&self) -> Link {
        self.noted.lock().unwrap().link.clone().unwrap()
    }

    fn hang_up(self) -> (ConnectionSummary, Space) {
        drop((self.client, self.stream));
        (self.server.join().unwrap(), self.space)
    }
}

fn memory(name: &str, len_bytes: u64) -> OwnedFd {
    let file = memfd::create(name, Backing::Shmem).unwrap();
    memfd::set_len(&file, len_bytes).unwrap();
    rustix::io::pwrite(&file, &vec![0x5a; len_bytes as usize], 0).unwrap();
    file
}

fn content(file: &OwnedFd, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(rustix::io::pread(file, &mut bytes, offset).unwrap(), len);
    bytes
}

fn is_refused(done: &Result<(), ClientError>) {
    assert!(matches!(done, Err(ClientError::Refused(_))), "{done:?}");
}

/// Returns the number of mappings of the file in this process.
fn mappings_of(name: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn sessions_access_mapped_memory_and_not_a_byte_beside_it() {
    let mut setup = Setup::new(NoDmaMemory);
    let file = memory("vfio-user-beside", 0x6000);
    let fd = Some((file.as_fd(), 0x2000));
    setup.client.dma_map(0x10_0000, 0x2000, fd, true).unwrap();
    let session = setup.space.session();
    session.write(Iova::new(0x10_0ffc), b"across a page").unwrap();
    assert_eq!(content(&file, 0x2ffc, 13), b"across a page");
    // Across both ends.
    let fault = session.write(Iova::new(0x10_1ff8), &[1; 16]).unwrap_err();
    assert_eq!((fault.done, fault.reason), (8, Reason::Unmapped));
    assert_eq!(session.write(Iova::new(0xf_fff8), &[2; 16]).unwrap_err().done, 0);
    let mut whole = vec![0x5a; 0x6000];
    whole[0x2ffc..][..13].copy_from_slice(b"across a page");
    whole[0x3ff8..0x4000].fill(1);
    assert_eq!(content(&file, 0, 0x6000), whole);
    // Next to it, read-only: the device must not write, and the mapping itself is read-only.
    setup.client.dma_map(0x10_2000, 0x1000, Some((file.as_fd(), 0x5000)), false).unwrap();
    let mut bytes = [0; 4];
    session.read(Iova::new(0x10_2ffc), &mut bytes).unwrap();
    assert_eq!(bytes, [0x5a; 4]);
    let fault = session.write(Iova::new(0x10_1ffe), &[3; 4]).unwrap_err();
    assert_eq!((fault.done, fault.reason), (2, Reason::Permission));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mapped: Vec<&str> = maps.lines().filter(|it| it.contains("vfio-user-beside")).collect();
    assert!(mapped.iter().any(|it| it.contains(" r--s ")), "{mapped:?}");
    // Write-only.
    let write_only = DmaMap { flags: DmaMap::WRITE, offset: 0, iova: 0x20_0000, len_bytes: 0x1000 };
    setup.client.request(&Request::DmaMap(write_only), &[file.as_fd()]).unwrap();
    session.write(Iova::new(0x20_0000), b"only").unwrap();
    let fault = session.read(Iova::new(0x20_0000), &mut bytes).unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::Permission));

    setup.client.dma_unmap(0x10_0000, 0x2000).unwrap();
    let fault = session.read(Iova::new(0x10_0000), &mut bytes).unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::Unmapped));
    session.read(Iova::new(0x10_2000), &mut bytes).unwrap();
    // When the client dies, all its memory is unmapped.
    let (served, space) = setup.hang_up();
    assert_eq!((served.ended, served.maps_left_count), (DisconnectReason::ClosedByClient, 0));
    for iova in [0x10_0000, 0x10_2000, 0x20_0000] {
        let fault = space.session().read(Iova::new(iova), &mut bytes).unwrap_err();
        assert_eq!(fault.reason, Reason::Unmapped);
    }
    assert_eq!(mappings_of("vfio-user-beside"), 0);
}

#[test]
fn a_refused_map_leaves_its_addresses_free() {
    let mut setup = Setup::new(NoDmaMemory);
    let file = memory("vfio-user-wrong", 0x4000);
    let read_only = fs::File::open(format!("/proc/self/fd/{}", raw(&file))).unwrap();
    let event = event_fd::create().unwrap();
    let before = mappings_of("vfio-user-wrong");
    for wrong in [read_only.as_fd(), event.as_fd()] {
        is_refused(&setup.client.dma_map(0x1000, 0x4000, Some((wrong, 0)), true));
    }
    // Beyond the addresses that a space translates, and lengths that no process can map.
    let fd = Some((file.as_fd(), 0));
    is_refused(&setup.client.dma_map(1 << 48, 0x1000, fd, true));
    is_refused(&setup.client.dma_map(0x1000, 1 << 47, fd, true));
    is_refused(&setup.client.dma_map(0x1000, 1 << 60, None, true));
    assert_eq!(mappings_of("vfio-user-wrong"), before);
    setup.client.dma_map(0x1000, 0x4000, fd, true).unwrap();
    setup.client.dma_map(0, 0x1000, Some((read_only.as_fd(), 0)), false).unwrap();
    let (served, _) = setup.hang_up();
    assert_eq!((served.refused_count, served.maps_left_count), (5, 0));
}

#[test]
fn a_descriptor_that_is_neither_memory_nor_an_event_ends_the_connection() {
    let (pipe, _writer) = std::io::pipe().unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    let files = [pipe.into(), socket.into(), fs::File::open("/").unwrap().into()];
    for file in files.iter().chain([&fs::File::open("/dev/zero").unwrap().into()]) {
        let mut setup = Setup::new(NoDmaMemory);
        let fd = Some((OwnedFd::as_fd(file), 0));
        setup.client.dma_map(0x1000, 0x4000, fd, true).unwrap_err();
        let (served, _) = setup.hang_up();
        let ended = DisconnectReason::Io(std::io::ErrorKind::InvalidData);
        assert_eq!((served.ended, served.maps_left_count), (ended, 0));
    }
}

fn raw(file: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

#[test]
fn access_beyond_the_end_of_a_shortened_file_is_a_fault() {
    let mut setup = Setup::new(NoDmaMemory);
    let file = memory("vfio-user-short", 0x8000);
    setup.client.dma_map(0, 0x4000, Some((file.as_fd(), 0)), true).unwrap();
    setup.client.dma_map(0x10_0000, 0x8000, Some((file.as_fd(), 0)), true).unwrap();
    // Longer than the file.
    assert!(setup.client.dma_map(0x20_0000, 0x9000, Some((file.as_fd(), 0)), true).is_err());
    let session = setup.space.session();
    let mut bytes = [0; 0x4000];
    session.read(Iova::new(0), &mut bytes).unwrap();
    memfd::set_len(&file, 0x1000).unwrap();
    let fault = session.read(Iova::new(0xff0), &mut bytes[..32]).unwrap_err();
    assert_eq!((fault.done, fault.reason), (16, Reason::BackingLost));
    let fault = session.write(Iova::new(0x10_3000), &[1]).unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::BackingLost));
    session.write(Iova::new(0xff0), b"still there").unwrap();
    assert_eq!(setup.hang_up().0.maps_left_count, 0);
}

#[test]
fn memory_without_a_descriptor_is_read_and_written_by_messages() {
    let mut setup = Setup::new(Ram((0..=255).cycle().take(0x4000).collect()));
    let file = memory("vfio-user-mixed", 0x1000);
    setup.client.dma_map(0x1000, 0x1000, Some((file.as_fd(), 0)), true).unwrap();
    setup.client.dma_map(0x2000, 0x2000, None, true).unwrap();
    let by_file_io = DmaMap {
        flags: DmaMap::READ | DmaMap::WRITE | DmaMap::BY_FILE_IO,
        offset: 0,
        iova: 0x4000,
        len_bytes: 0x1000,
    };
    setup.client.request(&Request::DmaMap(by_file_io), &[file.as_fd()]).unwrap();
    setup.client.dma_map(0x10_0000, 0x1000, None, true).unwrap();
    let space = setup.space.clone();
    let device = thread::spawn(move || {
        let session = space.session();
        // From mapped memory into memory by messages, and from there into the file.
        let mut bytes = [0; 0x2800];
        session.read(Iova::new(0x1800), &mut bytes).unwrap();
        assert_eq!(bytes[..0x800], [0x5a; 0x800]);
        assert_eq!(bytes[0x800..0x810], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        session.read(Iova::new(0x3ff0), &mut bytes[..0x20]).unwrap();
        assert_eq!(
            bytes[..0x10],
            [240, 241, 242, 243, 244, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255]
        );
        assert_eq!(bytes[0x10..0x20], [0x5a; 0x10]);
        session.write(Iova::new(0x1ffc), b"out and ").unwrap();
        session.write(Iova::new(0x3ffc), b"and back").unwrap();
        // The client refuses access to memory that it mapped without having it.
        let fault = session.read(Iova::new(0x10_0000), &mut bytes[..8]).unwrap_err();
        assert_eq!((fault.done, fault.reason), (0, Reason::Permission));
    });
    rig::serve_until(&mut setup.client, device);
    assert_eq!(content(&file, 0xffc, 4), b"out ");
    assert_eq!(content(&file, 0, 4), b"back");
    let Ram(ram) = setup.client.memory();
    assert_eq!((&ram[0x2000..0x2004], &ram[0x3ffc..0x4000]), (&b"and "[..], &b"and "[..]));
    // The file is now too short.
    memfd::set_len(&file, 0).unwrap();
    let fault = setup.space.session().read(Iova::new(0x47f8), &mut [0; 16]).unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::BackingLost));
    setup.client.dma_unmap(0x2000, 0x2000).unwrap();
    let fault = setup.space.session().read(Iova::new(0x2000), &mut [0]).unwrap_err();
    assert_eq!(fault.reason, Reason::Unmapped);
    assert!(setup.link().is_connected());
    assert_eq!(setup.hang_up().0.maps_left_count, 0);
}

#[test]
fn unmapping_does_not_wait_for_a_client_that_does_not_answer() {
    let mut setup = Setup::new(NoDmaMemory);
    setup.client.dma_map(0x1000, 0x1000, None, true).unwrap();
    let space = setup.space.clone();
    let device = thread::spawn(move || space.session().read(Iova::new(0x1100), &mut [0; 8]));
    // The client receives the read command, and unmaps the memory instead of answering.
    let mut stream = setup.stream.try_clone().unwrap();
    let mut asked = [0; 32];
    std::io::Read::read_exact(&mut stream, &mut asked).unwrap();
    assert_eq!(asked[2..4], Command::DmaRead.number().to_ne_bytes());
    let unmap = DmaUnmap { argsz: 24, flags: 0, iova: 0x1000, len_bytes: 0x1000 };
    setup.client.request(&Request::DmaUnmap(unmap), &[]).unwrap();
    let fault = device.join().unwrap().unwrap_err();
    assert_eq!((fault.done, fault.reason), (0, Reason::Revoked));
}

/// The same while other memory is pinned during the read: unmapping unrelated memory does not affect the
/// read, unmapping the memory that is read cancels it, and unmapping the pinned memory cancels it and
/// waits for the pin.
#[test]
fn unmapping_does_not_wait_for_a_client_while_memory_is_pinned() {
    for (taken, is_revoked) in [(0x3000, false), (0x1000, true), (0x2000, true)] {
        let mut setup = Setup::new(NoDmaMemory);
        let file = memory("pinned", 0x2000);
        setup.client.dma_map(0x1000, 0x1000, None, true).unwrap();
        setup.client.dma_map(0x2000, 0x1000, Some((file.as_fd(), 0)), true).unwrap();
        setup.client.dma_map(0x3000, 0x1000, Some((file.as_fd(), 0x1000)), true).unwrap();
        let space = setup.space.clone();
        let device = thread::spawn(move || {
            let session = space.session();
            let pinned = session.pin(Iova::new(0x2100), 8, ReadWrite, |view| {
                let read = session.read(Iova::new(0x1100), &mut [0; 8]);
                view.write(0, b"finished").unwrap();
                read
            });
            pinned.unwrap()
        });
        let mut stream = setup.stream.try_clone().unwrap();
        let mut asked = [0; 32];
        std::io::Read::read_exact(&mut stream, &mut asked).unwrap();
        assert_eq!(asked[2..4], Command::DmaRead.number().to_ne_bytes());
        let unmap = DmaUnmap { argsz: 24, flags: 0, iova: taken, len_bytes: 0x1000 };
        setup.client.request(&Request::DmaUnmap(unmap), &[]).unwrap();
        if taken == 0x2000 {
            assert_eq!(content(&file, 0x100, 8), b"finished", "the unmapping waited for the pin");
        }
        assert_eq!(setup.space.session().read(Iova::new(taken), &mut [0]).unwrap_err().done, 0);
        let mut reason = Reason::Revoked;
        if !is_revoked {
            // The read still waits; the client refuses it.
            assert!(!device.is_finished());
            let errno = MessageHeader::decode(asked[..16].try_into().unwrap()).error_reply(14);
            std::io::Write::write_all(&mut stream, &errno.encode()).unwrap();
            reason = Reason::Permission;
        }
        let fault = device.join().unwrap().unwrap_err();
        assert_eq!((fault.done, fault.reason), (0, reason));
        drop(stream);
        assert_eq!(setup.hang_up().0.maps_left_count, 0);
    }
}

#[test]
fn devices_never_access_memory_that_was_unmapped() {
    const ROUNDS: u64 = 100;
    let mut setup = Setup::new(NoDmaMemory);
    let (old, new) = (memory("vfio-user-old", 0x1000), memory("vfio-user-new", 0x1000));
    let start = Arc::new(Barrier::new(3));
    let (done, faults) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let devices: Vec<_> = (0..2)
        .map(|_| {
            let (space, start) = (setup.space.clone(), Arc::clone(&start));
            let (done, faults) = (Arc::clone(&done), Arc::clone(&faults));
            thread::spawn(move || {
                let session = space.session();
                start.wait();
                loop {
                    let count = match session.write(Iova::new(0x5000), &[1; 64]) {
                        Ok(()) => &done,
                        Err(fault) => {
                            assert_eq!((fault.done, fault.reason), (0, Reason::Unmapped));
                            &faults
                        }
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    // The end is signalled in memory that stays mapped.
                    if session.read_obj::<u8>(Iova::new(0x9000)).unwrap() == 1 {
                        return;
                    }
                }
            })
        })
        .collect();
    // Waits for another access with this result.
    let another = |count: &AtomicU64| {
        let (before, begin) = (count.load(Ordering::Relaxed), Instant::now());
        while count.load(Ordering::Relaxed) == before {
            assert!(begin.elapsed() < Duration::from_secs(60), "no device goes on");
            thread::sleep(Duration::from_micros(20));
        }
    };
    let told = memory("vfio-user-told", 0x1000);
    setup.client.dma_map(0x9000, 0x1000, Some((told.as_fd(), 0)), false).unwrap();
    start.wait();
    for round in 0..ROUNDS {
        let file = if round % 2 == 0 { &old } else { &new };
        setup.client.dma_map(0x5000, 0x1000, Some((file.as_fd(), 0)), true).unwrap();
        another(&done);
        setup.client.dma_unmap(0x5000, 0x1000).unwrap();
        // No device writes there any more.
        rustix::io::pwrite(file, &[0; 64], 0).unwrap();
        another(&faults);
        assert_eq!(content(file, 0, 64), [0; 64], "round {round}");
    }
    rustix::io::pwrite(&told, &[1], 0).unwrap();
    devices.into_iter().for_each(|device| device.join().unwrap());
    assert_eq!(setup.hang_up().0.maps_left_count, 0);
}

/// Returns the pages of `range` that are reported as written, as indices.
fn written(client: &mut Client, iova: u64, len_bytes: u64, page_bytes: u64) -> Vec<u64> {
    let words = [iova, len_bytes, page_bytes];
    let data: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let flags = feature::DMA_LOGGING_REPORT | Feature::GET;
    let asked = Feature { argsz: 1 << 20, flags, data: &data };
    let answer = client.request(&Request::DeviceFeature(asked), &[]).unwrap();
    let bitmap = answer.payload[8 + 24..].chunks_exact(8);
    let bitmap: Vec<u64> =
        bitmap.map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(bitmap.len() as u64, len_bytes.div_ceil(page_bytes).div_ceil(64));
    let is_set = |page: &u64| bitmap[(page / 64) as usize] >> (page % 64) & 1 != 0;
    (0..bitmap.len() as u64 * 64).filter(is_set).collect()
}

/// Starts the log; returns the page size of the reply.
fn start_log(
    client: &mut Client,
    page_bytes: u64,
    ranges: &[(u64, u64)],
) -> Result<u64, ClientError> {
    let mut data = [page_bytes, ranges.len() as u64].map(u64::to_ne_bytes).concat();
    data.extend(ranges.iter().flat_map(|it| [it.0.to_ne_bytes(), it.1.to_ne_bytes()].concat()));
    let flags = feature::DMA_LOGGING_START | Feature::SET;
    let asked = Feature { argsz: 4096, flags, data: &data };
    let answer = client.request(&Request::DeviceFeature(asked), &[])?;
    Ok(u64::from_ne_bytes(*answer.payload[8..].first_chunk().unwrap()))
}

fn stop_log(client: &mut Client) {
    let flags = feature::DMA_LOGGING_STOP | Feature::SET;
    let asked = Feature { argsz: 4096, flags, data: &[] };
    client.request(&Request::DeviceFeature(asked), &[]).unwrap();
}

#[test]
fn the_client_gets_the_pages_that_devices_wrote() {
    let mut setup = Setup::new(NoDmaMemory);
    let file = memory("vfio-user-dirty", 0x10_0000);
    setup.client.dma_map(0x100_0000, 0x10_0000, Some((file.as_fd(), 0)), true).unwrap();
    let (session, client) = (setup.space.session(), &mut setup.client);
    let write = |at: u64, len: usize| session.write(Iova::new(at), &vec![1; len]).unwrap();
    write(0x100_0000, 1);
    assert_eq!(start_log(client, 4096, &[(0x100_0000, 0x10_0000)]).unwrap(), 4096);
    assert!(written(client, 0x100_0000, 0x10_0000, 4096).is_empty(), "before it was on");
    write(0x100_0000 + 5 * 4096, 1);
    write(0x100_0000 + 70 * 4096 + 4000, 200);
    write(0x100_0000 + 255 * 4096, 4096);
    session.read(Iova::new(0x100_0000 + 9 * 4096), &mut [0; 64]).unwrap();
    assert_eq!(written(client, 0x100_0000, 0x10_0000, 4096), [5, 70, 71, 255]);
    assert!(written(client, 0x100_0000, 0x10_0000, 4096).is_empty(), "it was reported before");
    write(0x100_0000 + 8 * 4096, 1);
    write(0x100_0000 + 15 * 4096, 1);
    assert_eq!(written(client, 0x100_0000 + 8 * 4096, 4096, 4096), [0]);
    // In larger and smaller pages than those of the log.
    assert_eq!(written(client, 0x100_0000, 0x10_0000, 0x1_0000), [0]);
    write(0x100_0000 + 0x2000, 1);
    assert_eq!(written(client, 0x100_0000, 0x8000, 1024), [8, 9, 10, 11]);
    // Pages that were unmapped are reported, too.
    write(0x100_3000, 1);
    client.dma_unmap(0x100_0000, 0x10_0000).unwrap();
    assert_eq!(written(client, 0x100_0000, 0x10_0000, 4096), [3]);
    stop_log(client);

    // Pages of 64 KiB, of which a part is reported first and the rest later.
    client.dma_map(0x100_0000, 0x10_0000, Some((file.as_fd(), 0)), true).unwrap();
    assert_eq!(start_log(client, 0x1_0000, &[(0x100_0000, 0x10_0000)]).unwrap(), 0x1_0000);
    write(0x100_5000, 1);
    assert_eq!(written(client, 0x100_4000, 0x2000, 4096), [0, 1]);
    assert_eq!(written(client, 0x100_0000, 0x10_0000, 4096), (0..16).collect::<Vec<u64>>());
    assert!(written(client, 0x100_0000, 0x10_0000, 4096).is_empty());
    stop_log(client);

    // All addresses, with pages so large that the log stays within its limit.
    let page_bytes = start_log(client, 4096, &[]).unwrap();
    assert_eq!(page_bytes, 1 << (48 - 31));
    write(0x100_0000, 1);
    assert_eq!(written(client, 0x100_0000, 0x10_0000, page_bytes), [0]);
    stop_log(client);
    assert!(start_log(client, 4096, &[(1 << 60, 4096)]).is_err(), "beyond all addresses");
    // A log that is on ends with the client.
    start_log(client, 4096, &[(0, u64::MAX)]).unwrap();
    let (served, space) = setup.hang_up();
    assert_eq!(served.maps_left_count, 0);
    assert!(space.logs().by_iova.is_off());
}

#[test]
fn no_write_is_lost_while_the_client_requests_reports() {
    let mut setup = Setup::new(NoDmaMemory);
    let file = memory("vfio-user-lost", 0x10_0000);
    setup.client.dma_map(0, 0x10_0000, Some((file.as_fd(), 0)), true).unwrap();
    start_log(&mut setup.client, 4096, &[(0, 0x10_0000)]).unwrap();
    let space = setup.space.clone();
    let device = thread::spawn(move || {
        let session = space.session();
        for round in 0..200_000_u64 {
            let at = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44 & !7;
            session.write_obj(Iova::new(at), round).unwrap();
        }
    });
    // A copy of the memory, updated from the reports.
    let mut copy = content(&file, 0, 0x10_0000);
    let mut is_last = false;
    loop {
        for page in written(&mut setup.client, 0, 0x10_0000, 4096) {
            let at = page as usize * 4096;
            copy[at..at + 4096].copy_from_slice(&content(&file, at as u64, 4096));
        }
        if is_last {
            break;
        }
        is_last = device.is_finished();
    }
    device.join().unwrap();
    assert!(copy == content(&file, 0, 0x10_0000), "a write was lost");
}
