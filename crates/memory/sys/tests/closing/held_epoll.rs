//! An epoll whose lock is held, so that the last close of a file that it lists blocks. Tests of other
//! packages include this file, too.
#![expect(unsafe_code, reason = "makes a system call write to memory whose page is not provided")]

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::ptr;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags};

const PAGE: usize = 4096;

/// `struct uffdio_api` of `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len_bytes: u64,
    mode: u64,
    ioctls: u64,
}

const API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0);

/// An epoll whose lock is held by a waiting thread, because the page for its events is not provided. A
/// client can do the same with a page of its own FUSE file system. Dropping this frees the lock.
#[derive(Debug)]
pub(crate) struct HeldEpoll {
    /// Closing it provides the page.
    handler: Option<OwnedFd>,
    waiting: Option<JoinHandle<()>>,
    page: usize,
}

impl HeldEpoll {
    /// Makes an epoll that lists `files`, and returns when its lock is held. Returns `None` if this
    /// process may not handle page faults of system calls.
    pub(crate) fn of(files: &[OwnedFd]) -> Option<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE, prot, flags) };
        let page = page.unwrap().expose_provenance();
        // SAFETY: the handler has no effect on memory that this program uses through references.
        let handler = match unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC) } {
            Ok(handler) => handler,
            Err(error) => {
                println!("SKIPPED: no page faults of system calls can be handled: {error}");
                return None;
            }
        };
        let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
        // SAFETY: the structure of this request.
        let request = unsafe { Updater::<API, Api>::new(&mut api) };
        // SAFETY: the request changes only the descriptor.
        unsafe { ioctl(&handler, request) }.unwrap();
        let mut register =
            Register { start: page as u64, len_bytes: PAGE as u64, mode: 1, ioctls: 0 };
        // SAFETY: the structure of this request.
        let request = unsafe { Updater::<REGISTER, Register>::new(&mut register) };
        // SAFETY: no reference to the mapping exists.
        unsafe { ioctl(&handler, request) }.unwrap();

        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let ready = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        for file in files.iter().chain([&ready]) {
            epoll::add(&epoll, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        let waiting = thread::spawn(move || {
            let events = ptr::with_exposed_provenance_mut::<MaybeUninit<epoll::Event>>(page);
            // SAFETY: it is in the mapping, which exists until this thread has ended, and which no other
            // code uses.
            let events = unsafe { std::slice::from_raw_parts_mut(events, 1) };
            epoll::wait(&epoll, events, None).unwrap();
            drop(ready);
        });
        // Wait for the message that the page is missing.
        rustix::io::read(&handler, &mut [0; 32]).unwrap();
        Some(Self { handler: Some(handler), waiting: Some(waiting), page })
    }
}

impl Drop for HeldEpoll {
    fn drop(&mut self) {
        drop(self.handler.take());
        self.waiting.take().map(JoinHandle::join);
        // SAFETY: the thread that used it has ended.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.page), PAGE) };
    }
}
