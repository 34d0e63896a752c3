//! The place of the signal handler among the handlers of the program and of other libraries.
//!
//! Handlers form a chain: each one remembers the action that it replaced, and calls it for signals
//! that it does not handle. Three rules keep the chain free of loops.
//!
//! 1. An installed handler of this crate is never removed. A handler that was installed above it
//!    still calls it.
//! 2. A handler of this crate that was replaced is not installed again above the handler that
//!    replaced it: the two would call each other. Another function is installed there instead, the
//!    next *level*. Each level has one action before it.
//!
//!    ```text
//!      kernel ─► on_fault::<1> ─► a crash reporter ─► on_fault::<0> ─► first handler
//!    ```
//! 3. Other libraries can still make a loop, for example by installing a handler a second time
//!    above ours. So each level that passes a signal on leaves a mark in the signal's own
//!    `siginfo_t`, and a level with a mark passes the signal on to the action before the level
//!    below.
#![expect(unsafe_code, reason = "installs signal handlers and calls those of others")]

use std::boxed::Box;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{SIG_DFL, SIG_IGN, c_int, c_void, sigaction, siginfo_t, sigset_t, ucontext_t};

use super::handler;

type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The signals of a memory access that failed.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The number of levels, and so of replaced actions that are remembered for each signal. Two copies
/// of this library that replace each other in turn fill [`Marks`], with four levels each.
const LEVELS: usize = 4;

static HANDLERS: [Handler; LEVELS] = [on_fault::<0>, on_fault::<1>, on_fault::<2>, on_fault::<3>];

/// The actions before each level, per signal. They are never freed, because a handler in another
/// thread may be reading them.
static BEFORE: [[AtomicPtr<Before>; LEVELS]; 2] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; LEVELS] }; 2];

/// An action that a handler of this crate replaced.
struct Before {
    action: sigaction,
    /// `true` if the action has `SA_RESETHAND` and was called.
    is_spent: AtomicBool,
}

/// Makes a handler of this crate the first of the chain, for both signals.
///
/// There is no lock, and each step may be repeated, so a forked child can finish an installation
/// that another thread of its parent had begun.
pub(super) fn install() -> io::Result<()> {
    (0..SIGNALS.len()).try_for_each(install_for)
}

fn install_for(which: usize) -> io::Result<()> {
    let signal = SIGNALS[which];
    let mut now = set(signal, None)?;
    // Loops only if another handler was installed between the two calls.
    while level_of(&now).is_none() {
        let level = level_above(which, &now);
        let replaced = set(signal, Some(&action_above(level, &now)))?;
        if is_same(&replaced, &now) {
            break;
        }
        if level_of(&replaced).is_some_and(|other| other != level) {
            // Another thread installed it in the meantime, above a handler that this level does not
            // call.
            set(signal, Some(&replaced))?;
        }
        now = replaced;
    }
    Ok(())
}

/// Returns the level whose handler calls `action`, and stores the action if it is new.
fn level_above(which: usize, action: &sigaction) -> usize {
    let slots = &BEFORE[which];
    for (level, slot) in slots.iter().enumerate() {
        let mut known = slot.load(Ordering::Acquire);
        if known.is_null() {
            let new = Before::store(action);
            match slot.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return level,
                Err(other) => {
                    // SAFETY: allocated above, and not shared with other code.
                    drop(unsafe { Box::from_raw(new) });
                    known = other;
                }
            }
        }
        // SAFETY: an action in a slot is never freed.
        let known = unsafe { &*known };
        if is_same(&known.action, action) {
            known.is_spent.store(false, Ordering::Relaxed);
            return level;
        }
    }
    // There are more handlers than levels: the newest replaces the one before it.
    slots[LEVELS - 1].store(Before::store(action), Ordering::Release);
    LEVELS - 1
}

impl Before {
    fn store(action: &sigaction) -> *mut Self {
        Box::into_raw(Box::new(Self { action: *action, is_spent: AtomicBool::new(false) }))
    }
}

fn action_above(level: usize, before: &sigaction) -> sigaction {
    // SAFETY: all zeros is a `sigaction` with an empty mask and no flags.
    let mut action: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = HANDLERS[level] as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | before.sa_flags & libc::SA_RESTART;
    // The replaced handler runs on the stack of ours, so ours uses the stack that it asked for.
    if is_no_handler(before) || before.sa_flags & libc::SA_ONSTACK != 0 {
        action.sa_flags |= libc::SA_ONSTACK;
    }
    action
}

fn is_no_handler(action: &sigaction) -> bool {
    matches!(action.sa_sigaction, SIG_DFL | SIG_IGN)
}

/// Returns `true` if two actions are the same handler with the same flags and mask.
fn is_same(one: &sigaction, other: &sigaction) -> bool {
    one.sa_sigaction == other.sa_sigaction
        && one.sa_flags == other.sa_flags
        && signals_of(&one.sa_mask) == signals_of(&other.sa_mask)
}

/// Returns the signals of a set that the kernel has written: it has 64 of them, and the set of the
/// C library has room for more.
fn signals_of(set: &sigset_t) -> u64 {
    // SAFETY: the set begins with these 64 bits.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

fn level_of(action: &sigaction) -> Option<usize> {
    HANDLERS.iter().position(|handler| *handler as *const () as usize == action.sa_sigaction)
}

/// Sets a signal's action if one is given. Returns the previous action.
fn set(signal: c_int, action: Option<&sigaction>) -> io::Result<sigaction> {
    let mut before = MaybeUninit::uninit();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both point to a `sigaction` or are null, and a handler that is set is one of this
    // crate, which are async-signal-safe.
    if unsafe { sigaction(signal, action, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction(2) succeeded and has written it.
    Ok(unsafe { before.assume_init() })
}

/// Handles a signal. For a fault of a copy it calls no code of the program, so it may interrupt any
/// code.
unsafe extern "C" fn on_fault<const LEVEL: usize>(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the arguments are those of the kernel.
    if !unsafe { handler::handle(signal, info, context) } {
        // SAFETY: as above.
        unsafe { pass_on(LEVEL, signal, info, context) };
    }
}

/// Does what would have happened without this handler: calls the handler before it, or the default
/// action.
///
/// # Safety
/// The arguments must be those of a signal handler.
unsafe fn pass_on(level: usize, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let slots = &BEFORE[usize::from(signal == SIGNALS[1])];
    // SAFETY: the kernel's `siginfo_t`.
    let marks = unsafe { Marks::of(info) };
    let next = slots[..=level].iter().rev().find(|slot| marks.place_of(*slot).is_none());
    let place = marks.place_of(ptr::null());
    match next.zip(place) {
        Some((slot, place)) => {
            marks.set(place, slot);
            // SAFETY: the action was stored before the handler was installed, and is never freed.
            let before = unsafe { &*slot.load(Ordering::Acquire) };
            // SAFETY: the caller's promise.
            unsafe { before.call(signal, info, context) };
            marks.set(place, ptr::null());
        }
        // The chain is a loop.
        // SAFETY: the caller's promise.
        None => unsafe { die(signal, info) },
    }
}

/// The levels that have passed a signal on, marked in its `siginfo_t`: the kernel uses 48 of its
/// 128 bytes and zeroes the rest. So the marks end with the signal, even if a handler leaves by
/// `siglongjmp`, and they need no thread-local memory, which a handler cannot rely on.
struct Marks(*mut [usize; Marks::COUNT]);

impl Marks {
    const COUNT: usize = 8;
    const OFFSET: usize = size_of::<siginfo_t>() - Self::COUNT * size_of::<usize>();

    /// # Safety
    /// `info` must come from the kernel, or be a copy, and must outlive the marks.
    unsafe fn of(info: *mut siginfo_t) -> Self {
        // SAFETY: within the structure, which is aligned to words.
        Self(unsafe { info.byte_add(Self::OFFSET) }.cast())
    }

    /// Returns the first place with a mark of `slot`; a null pointer stands for a free place.
    fn place_of(&self, slot: *const AtomicPtr<Before>) -> Option<usize> {
        // SAFETY: within the `siginfo_t`.
        unsafe { self.0.read() }.iter().position(|noted| *noted == slot.addr())
    }

    fn set(&self, place: usize, slot: *const AtomicPtr<Before>) {
        // SAFETY: as for reading; no other code refers to it at the same time.
        if let Some(word) = unsafe { &mut *self.0 }.get_mut(place) {
            *word = slot.addr();
        }
    }
}

impl Before {
    /// Calls the action as the kernel would.
    ///
    /// # Safety
    /// The arguments must be those of a signal handler.
    unsafe fn call(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let Self { action, is_spent } = self;
        // SAFETY: the caller's promise.
        if action.sa_sigaction == SIG_IGN && unsafe { handler::was_sent(signal, info) } {
            return;
        }
        let is_reset = action.sa_flags & libc::SA_RESETHAND != 0;
        if is_no_handler(action) || is_reset && is_spent.swap(true, Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            return unsafe { die(signal, info) };
        }
        let itself = 1 << (signal - 1);
        // SAFETY: a field of the context.
        let interrupted = unsafe { &raw const (*context.cast::<ucontext_t>()).uc_sigmask };
        // SAFETY: the kernel's signal set has 64 bits.
        let interrupted = unsafe { interrupted.cast::<u64>().read() };
        let mut blocked = signals_of(&action.sa_mask);
        if action.sa_flags & libc::SA_NODEFER == 0 {
            blocked |= itself;
        }
        let masked = change_mask(libc::SIG_BLOCK, blocked);
        if (blocked | interrupted) & itself == 0 {
            change_mask(libc::SIG_UNBLOCK, itself);
        }
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: with SA_SIGINFO, it is a function of this type.
            let handler: Handler = unsafe { std::mem::transmute(action.sa_sigaction) };
            // SAFETY: it was installed to be called like this.
            unsafe { handler(signal, info, context) };
        } else {
            // SAFETY: without SA_SIGINFO it is a function of this type.
            let handler: unsafe extern "C" fn(c_int) =
                unsafe { std::mem::transmute(action.sa_sigaction) };
            // SAFETY: it was installed to be called like this.
            unsafe { handler(signal) };
        }
        change_mask(libc::SIG_SETMASK, masked);
    }
}

/// Changes the signal mask of the thread. Returns the previous mask.
fn change_mask(how: c_int, signals: u64) -> u64 {
    let mut before = 0u64;
    // Uses the system call, because the sets of the C library are 16 times as long, and alternate
    // signal stacks are small. It cannot fail.
    // SAFETY: both point to signal sets of the kernel's size.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const signals,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}

/// Performs the default action, with the details of the original signal in the core dump.
///
/// # Safety
/// The arguments must be those of a signal handler.
unsafe fn die(signal: c_int, info: *const siginfo_t) {
    // SAFETY: all zeros is the default action.
    let default: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let _ = set(signal, Some(&default));
    // The signal is pending until the handler returns. It would not be enough to let the
    // instruction fault again: the signal may have been sent, or another thread may map the page in
    // the meantime.
    let process = std::process::id();
    // SAFETY: it has no arguments and no effects.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    // SAFETY: the details are those of the original signal, sent to this thread itself.
    let queued =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
    if queued != 0 {
        // SAFETY: raise may be called in a handler.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Repeated installations of guards must not allocate each time.
    #[test]
    fn a_known_action_is_not_stored_again() {
        let found = set(SIGNALS[1], None).unwrap();
        assert_eq!(level_of(&found), None, "no other test of this program has a guard");
        let level = level_above(1, &found);
        let stored = BEFORE[1][level].load(Ordering::Acquire);
        assert_eq!(level_above(1, &found), level);
        assert_eq!(BEFORE[1][level].load(Ordering::Acquire), stored);
        let mut other = found;
        other.sa_flags ^= libc::SA_RESTART;
        assert!(!is_same(&found, &other));
        assert_ne!(level_above(1, &other), level);
        other = found;
        // SAFETY: it changes a private set.
        unsafe { libc::sigaddset(&raw mut other.sa_mask, libc::SIGUSR2) };
        assert!(!is_same(&found, &other));
        assert!(is_same(&found, &found));
    }

    #[test]
    fn marks_are_cleared_one_by_one_and_are_limited() {
        // SAFETY: zeros are a `siginfo_t`.
        let mut info: siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: it outlives the marks.
        let marks = unsafe { Marks::of(&raw mut info) };
        let slots: [AtomicPtr<Before>; Marks::COUNT] = Default::default();
        for (expected, slot) in slots.iter().enumerate() {
            assert_eq!(marks.place_of(slot), None);
            assert_eq!(marks.place_of(ptr::null()), Some(expected));
            marks.set(expected, slot);
        }
        assert_eq!(marks.place_of(ptr::null()), None);
        marks.set(2, ptr::null());
        assert_eq!(marks.place_of(&slots[2]), None);
        assert_eq!(marks.place_of(&slots[3]), Some(3));
        assert_eq!(marks.place_of(ptr::null()), Some(2));
    }
}
