//! Memory of the device that its client maps: each client has a file of its own.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use longshore_access::{Region, RegionAccess, Space};
use longshore_mem::{FileOffset, Iova};
use longshore_pagetable::Prot;
use longshore_sys::closing::{self, User};
use longshore_sys::memfd::{self, Seals};
use longshore_vfio_user::client::{Client, ClientError, NoDmaMemory};
use longshore_vfio_user::wire::{HEADER_LEN_BYTES, RegionInfo, Request};
use longshore_vfio_user::{
    Capabilities, ConnectionSummary, Device, DeviceDescription, Errno, MappableArea, MappableFile,
    MessageHeader, ReceivedFds, RegionDescription, Responder, Server,
};
use rustix::fs::{FallocateFlags, OFlags};

use crate::rig::{self, EXTRA_REGION, Shared, TestDevice, TestDma};

const LEN_BYTES: u64 = 0x4000;

/// A device whose only region is mappable memory.
struct Bar {
    is_read_only: bool,
    /// The memory of the client.
    memory: Option<MappableFile>,
    /// Given to each client, as no device should.
    always: Option<MappableFile>,
}

impl Bar {
    fn server(is_read_only: bool) -> Server<Self, TestDma> {
        let bar = Self { is_read_only, memory: None, always: None };
        Server::new(bar, rig::dma(&Shared::default())).unwrap()
    }
}

impl Device for Bar {
    fn description(&self) -> DeviceDescription {
        let region = RegionDescription::new(LEN_BYTES);
        let region = if self.is_read_only { region.read_only() } else { region };
        DeviceDescription::new(vec![region], Vec::new())
    }

    fn mappable(&mut self, region: u32) -> io::Result<Option<MappableFile>> {
        assert_eq!(region, 0);
        let memory = match &self.always {
            Some(always) => always.clone(),
            None => MappableFile::new(LEN_BYTES)?,
        };
        self.memory = Some(memory.clone());
        Ok(Some(memory))
    }

    fn region_read(&mut self, _: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        Ok(self.memory.as_ref().ok_or(Errno::EIO)?.read(offset, into)?)
    }

    fn region_write(&mut self, _: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        Ok(self.memory.as_ref().ok_or(Errno::EIO)?.write(offset, from)?)
    }

    fn reset(&mut self) {}
}

/// Serves one client, and returns the results of the server and the client.
fn serve<T: Send>(
    server: &mut Server<Bar, TestDma>,
    client: impl FnOnce(&mut Client<NoDmaMemory>) -> T + Send,
) -> (io::Result<ConnectionSummary>, Result<T, ClientError>) {
    serve_over(UnixStream::pair().unwrap(), server, client)
}

fn serve_over<T: Send>(
    (ours, theirs): (UnixStream, UnixStream),
    server: &mut Server<Bar, TestDma>,
    client: impl FnOnce(&mut Client<NoDmaMemory>) -> T + Send,
) -> (io::Result<ConnectionSummary>, Result<T, ClientError>) {
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            Client::from_stream(ours, NoDmaMemory).map(|mut connected| client(&mut connected))
        });
        (server.serve(theirs), client.join().unwrap())
    })
}

/// Returns the file of the region.
fn map(client: &mut Client<NoDmaMemory>) -> File {
    client.region_info(0).unwrap().1.unwrap().into()
}

fn bytes(file: &File) -> [u8; 6] {
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_former_client_cannot_access_the_memory_of_the_next_client() {
    let mut server = Bar::server(false);
    let former = serve(&mut server, |client| {
        let file = map(client);
        file.write_all_at(b"former", 0).unwrap();
        file
    });
    let former = former.1.unwrap();
    let (served, next) = serve(&mut server, |client| {
        let next = map(client);
        assert_eq!(bytes(&next), [0; 6]);
        next.write_all_at(b"secret", 0).unwrap();
        assert_eq!(bytes(&former), *b"former");
        former.write_all_at(b"broken", 0).unwrap();
        let mut read = [0; 6];
        client.region_read(0, 0, &mut read).unwrap();
        assert_eq!(&read, b"secret");
        // The same client gets the same file each time.
        assert_eq!(bytes(&map(client)), *b"secret");
        next
    });
    assert_eq!(served.unwrap().refused_count, 0);
    assert_eq!(bytes(&next.unwrap()), *b"secret");
}

#[test]
fn a_client_cannot_truncate_the_memory_that_it_maps() {
    let mut server = Bar::server(false);
    let (_, file) = serve(&mut server, map);
    let file = file.unwrap();
    for len_bytes in [0, LEN_BYTES - 1, LEN_BYTES + 1] {
        assert_eq!(file.set_len(len_bytes).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    let more = memfd::add_seals(&file, Seals { write: true, ..Seals::default() });
    assert_eq!(more.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn the_file_of_a_read_only_region_is_read_only() {
    let mut server = Bar::server(true);
    let (_, file) = serve(&mut server, map);
    let file = file.unwrap();
    assert_eq!(rustix::fs::fcntl_getfl(&file).unwrap() & OFlags::RWMODE, OFlags::RDONLY);
    // Another user cannot open it for writing, either.
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_mode & 0o777, 0o400);
    assert!(file.write_at(b"x", 0).is_err());
    server.responder().device().region_write(0, 0, b"device").unwrap();
    assert_eq!(bytes(&file), *b"device");
}

/// How many descriptors of this process are of this file.
fn descriptors_of(inode: u64) -> usize {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let files = entries.filter_map(|entry| fs::metadata(entry.unwrap().path()).ok());
    files.filter(|file| file.ino() == inode).count()
}

/// A close walks all locks that the client has set on the file.
#[test]
fn the_memory_of_a_client_is_not_closed_on_the_thread_that_serves() {
    const UID: u32 = 12_003;
    closing::hold_files(User::from_uid(UID));
    // The device's, and the one for reading only.
    for (is_read_only, expected) in [(false, 1), (true, 2)] {
        let Some(connection) = rig::pair_of(UID) else { return };
        let mut server = Bar::server(is_read_only);
        let (served, inode) =
            serve_over(connection, &mut server, |client| map(client).metadata().unwrap().ino());
        let inode = inode.unwrap();
        assert_eq!(served.unwrap().refused_count, 0);
        assert_eq!(descriptors_of(inode), expected);
        drop(server);
        assert_eq!(descriptors_of(inode), expected);
    }
}

#[test]
fn a_device_and_its_client_see_what_the_other_one_writes() {
    const LAST: u64 = LEN_BYTES - 6;
    let mut server = Bar::server(false);
    let (served, client) = serve(&mut server, |client| {
        let (file, start) = (map(client), FileOffset::new(0));
        let mapping = Region::map_file(file, start, LEN_BYTES, RegionAccess::ReadWrite).unwrap();
        let (space, mapping) = (Space::new().unwrap(), Arc::new(mapping));
        space.attach(&mapping).unwrap();
        space.map(Iova::new(0), &mapping, 0, LEN_BYTES, Prot::READ_WRITE).unwrap();
        let (session, mut read) = (space.session(), [0; 6]);
        client.region_write(0, LAST, b"device").unwrap();
        session.read(Iova::new(LAST), &mut read).unwrap();
        assert_eq!(&read, b"device");
        session.write(Iova::new(1), b"client").unwrap();
        client.region_read(0, 1, &mut read).unwrap();
        assert_eq!(&read, b"client");
    });
    client.unwrap();
    assert_eq!(served.unwrap().refused_count, 0);
}

#[test]
fn a_hole_that_a_client_punches_is_read_as_zeros() {
    let mut server = Bar::server(false);
    let (served, read) = serve(&mut server, |client| {
        let file = map(client);
        file.write_all_at(&[7; LEN_BYTES as usize], 0).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 0, LEN_BYTES).unwrap();
        let mut read = [1; 6];
        client.region_read(0, 0x1ffd, &mut read).unwrap();
        read
    });
    assert_eq!(served.unwrap().refused_count, 0);
    assert_eq!(read.unwrap(), [0; 6]);
}

#[test]
fn bytes_outside_of_the_memory_are_neither_read_nor_written() {
    for len_bytes in [0, 1, 4095, 4096, LEN_BYTES] {
        let memory = MappableFile::new(len_bytes).unwrap();
        memory.write(0, &vec![1; len_bytes as usize]).unwrap();
        memory.read(len_bytes, &mut []).unwrap();
        for (at, count) in [(len_bytes, 1), (len_bytes + 1, 0), (u64::MAX, 1), (u64::MAX - 1, 9)] {
            let mut bytes = vec![2; count];
            let read = memory.read(at, &mut bytes).unwrap_err();
            assert_eq!((read.kind(), &bytes), (ErrorKind::InvalidInput, &vec![2; count]));
            assert!(read.to_string().contains("not inside"), "{read}");
            assert_eq!(memory.write(at, &bytes).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        if let Some(last) = len_bytes.checked_sub(1) {
            assert!(memory.write(last, &[2, 2]).is_err());
            let mut byte = [0];
            memory.read(last, &mut byte).unwrap();
            assert_eq!(byte, [1]);
        }
    }
}

/// Returns the error with which serving fails if each client is given this file.
fn refused(server: &mut Server<Bar, TestDma>, file: MappableFile) -> String {
    server.responder().device().always = Some(file);
    let (served, client) = serve(server, |_| {});
    assert!(client.is_err());
    let error = served.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    error.to_string()
}

#[test]
fn files_that_a_client_must_not_have_are_refused() {
    let mut server = Bar::server(false);
    serve(&mut server, map).0.unwrap();
    let given = server.responder().device().memory.clone().unwrap();
    let again = refused(&mut server, given);
    assert!(again.contains("region 0: its file was given to a client before"), "{again}");
    let short = MappableFile::new(LEN_BYTES - 1).unwrap();
    assert!(refused(&mut server, short).contains("ends before"));
    // Clients are served again when the device returns a valid file.
    server.responder().device().always = None;
    assert_eq!(serve(&mut server, map).0.unwrap().refused_count, 0);
    assert!(MappableFile::new(u64::MAX).is_err());
}

/// A device with a region that is mapped by `mappable`.
fn device(mappable: MappableFile) -> (TestDevice, TestDma) {
    let noted = Shared::default();
    noted.lock().unwrap().mappable.push(mappable);
    let region = RegionDescription::new(0x4000);
    (rig::device(&noted, vec![region]), rig::dma(&noted))
}

#[test]
fn a_region_is_mapped_by_its_client_in_parts() {
    let areas = vec![
        MappableArea { offset: 0x1000, len_bytes: 0x1000 },
        MappableArea { offset: 0x3000, len_bytes: 0x1000 },
    ];
    let mappable = MappableFile::new(0x5000).unwrap().with_areas(areas.clone());
    mappable.write(0x1000, b"shared").unwrap();
    let (device, dma) = device(mappable);
    let mut server = Server::new(device, dma).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || server.serve(theirs).unwrap());
    let mut client = Client::from_stream(ours, NoDmaMemory).unwrap();
    let (info, file) = client.region_info(9).unwrap();
    assert_eq!((info.offset, info.flags), (0, 7));
    assert_eq!(info.areas, areas);
    let mut bytes = [0; 6];
    rustix::io::pread(file.unwrap(), &mut bytes, info.offset + areas[0].offset).unwrap();
    assert_eq!(&bytes, b"shared");
    // Without room for the areas, the client gets the length that is needed, and the descriptor.
    let short = Request::DeviceGetRegionInfo { argsz: 79, index: 9 };
    let answer = client.request(&short, &[]).unwrap();
    assert_eq!((answer.payload.len(), answer.fds.len()), (32, 1));
    assert_eq!(RegionInfo::parse(&answer.payload).unwrap().argsz, 80);
    let too_short = Request::DeviceGetRegionInfo { argsz: 31, index: 9 };
    match client.request(&too_short, &[]) {
        Err(ClientError::Refused(errno)) => assert_eq!(errno.raw(), 22),
        other => panic!("{other:?}"),
    }
    drop(client);
    assert_eq!(server.join().unwrap().refused_count, 1);
}

/// A [`Responder`] gets its messages from the program, not from a [`Server`].
#[test]
fn a_device_without_a_server_is_asked_once_for_each_client() {
    let (device, dma) = device(MappableFile::new(0x4000).unwrap());
    let mut responder = Responder::new(device, dma, Capabilities::DEFAULT);
    let ask = |responder: &mut Responder<_, _>, request: Request<'_>| {
        let payload = request.encode();
        let header = MessageHeader::command(1, request.command(), payload.len());
        responder.respond(&header, &payload, ReceivedFds::default()).unwrap()
    };
    let version = || Request::Version { major: 0, minor: 0, capabilities: b"" };
    for expected in [true, false] {
        ask(&mut responder, version());
        for _ in 0..2 {
            let info = Request::DeviceGetRegionInfo { argsz: 32, index: EXTRA_REGION };
            let answer = ask(&mut responder, info);
            let info = RegionInfo::parse(&answer.bytes[HEADER_LEN_BYTES..]).unwrap();
            assert_eq!(answer.fd().is_some(), expected);
            assert_eq!(info.flags & RegionInfo::MMAP != 0, expected);
        }
        responder.disconnect();
    }
}
