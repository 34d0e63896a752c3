//! Another process that owns the device, in its roles.
//!
//! ```text
//!   test ── interface, address, limit, a memfd ──► owner ── Domain ── edu
//!   test ◄── progress on standard output; errors on standard error and as exit status
//! ```
#![expect(unsafe_code, reason = "maps shared memory of another process in a domain")]

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::thread;

use longshore_domain::backend::{Device, Iommufd, OpenError, Vfio};
use longshore_domain::{Bounce, Builder, Direction, Domain, WhenFull};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{DmaMemory, FileOffset};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;

use super::edu::{COPY_BYTES, Edu};
use super::rig::Interface;
use crate::mapped::Mapped;
use crate::outcome::ensure;

pub(crate) const OPEN: &str = "open-device";
pub(crate) const PIN: &str = "pin-memory";
pub(crate) const TRANSFER: &str = "transfer";

/// The line that it prints when the device has begun to write.
pub(super) const BEGUN: &str = "begun";

/// The length of the target, and of the memory of a transfer: the target and its new content.
pub(super) const TARGET_BYTES: usize = 4096;
pub(super) const TRANSFER_BYTES: u64 = 2 * TARGET_BYTES as u64;

type Done = Result<(), Box<dyn Error>>;

/// Opens the device.
pub(crate) fn play_open(told: &Value, _: Option<OwnedFd>) -> Done {
    drop(open(told)?);
    Ok(())
}

fn open(told: &Value) -> Result<(Builder, Device), Box<dyn Error>> {
    let address = told["address"].as_str().ok_or("no device is named")?;
    let opened: Result<_, OpenError> = match told["interface"].as_str().and_then(Interface::named) {
        Some(Interface::Vfio) => {
            Vfio::open_device(address).map(|(vfio, device)| (Domain::builder(vfio), device))
        }
        Some(Interface::Iommufd) => {
            Iommufd::open_device(address).map(|(own, device)| (Domain::builder(own), device))
        }
        None => return Err("no interface is named".into()),
    };
    Ok(opened?)
}

fn filled(len_bytes: u64, fill: u8) -> Result<Buffer, Box<dyn Error>> {
    let mut buffer = Heap::Memfd.allocate(len_bytes)?;
    buffer.write()?.fill(fill);
    Ok(buffer)
}

fn ensure_says_how(refused: impl Display) -> Done {
    let text = refused.to_string();
    for word in ["limit of locked memory", "RLIMIT_MEMLOCK", "ulimit -l", "CAP_IPC_LOCK"] {
        ensure!(text.contains(word), "{word:?} is missing in: {text}");
    }
    Ok(())
}

/// Maps as much memory as may be locked, and more.
pub(crate) fn play_pin(told: &Value, _: Option<OwnedFd>) -> Done {
    let limit_bytes = told["limit_bytes"].as_u64().ok_or("no limit is named")?;
    let limit = Rlimit { current: Some(limit_bytes), maximum: Some(limit_bytes) };
    setrlimit(Resource::Memlock, limit)?;
    let (builder, device) = open(told)?;
    let edu = Edu::new(device)?;
    // The pool's chunks are larger than the limit.
    let domain = builder.pool_limit(u64::MAX, WhenFull::MapDirectly).bounce(Bounce::Never).build();
    let free_bytes = domain.iovas().free_bytes();

    let first = domain.map(filled(limit_bytes / 2, 0x61)?, Direction::ToDevice)?;
    let left_bytes = domain.iovas().free_bytes();
    let large = filled(limit_bytes, 0x62)?;
    let refused = domain.map(large, Direction::Bidirectional).err().ok_or("it was mapped")?;
    ensure_says_how(&refused)?;
    ensure!(refused.value.host().len() as u64 == limit_bytes, "another buffer came back");
    ensure!(refused.value.read()?.iter().all(|byte| *byte == 0x62), "the buffer has changed");
    ensure!(domain.iovas().free_bytes() == left_bytes, "addresses were lost");
    // The refused mapping does not count, so the remaining limit can be used again and again.
    for turn in 0..4 {
        let second = domain.map(filled(limit_bytes / 4, 0)?, Direction::FromDevice)?;
        edu.fetch(first.iova().raw(), COPY_BYTES);
        edu.store(second.iova().raw(), COPY_BYTES);
        let second = second.unmap().map_err(|failed| failed.error)?;
        ensure!(second.read()?[..COPY_BYTES] == [0x61; COPY_BYTES], "turn {turn}");
        ensure!(second.read()?[COPY_BYTES] == 0, "turn {turn}: a byte more was written");
    }

    // If there is no room for a chunk, a transfer is mapped, or refused if it must be bounced.
    domain.set_bounce(Bounce::Always);
    let direct = domain.map(filled(4096, 0x63)?, Direction::ToDevice)?;
    ensure!(!direct.is_bounced(), "{direct:?}");
    edu.fetch(direct.iova().raw(), COPY_BYTES);
    let bytes = [0x64; 100];
    let refused = domain.lend(&bytes[1..], |_| ()).err().ok_or("a chunk was pinned")?;
    ensure_says_how(refused)?;
    ensure!(domain.counters().pool_bytes == 0, "{:?}", domain.counters());
    drop((first, direct));
    ensure!(domain.iovas().free_bytes() == free_bytes, "addresses were lost");
    ensure!(domain.counters().leaked == 0, "{:?}", domain.counters());
    Ok(())
}

/// A file that another process reads.
struct Lent {
    mapped: Mapped,
    file: OwnedFd,
}

// SAFETY: the file is mapped as long as this lives, and there are no references to its bytes.
unsafe impl DmaMemory for Lent {
    fn host(&self) -> NonNull<[u8]> {
        let start = NonZero::new(self.mapped.address()).expect("nothing is mapped at zero");
        let start = NonNull::with_exposed_provenance(start);
        NonNull::slice_from_raw_parts(start, TRANSFER_BYTES as usize)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        Some((self.file.as_fd(), FileOffset::new(0)))
    }
}

/// Makes the device copy the file's second page to the first one, prints a line when it has begun, and
/// sleeps.
pub(crate) fn play_transfer(told: &Value, file: Option<OwnedFd>) -> Done {
    let file = file.ok_or("no descriptor came")?;
    let lent = Lent { mapped: Mapped::new(&file, TRANSFER_BYTES)?, file };
    let (builder, device) = open(told)?;
    let edu = Edu::new(device)?;
    let domain = builder.bounce(Bounce::Never).build();
    let mapping = domain.map(lent, Direction::Bidirectional)?;
    let iova = mapping.iova().raw();
    edu.fetch(iova + TARGET_BYTES as u64, COPY_BYTES);
    edu.begin_store(iova, COPY_BYTES);
    writeln!(io::stdout(), "{BEGUN} {iova}")?;
    loop {
        thread::park();
    }
}
