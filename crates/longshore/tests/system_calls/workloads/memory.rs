//! The crates `mem`, `iov`, `sync` and `heap`: copies, cursors, asymmetric fences, buffers.
#![expect(unsafe_code, reason = "copies from memory that is missing, and owns a biased value")]

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use longshore::iov::{Cursor, Dest, Source, checksum::Checksum, copy};
use longshore::mem::fault::FaultGuard;
use longshore::mem::isa::IsaToken;
use longshore::mem::{Granule, VolatileSlice, dispatch_isa};
use longshore::{Heap, Sealing};
use longshore_sync::grace::{GracePeriods, SessionState, Slot};
use longshore_sync::{Barrier, OwnerBiased};
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd;

use crate::run::{Gate, Phase, Run};

const LEN: usize = 64 << 10;

/// Longer than an unmapping thread spins before it sleeps.
const BUSY: Duration = Duration::from_millis(20);

/// A mapping of a file that has lost its second half.
fn truncated() -> (OwnedFd, Mapping) {
    let file = memfd::create("truncated", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, LEN as u64).unwrap();
    let mapping = Mapping::of_file(&file, LEN as u64, Granule::SIZE_4K, Access::Read).unwrap();
    memfd::set_len(&file, LEN as u64 / 2).unwrap();
    (file, mapping)
}

pub(crate) fn mem(run: &mut Run) -> ! {
    let (_file, mapping) = truncated();
    let (from, mut into) = (vec![7; LEN], vec![0; LEN]);
    let token = IsaToken::active();

    run.begin(Phase::Setup);
    let guard = FaultGuard::install().unwrap();

    run.begin(Phase::Steady);
    // SAFETY: both are vectors of that length.
    let done = dispatch_isa!(token, isa => unsafe {
        longshore::mem::copy::copy(isa, from.as_ptr(), into.as_mut_ptr(), LEN)
    });
    assert!(done.is_ok() && into == from);
    // SAFETY: as above; the guard reports the missing pages of the mapping as a fault.
    let fault = dispatch_isa!(token, isa => unsafe {
        longshore::mem::copy::copy(isa, mapping.start().as_ptr(), into.as_mut_ptr(), LEN)
    });
    assert_eq!(fault.unwrap_err().done_bytes, LEN / 2);

    run.begin(Phase::Teardown);
    drop(guard);
    run.end()
}

pub(crate) fn iov(run: &mut Run) -> ! {
    let (_file, mapping) = truncated();
    let (header, body) = (vec![1; LEN], vec![2; LEN]);
    let mut into = vec![0; 2 * LEN];

    run.begin(Phase::Setup);
    let guard = FaultGuard::install().unwrap();

    run.begin(Phase::Steady);
    let parts = [IoSlice::new(&header), IoSlice::new(&body)];
    let mut source = Cursor::<Source>::own_vec(&parts);
    let mut sum = Checksum::new();
    copy::read_into(&mut source, &mut into, &mut sum).unwrap();
    assert_eq!(into[LEN], 2);
    let mut parts = [std::io::IoSliceMut::new(&mut into)];
    let mut dest = Cursor::<Dest>::own_vec(&mut parts);
    // SAFETY: the mapping outlives the view, and nothing else refers to it.
    let view = unsafe { VolatileSlice::from_raw_parts(mapping.start(), LEN) };
    let mut source = Cursor::<Source>::foreign_buf(view);
    let fault = copy::transfer(&mut source, &mut dest, LEN);
    assert!(fault.is_err() || fault.is_ok_and(|done| done == LEN / 2));

    run.begin(Phase::Teardown);
    drop(guard);
    run.end()
}

/// A slot that another thread uses. That thread is joined before the grace periods are dropped.
struct Held(NonNull<Slot<()>>);

// SAFETY: a slot can be used by a session of any thread.
unsafe impl Send for Held {}

/// Makes the unmapping thread wait once the gate is opened, and returns when it is opened again.
fn stay_busy(slot: &Held, barrier: Barrier, gate: &mut Gate, has_begun: &AtomicBool) {
    // SAFETY: the slot outlives this thread: see `Held`.
    let slot = unsafe { slot.0.as_ref() };
    let state = SessionState::new(barrier);
    gate.wait();
    state.enter(slot, || ());
    has_begun.store(true, Ordering::Release);
    let start = Instant::now();
    // Spin, because sleeping is a system call.
    while start.elapsed() < BUSY {
        std::hint::spin_loop();
    }
    state.leave(slot);
    state.release(slot);
    gate.wait();
}

pub(crate) fn sync(run: &mut Run) -> ! {
    let (mut opener, mut gate) = run.gate();

    run.begin(Phase::Setup);
    let barrier = Barrier::best();
    let grace = GracePeriods::<()>::new(barrier, true);
    let biased = OwnerBiased::new(0_u64, barrier);
    let slot = grace.claim(0, || ());
    let state = SessionState::new(barrier);
    // SAFETY: slots live as long as the grace periods that they belong to.
    let slot = unsafe { slot.as_ref() };
    state.enter(slot, || ());
    state.leave(slot);
    let has_begun = Arc::new(AtomicBool::new(false));
    let other = {
        let (has_begun, slot) = (Arc::clone(&has_begun), Held(grace.claim(1, || ())));
        thread::spawn(move || stay_busy(&slot, barrier, &mut gate, &has_begun))
    };

    run.begin(Phase::Steady);
    for _ in 0..3 {
        state.enter(slot, || ());
        state.leave(slot);
        // Unmap while a session is active.
        grace.wait();
        // SAFETY: this thread alone is the owner.
        unsafe { biased.own(|value| *value += 1) };
        biased.claim(|value| *value += 1);
    }
    // Unmap while a session stays busy for long.
    opener.open();
    while !has_begun.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    grace.wait();

    run.begin(Phase::Teardown);
    opener.open();
    other.join().unwrap();
    state.release(slot);
    drop(grace);
    run.end()
}

pub(crate) fn heap(run: &mut Run) -> ! {
    run.begin(Phase::Setup);
    let mut buffer = Heap::Memfd.allocate(4 << 20).unwrap();
    buffer.write().unwrap()[..5].copy_from_slice(b"bytes");
    let kept = Heap::Memfd.allocate(1 << 20).unwrap();
    let shared = buffer.share(Sealing::Content).unwrap();
    let sized = Heap::Memfd.allocate(1 << 20).unwrap().share(Sealing::Size).unwrap();

    run.begin(Phase::Steady);
    assert_eq!(&shared.as_slice().unwrap()[..5], b"bytes");
    let mut bytes = [1; 5];
    sized.view().unwrap().bytes().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 5]);
    assert!(shared.export().memfd.is_some());
    assert_eq!(kept.read().unwrap()[0], 0);

    run.begin(Phase::Teardown);
    drop((shared, sized, kept));
    run.end()
}

/// The base: system calls that the standard library and the C library make for any program.
pub(crate) fn base(run: &mut Run) -> ! {
    let is_ready = Arc::new(AtomicBool::new(false));

    run.begin(Phase::Setup);
    let mut map = std::collections::HashMap::new();
    let threads: Vec<_> = (0..4_usize)
        .map(|turn| {
            let is_ready = Arc::clone(&is_ready);
            let thread = thread::Builder::new().name(format!("a thread {turn}"));
            let work = move || {
                let mut bytes = vec![1_u8; 100 << (turn * 6)];
                bytes.resize(bytes.len() * 3, 2);
                is_ready.store(true, Ordering::Release);
                NonNull::from(&mut bytes[..]).len()
            };
            thread.spawn(work).unwrap()
        })
        .collect();
    for (turn, thread) in threads.into_iter().enumerate() {
        map.insert(turn, thread.join().unwrap());
    }
    assert!(is_ready.load(Ordering::Acquire));
    assert_eq!(map[&0], 300);
    run.end()
}
