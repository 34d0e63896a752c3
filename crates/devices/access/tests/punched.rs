//! Memory of a full tmpfs, into which another process punches a hole. The only test of its program, because
//! any guard of another test would hide that one is missing.
#![cfg(all(target_os = "linux", not(any(loom, miri))))]
#![expect(unsafe_code, reason = "implements `DmaMemory`")]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use longshore_access::{Reason, Region, Space};
use longshore_mem::{DmaMemory, FileOffset, Granule, Iova};
use longshore_pagetable::Prot;
use longshore_sys::mapping::{Access, Mapping};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};

const LEN: u64 = 1 << 20;

/// Memory of a file.
struct Shared {
    file: OwnedFd,
    mapping: Mapping,
}

// SAFETY: the mapping is of the whole file, from its start, is writable, and lives as long as the value.
unsafe impl DmaMemory for Shared {
    fn host(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.mapping.start(), LEN as usize)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        Some((self.file.as_fd(), FileOffset::new(0)))
    }
}

/// Returns a tmpfs of 4 MiB that is mounted nowhere.
fn tmpfs() -> rustix::io::Result<OwnedFd> {
    let context = mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    mount::fsconfig_set_string(&context, "size", "4m")?;
    mount::fsconfig_create(&context)?;
    mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn create(tmpfs: &OwnedFd, name: &str) -> File {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(tmpfs, name, flags, Mode::RUSR | Mode::WUSR).unwrap().into()
}

#[test]
fn a_hole_that_cannot_be_filled_is_a_fault() {
    let tmpfs = match tmpfs() {
        Ok(tmpfs) => tmpfs,
        Err(error) => return println!("SKIPPED: a tmpfs cannot be mounted: {error}"),
    };
    let file = create(&tmpfs, "memory");
    file.set_len(LEN).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEN).unwrap();
    let mapping = Mapping::of_file(&file, LEN, Granule::SIZE_2M, Access::ReadWrite).unwrap();
    let region = Region::from_memory(Shared { file: file.try_clone().unwrap().into(), mapping });
    let (region, space, at) = (Arc::new(region.unwrap()), Space::new().unwrap(), Iova::new(LEN));
    space.attach(&region).unwrap();
    space.map(at, &region, 0, LEN, Prot::READ_WRITE).unwrap();
    let session = space.session();
    session.write(at, &[7; 4]).unwrap();

    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, mode, 0, LEN).unwrap();
    let mut other = create(&tmpfs, "other");
    while other.write(&[1; 1 << 16]).is_ok() {}
    let read = session.read(at, &mut [0; 4]);
    assert_eq!(read.unwrap_err().reason, Reason::BackingLost);
    assert_eq!(session.write(at, &[7; 4]).unwrap_err().reason, Reason::BackingLost);
    assert!(region.is_guarded());

    other.set_len(0).unwrap();
    let mut bytes = [1; 4];
    session.read(at, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}
