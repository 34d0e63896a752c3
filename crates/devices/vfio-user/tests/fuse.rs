//! A client with files of a file system that it serves itself, and whose requests it does not answer.

#![cfg(not(loom))]
#![expect(unsafe_code, reason = "writes to memory whose pages do not come")]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_access::Space;
use longshore_mem::{AddrRange, FileOffset, Iova};
use longshore_sys::memfd;
use longshore_vfio_user::client::{Client, NoDmaMemory};
use longshore_vfio_user::{
    Device, DeviceDescription, DisconnectReason, DmaBacking, DmaMapping, DmaTarget, Errno,
    MappableFile, RegionDescription, Server, SpaceDma,
};
use rustix::event::epoll;
use rustix::mm::{MapFlags, ProtFlags};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "server/rig.rs"]
mod rig;

#[path = "server/fuse.rs"]
mod fuse;

const PATIENCE: Duration = Duration::from_secs(60);
/// The opcode of `linux/fuse.h` that a page fault sends.
const READ: u32 = 15;

/// A file of a file system that this test serves. Only opening it is answered.
struct Hanging {
    /// Closing it blocks until the daemon answers.
    opened: ManuallyDrop<File>,
    mounted: (fuse::Mounted, File),
    daemon: JoinHandle<()>,
}

impl Hanging {
    /// Calls `unanswered` with the opcode of each request that is not answered.
    fn new(folder: &Path, unanswered: impl FnMut(u32) + Send + 'static) -> Option<Self> {
        let (mounted, device) = fuse::mount(folder)?;
        let daemon = {
            let device = device.try_clone().unwrap();
            thread::spawn(move || fuse::serve_opens(&device, unanswered))
        };
        let opened = OpenOptions::new().read(true).write(true).open(folder.join("memory")).unwrap();
        Some(Self { opened: ManuallyDrop::new(opened), mounted: (mounted, device), daemon })
    }

    /// Ends the file system, so that requests and closes fail.
    fn end(self) {
        let Self { opened, mounted, daemon } = self;
        drop(mounted);
        drop(ManuallyDrop::into_inner(opened));
        daemon.join().unwrap();
    }
}

/// Returns a client at one end of a connection, and a channel for the reason why its server ended.
fn served_over(
    (ours, theirs): (UnixStream, UnixStream),
) -> (Client<NoDmaMemory>, Receiver<DisconnectReason>) {
    let device = rig::device(&rig::Shared::default(), Vec::new());
    let mut server = Server::new(device, SpaceDma::new(Space::new().unwrap())).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(server.serve(theirs).unwrap().ended));
    (Client::from_stream(ours, NoDmaMemory).unwrap(), told)
}

#[test]
fn a_file_that_the_client_itself_serves_does_not_block_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let Some(hanging) = Hanging::new(folder.path(), |_| {}) else { return };

    for use_by_mmap in [true, false] {
        let (mut client, told) = served_over(UnixStream::pair().unwrap());
        client.dma_map(0x1000, 0x1000, Some((hanging.opened.as_fd(), 0)), use_by_mmap).unwrap_err();
        let ended = told.recv_timeout(PATIENCE).expect("the server waits for the client's file");
        assert_eq!(ended, DisconnectReason::Io(ErrorKind::InvalidData));
    }

    hanging.end();
}

/// A client that is this user's, its server, and how serving it ended.
fn served_to(uid: u32) -> (Client<NoDmaMemory>, Receiver<DisconnectReason>) {
    served_over(rig::pair_of(uid).expect("it was possible before"))
}

#[test]
fn files_of_one_user_whose_close_blocks_delay_no_other_user() {
    const HOSTILE: u32 = 12_001;
    const OTHER: u32 = 12_002;
    if rig::pair_of(HOSTILE).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(hanging) = Hanging::new(folder.path(), |_| {}) else { return };
    let memory = memfd::create("client", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&memory, 4096).unwrap();

    let (mut before, _told) = served_to(OTHER);
    let (mut quiet, told_quiet) = served_to(HOSTILE);
    for kind in [[ErrorKind::InvalidData; 4], [ErrorKind::ResourceBusy; 4]].concat() {
        let (mut client, told) = served_to(HOSTILE);
        client.dma_map(0x1000, 0x1000, Some((hanging.opened.as_fd(), 0)), true).unwrap_err();
        let ended = told.recv_timeout(PATIENCE).expect("the server waits for the client's file");
        assert_eq!(ended, DisconnectReason::Io(kind));
    }

    // The user is served if it sends no descriptors; it is not served even with harmless descriptors.
    quiet.device_info().unwrap();
    quiet.dma_map(0x1000, 0x1000, None, true).unwrap();
    quiet.dma_map(0x2000, 0x1000, Some((memory.as_fd(), 0)), true).unwrap_err();
    let ended = told_quiet.recv_timeout(PATIENCE).expect("the server goes on");
    assert_eq!(ended, DisconnectReason::Io(ErrorKind::ResourceBusy));

    // Another user is served as usual.
    let (mut after, _told) = served_to(OTHER);
    for client in [&mut before, &mut after] {
        client.dma_map(0x1000, 0x1000, Some((memory.as_fd(), 0)), true).unwrap();
        client.device_info().unwrap();
    }

    // The closes end with the file system, and the user is served again.
    hanging.end();
    let begin = Instant::now();
    while let Err(error) = {
        let (mut client, _told) = served_to(HOSTILE);
        client.dma_map(0x1000, 0x1000, Some((memory.as_fd(), 0)), true)
    } {
        assert!(begin.elapsed() < PATIENCE, "closes that have ended are counted: {error}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A page that never arrives, of a file system that this test serves.
struct Absent {
    page: usize,
    file: Hanging,
    asked: Receiver<u32>,
}

impl Absent {
    fn new(folder: &Path) -> Option<Self> {
        let (ask, asked) = mpsc::channel();
        // The receiver is gone if the test is over.
        let file = Hanging::new(folder, move |request| _ = ask.send(request))?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page =
            unsafe { rustix::mm::mmap(ptr::null_mut(), 4096, prot, flags, &*file.opened, 0) };
        Some(Self { page: page.unwrap().expose_provenance(), file, asked })
    }

    /// Returns when a page fault has requested the page.
    fn wait_for_fault(&self) {
        assert!(self.asked.iter().any(|request| request == READ), "no page fault came");
    }

    /// Holds the lock of a file on another thread: it is taken before the bytes are read from memory.
    fn hold_lock_of(&self, memory: &OwnedFd) -> JoinHandle<()> {
        let (memory, page) = (memory.try_clone().unwrap(), self.page);
        let holder = thread::spawn(move || {
            let page = ptr::with_exposed_provenance::<u8>(page);
            // SAFETY: it lies in the mapping, which stays until this thread has ended, and which nothing
            // else uses.
            let bytes = unsafe { std::slice::from_raw_parts(page, 64) };
            rustix::io::pwrite(&memory, bytes, 0).unwrap_err();
        });
        self.wait_for_fault();
        holder
    }

    /// Ends the file system, so that what waits for the page fails, and then `holder`.
    fn end<T>(self, holder: JoinHandle<T>) -> T {
        let Hanging { opened, mounted, daemon } = self.file;
        drop(mounted);
        let ended = holder.join().unwrap();
        // SAFETY: the thread that used it has ended.
        unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.page), 4096) }.unwrap();
        drop(ManuallyDrop::into_inner(opened));
        daemon.join().unwrap();
        ended
    }
}

#[test]
fn a_held_lock_of_the_memorys_file_does_not_block_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let Some(absent) = Absent::new(folder.path()) else { return };
    let memory = memfd::create("locked", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&memory, 4096).unwrap();
    let holder = absent.hold_lock_of(&memory);

    let space = Space::new().unwrap();
    let mut dma = SpaceDma::new(space.clone());
    let (tell, told) = mpsc::channel();
    let file = memory.try_clone().unwrap();
    let device = thread::spawn(move || {
        let backing = DmaBacking::FileIo { file, offset: FileOffset::new(0) };
        let range = AddrRange::new(Iova::new(0x1000), 4096).unwrap();
        dma.dma_map(DmaMapping::new(range, backing)).unwrap();
        space.session().write(Iova::new(0x1100), b"written").unwrap();
        dma.dma_unmap(range).unwrap();
        tell.send(()).unwrap();
    });
    let done = told.recv_timeout(PATIENCE);
    absent.end(holder);
    device.join().unwrap();
    done.expect("the device waits for the lock of the client's memory");
    let mut written = [0; 7];
    rustix::io::pread(&memory, &mut written, 0x100).unwrap();
    assert_eq!(&written, b"written");
}

/// A device whose only region is memory of its client.
struct Screen(Option<MappableFile>);

impl Device for Screen {
    fn description(&self) -> DeviceDescription {
        DeviceDescription::new(vec![RegionDescription::new(4096)], Vec::new())
    }

    fn mappable(&mut self, _: u32) -> io::Result<Option<MappableFile>> {
        self.0 = Some(MappableFile::new(4096)?);
        Ok(self.0.clone())
    }

    fn region_read(&mut self, _: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        Ok(self.0.as_ref().ok_or(Errno::EIO)?.read(offset, into)?)
    }

    fn region_write(&mut self, _: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        Ok(self.0.as_ref().ok_or(Errno::EIO)?.write(offset, from)?)
    }

    fn reset(&mut self) {}
}

#[test]
fn a_region_whose_lock_the_client_holds_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let Some(absent) = Absent::new(folder.path()) else { return };
    let connections = [(); 2].map(|()| UnixStream::pair().unwrap());
    let (clients, servers): (Vec<_>, Vec<_>) = connections.into_iter().unzip();
    let mut server = Server::new(Screen(None), SpaceDma::new(Space::new().unwrap())).unwrap();
    let serving = thread::spawn(move || {
        servers.into_iter().map(|end| server.serve(end).unwrap().refused_count).sum::<u64>()
    });
    let mut clients = clients.into_iter();
    let first = clients.next().unwrap();
    let mut client = Client::from_stream(first.try_clone().unwrap(), NoDmaMemory).unwrap();
    let holder = absent.hold_lock_of(&client.region_info(0).unwrap().1.unwrap());

    let (tell, told) = mpsc::channel();
    let using = thread::spawn(move || {
        let mut read = [0; 7];
        client.region_write(0, 0x100, b"written").unwrap();
        client.region_read(0, 0x100, &mut read).unwrap();
        assert_eq!(&read, b"written");
        // The threads of this process that close descriptors have both ends of the connection.
        first.shutdown(Shutdown::Both).unwrap();
        let mut next = Client::from_stream(clients.next().unwrap(), NoDmaMemory).unwrap();
        next.region_read(0, 0x100, &mut read).unwrap();
        assert_eq!(read, [0; 7]);
        tell.send(()).unwrap();
    });
    let done = told.recv_timeout(PATIENCE);
    absent.end(holder);
    using.join().unwrap();
    assert_eq!(serving.join().unwrap(), 0);
    done.expect("the device waits for the lock of its client's file");
}

/// A thread that waits for an epoll holds a lock of it while the events are written to memory: for ever,
/// if that memory is a page that never arrives.
#[test]
fn a_held_lock_of_an_epoll_does_not_block_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let Some(absent) = Absent::new(folder.path()) else { return };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let event = longshore_sys::event_fd::create().unwrap();
    longshore_sys::event_fd::signal(&event).unwrap();
    epoll::add(&epoll, &event, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    let holder = {
        let (epoll, page): (OwnedFd, usize) = (epoll.try_clone().unwrap(), absent.page);
        thread::spawn(move || {
            let page = ptr::with_exposed_provenance_mut::<MaybeUninit<epoll::Event>>(page);
            // SAFETY: it lies in the mapping, which stays until this thread has ended, and which no
            // other code uses.
            let events = unsafe { std::slice::from_raw_parts_mut(page, 1) };
            // The page never arrives.
            epoll::wait(&epoll, events, None).map(|_| ()).unwrap_err()
        })
    };
    absent.wait_for_fault();

    let (mut client, told) = served_over(UnixStream::pair().unwrap());
    client.dma_map(0x1000, 0x1000, Some((epoll.as_fd(), 0)), true).unwrap_err();
    let ended = told.recv_timeout(PATIENCE);
    absent.end(holder);
    let ended = ended.expect("the server waits for the client's epoll");
    assert_eq!(ended, DisconnectReason::Io(ErrorKind::InvalidData));
}
