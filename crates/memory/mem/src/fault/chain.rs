//! The signal handler's place among those of the program and of other libraries.
//!
//! Handlers form a chain: each one remembers the action that it replaced, and calls it for signals
//! that it does not handle. Three rules keep the chain free of loops.
//!
//! 1. A handler of ours that is installed is never removed. A handler that was installed above it
//!    goes on calling it.
//! 2. A handler of ours that was replaced is not installed again above the handler that replaced
//!    it: that one may call ours, and would be called by ours. Another function is installed
//!    there instead, the next *level*. Each level has one action before it.
//!
//!    ```text
//!      kernel ─► on_fault::<1> ─► a crash reporter ─► on_fault::<0> ─► first handler
//!    ```
//! 3. Other libraries can still tie a loop, for example one that installs its handler a second time
//!    above ours. So each level that passes a signal on is noted in the signal's own `siginfo_t`,
//!    and a level that is noted there passes it on to the action before the level below.
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

/// How often a handler can be installed above one that has replaced it, with no handler forgotten.
/// Two copies of this library that replace each other in turns fill [`Marks`] with four each.
const LEVELS: usize = 4;

static HANDLERS: [Handler; LEVELS] = [on_fault::<0>, on_fault::<1>, on_fault::<2>, on_fault::<3>];

/// The actions before each level, per signal. They are never freed: a handler in another thread
/// may be reading.
static BEFORE: [[AtomicPtr<Before>; LEVELS]; 2] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; LEVELS] }; 2];

/// An action that one of ours replaced.
struct Before {
    action: sigaction,
    /// Whether an action with `SA_RESETHAND` was called.
    is_spent: AtomicBool,
}

/// Makes a handler of ours the first of the chain, for both signals.
///
/// There is no lock, and each step may be repeated: a forked child finishes what another thread of
/// its parent had begun.
pub(super) fn install() -> io::Result<()> {
    (0..SIGNALS.len()).try_for_each(install_for)
}

fn install_for(which: usize) -> io::Result<()> {
    let signal = SIGNALS[which];
    let mut now = set(signal, None)?;
    // Goes round again only if another handler was installed between the two calls.
    while level_of(&now).is_none() {
        let level = level_above(which, &now);
        let replaced = set(signal, Some(&action_above(level, &now)))?;
        if is_same(&replaced, &now) {
            break;
        }
        if level_of(&replaced).is_some_and(|other| other != level) {
            // Another thread installed it meanwhile, above a handler that this level does not call.
            set(signal, Some(&replaced))?;
        }
        now = replaced;
    }
    Ok(())
}

/// The level whose handler calls `action`. Stores the action where it was not seen before.
fn level_above(which: usize, action: &sigaction) -> usize {
    let slots = &BEFORE[which];
    for (level, slot) in slots.iter().enumerate() {
        let mut known = slot.load(Ordering::Acquire);
        if known.is_null() {
            let new = Before::store(action);
            match slot.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return level,
                Err(other) => {
                    // SAFETY: stored a moment ago, and known to nothing else.
                    drop(unsafe { Box::from_raw(new) });
                    known = other;
                }
            }
        }
        // SAFETY: what is in a slot is never freed.
        let known = unsafe { &*known };
        if is_same(&known.action, action) {
            known.is_spent.store(false, Ordering::Relaxed);
            return level;
        }
    }
    // More handlers than levels: the newest takes the place of the one before it.
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
    // A handler runs on the stack that it asked for, since it is called on that of ours.
    if is_no_handler(before) || before.sa_flags & libc::SA_ONSTACK != 0 {
        action.sa_flags |= libc::SA_ONSTACK;
    }
    action
}

fn is_no_handler(action: &sigaction) -> bool {
    matches!(action.sa_sigaction, SIG_DFL | SIG_IGN)
}

/// Whether two actions do the same, on the same terms.
fn is_same(one: &sigaction, other: &sigaction) -> bool {
    one.sa_sigaction == other.sa_sigaction
        && one.sa_flags == other.sa_flags
        && signals_of(&one.sa_mask) == signals_of(&other.sa_mask)
}

/// The signals of a set that the kernel has written: it knows 64, and the C library has room for
/// more.
fn signals_of(set: &sigset_t) -> u64 {
    // SAFETY: the set begins with them.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

fn level_of(action: &sigaction) -> Option<usize> {
    HANDLERS.iter().position(|handler| *handler as *const () as usize == action.sa_sigaction)
}

/// Sets a signal's action if one is given. Returns the one before.
fn set(signal: c_int, action: Option<&sigaction>) -> io::Result<sigaction> {
    let mut before = MaybeUninit::uninit();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both point to a `sigaction` or are null; a handler that is set is one of ours, which
    // do only what a handler may.
    if unsafe { sigaction(signal, action, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction(2) succeeded and has written it.
    Ok(unsafe { before.assume_init() })
}

/// Calls nothing of the program for a fault of a copy, so it may interrupt anything.
unsafe extern "C" fn on_fault<const LEVEL: usize>(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: exactly what the kernel handed over.
    if !unsafe { handler::handle(signal, info, context) } {
        // SAFETY: as above.
        unsafe { pass_on(LEVEL, signal, info, context) };
    }
}

/// Does what would have happened without this handler.
///
/// # Safety
/// The arguments must be those of a signal handler.
unsafe fn pass_on(level: usize, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let slots = &BEFORE[usize::from(signal == SIGNALS[1])];
    // SAFETY: the kernel's.
    let marks = unsafe { Marks::of(info) };
    let next = slots[..=level].iter().rev().find(|slot| marks.place_of(*slot).is_none());
    let place = marks.place_of(ptr::null());
    match next.zip(place) {
        Some((slot, place)) => {
            marks.set(place, slot);
            // SAFETY: stored before the handler was installed, and never freed.
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

/// The levels that have passed a signal on, noted in its `siginfo_t`: of its 128 bytes the kernel
/// uses 48 and zeroes the others. So the notes end with the signal, also where a handler leaves by
/// `siglongjmp`, and need no memory of the thread, which a handler cannot rely on.
struct Marks(*mut [usize; Marks::COUNT]);

impl Marks {
    const COUNT: usize = 8;
    const OFFSET: usize = size_of::<siginfo_t>() - Self::COUNT * size_of::<usize>();

    /// # Safety
    /// `info` must be the kernel's, or a copy, and outlive the marks.
    unsafe fn of(info: *mut siginfo_t) -> Self {
        // SAFETY: within the structure, which is aligned for words.
        Self(unsafe { info.byte_add(Self::OFFSET) }.cast())
    }

    /// The first place where `slot` is noted; null is free.
    fn place_of(&self, slot: *const AtomicPtr<Before>) -> Option<usize> {
        // SAFETY: within the `siginfo_t`.
        unsafe { self.0.read() }.iter().position(|noted| *noted == slot.addr())
    }

    fn set(&self, place: usize, slot: *const AtomicPtr<Before>) {
        // SAFETY: as for reading; nothing else refers to it meanwhile.
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
        // SAFETY: a place in the context.
        let interrupted = unsafe { &raw const (*context.cast::<ucontext_t>()).uc_sigmask };
        // SAFETY: of the kernel's set there are 64 bits.
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
            // SAFETY: SA_SIGINFO says that it is a function of this type.
            let handler: Handler = unsafe { std::mem::transmute(action.sa_sigaction) };
            // SAFETY: it was installed to be called so.
            unsafe { handler(signal, info, context) };
        } else {
            // SAFETY: without SA_SIGINFO it is a function of this type.
            let handler: unsafe extern "C" fn(c_int) =
                unsafe { std::mem::transmute(action.sa_sigaction) };
            // SAFETY: it was installed to be called so.
            unsafe { handler(signal) };
        }
        change_mask(libc::SIG_SETMASK, masked);
    }
}

/// Changes the thread's signal mask. Returns the one before.
fn change_mask(how: c_int, signals: u64) -> u64 {
    let mut before = 0u64;
    // The system call, because the C library's sets are 16 times as long, and alternative stacks are
    // small. It cannot fail.
    // SAFETY: both point to sets of the kernel's size.
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

/// Does the default action, with the signal's own details in the core.
///
/// # Safety
/// The arguments must be those of a signal handler.
unsafe fn die(signal: c_int, info: *const siginfo_t) {
    // SAFETY: all zeros is the default action.
    let default: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let _ = set(signal, Some(&default));
    // It is pending until the handler returns. To wait for the instruction to fault again would not
    // do: the signal may have been sent, or another thread may map the page meanwhile.
    let process = std::process::id();
    // SAFETY: it only asks.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    // SAFETY: the signal's own details, sent to the thread itself.
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

    /// Guards that come and go must not take memory each time.
    #[test]
    fn an_action_that_is_found_again_is_not_stored_again() {
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
        // SAFETY: it changes a set of our own.
        unsafe { libc::sigaddset(&raw mut other.sa_mask, libc::SIGUSR2) };
        assert!(!is_same(&found, &other));
        assert!(is_same(&found, &found));
    }

    #[test]
    fn marks_are_cleared_one_by_one_and_have_an_end() {
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
