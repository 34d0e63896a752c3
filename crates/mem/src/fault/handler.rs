//! The signal handler, and its place among others.
#![expect(unsafe_code, reason = "installs a signal handler and moves instruction pointers")]

use std::boxed::Box;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_void, sigaction, siginfo_t, sigismember, ucontext_t};

use super::{lookup, table};

/// The signals of a memory access that failed.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What was installed before, per signal. Never freed: a handler in another thread may be reading. So
/// one that is found again is kept, and not stored anew for each first guard.
static BEFORE: [AtomicPtr<sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// How many guards live.
static GUARDS: Mutex<usize> = Mutex::new(0);

/// Counts one guard more, and installs the handler for the first.
pub(super) fn acquire() -> io::Result<()> {
    if cfg!(miri) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "Miri has no signals"));
    }
    let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    if *guards == 0 {
        install(0)?;
        if let Err(error) = install(1) {
            remove(0);
            return Err(error);
        }
    }
    *guards += 1;
    Ok(())
}

/// Counts one guard less, and removes the handler with the last.
pub(super) fn release() {
    let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    *guards -= 1;
    if *guards == 0 {
        (0..SIGNALS.len()).for_each(remove);
    }
}

fn install(which: usize) -> io::Result<()> {
    let before = set(SIGNALS[which], None)?;
    if is_ours(&before) {
        // Left there because somebody else's handler was above it, and is gone by now.
        return Ok(());
    }
    // Stored first: from the moment it is installed the handler may be called.
    remember(which, before);
    // SAFETY: all zeros is a `sigaction` with an empty mask and no flags.
    let mut action: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_fault as *const () as usize;
    // Of the signals before, ONSTACK is what stack-overflow handlers need of everyone.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (before.sa_flags & libc::SA_RESTART);
    let replaced = set(SIGNALS[which], Some(&action))?;
    if replaced.sa_sigaction != before.sa_sigaction {
        remember(which, replaced);
    }
    Ok(())
}

/// Puts back what was there, unless somebody has put another handler above ours: that one goes on
/// calling ours, which passes on what it does not know.
fn remove(which: usize) {
    let before = BEFORE[which].load(Ordering::Acquire);
    let is_on_top = set(SIGNALS[which], None).is_ok_and(|now| is_ours(&now));
    if is_on_top && !before.is_null() {
        // SAFETY: what `remember` stored is never freed.
        let before = unsafe { &*before };
        // It was accepted once; where it is refused now, ours stays and passes on.
        let _ = set(SIGNALS[which], Some(before));
    }
}

fn remember(which: usize, action: sigaction) {
    let known = BEFORE[which].load(Ordering::Acquire);
    // SAFETY: null, or what was stored below and is never freed.
    if unsafe { known.as_ref() }.is_none_or(|known| !is_same(known, &action)) {
        BEFORE[which].store(Box::into_raw(Box::new(action)), Ordering::Release);
    }
}

/// Whether two actions do the same, on the same terms.
fn is_same(one: &sigaction, other: &sigaction) -> bool {
    // SAFETY: it reads a set that the kernel has written.
    let masks = |signal| [one, other].map(|action| unsafe { sigismember(&action.sa_mask, signal) });
    one.sa_sigaction == other.sa_sigaction
        && one.sa_flags == other.sa_flags
        && (1..=libc::SIGRTMAX()).all(|signal| {
            let [one, other] = masks(signal);
            one == other
        })
}

fn is_ours(action: &sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// Sets a signal's action where one is given; the one before.
fn set(signal: c_int, action: Option<&sigaction>) -> io::Result<sigaction> {
    let mut before = MaybeUninit::uninit();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both point to a `sigaction` or are null; a handler set is `on_fault`, which does only
    // what a handler may, or one that was installed before.
    if unsafe { sigaction(signal, action, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction(2) succeeded and has written it.
    Ok(unsafe { before.assume_init() })
}

/// Calls nothing but itself for a fault of the table, so it may interrupt anything.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid `siginfo_t`.
    let what = unsafe { Description::of(signal, info) };
    // SAFETY: and a `ucontext_t`, which nobody else looks at while the handler runs.
    let context_of_fault = unsafe { &mut *context.cast::<ucontext_t>() };
    if let Some(what) = what
        && let Some(resume) = lookup::resume_of(registers::instruction(context_of_fault))
    {
        registers::resume(context_of_fault, resume, what.address, what.cause);
        return;
    }
    // SAFETY: exactly what the kernel handed over.
    unsafe { pass_on(signal, info, context) };
}

/// A fault, in the numbers of the table.
struct Description {
    address: usize,
    cause: usize,
}

impl Description {
    /// None for a signal that somebody sent and no instruction caused, and for a memory error that
    /// was found elsewhere.
    ///
    /// # Safety
    /// `info` must be the kernel's.
    unsafe fn of(signal: c_int, info: *const siginfo_t) -> Option<Self> {
        /// Linux's `asm-generic/siginfo.h`.
        const BUS_MCEERR_AR: c_int = 4;
        const BUS_MCEERR_AO: c_int = 5;
        /// `si_addr_lsb` follows `si_addr`, in both places after three `int`s and padding.
        const ADDRESS_LSB_OFFSET: usize = 24;
        // SAFETY: valid by the caller's promise.
        let info = unsafe { &*info };
        if info.si_code <= 0 {
            return None;
        }
        // SAFETY: both signals carry an address.
        let address = unsafe { info.si_addr() }.addr();
        match (signal, info.si_code) {
            (libc::SIGBUS, BUS_MCEERR_AO) => None,
            (libc::SIGBUS, BUS_MCEERR_AR) => {
                // SAFETY: the field lies within the structure, which is 128 bytes.
                let lsb = unsafe { (&raw const *info).byte_add(ADDRESS_LSB_OFFSET) };
                // SAFETY: written by the kernel for this code; an i16 at an even address.
                let lsb = unsafe { lsb.cast::<i16>().read() };
                let page = 1usize.checked_shl(u32::from(lsb.unsigned_abs())).unwrap_or(1);
                Some(Self { address: address & !(page - 1), cause: table::POISONED })
            }
            (libc::SIGBUS, _) => Some(Self { address, cause: table::NOT_BACKED }),
            _ => Some(Self { address, cause: table::NOT_MAPPED }),
        }
    }
}

/// Does what would have happened without this handler.
///
/// # Safety
/// The arguments must be those of a signal handler.
unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let which = usize::from(signal == SIGNALS[1]);
    let before = BEFORE[which].load(Ordering::Acquire);
    if before.is_null() {
        // Never: it was stored before the handler was installed.
        // SAFETY: abort may be called anywhere.
        unsafe { libc::abort() };
    }
    // SAFETY: what `remember` stored is never freed.
    let before = unsafe { &*before };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: see above; the kernel's own.
            let was_sent = unsafe { (*info).si_code } <= 0;
            if was_sent && before.sa_sigaction == libc::SIG_IGN {
                return;
            }
            // SAFETY: all zeros is the default action.
            let default: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            let _ = set(signal, Some(&default));
            if was_sent {
                // SAFETY: raise may be called in a handler; it is delivered on return.
                unsafe { libc::raise(signal) };
            }
            // Otherwise the instruction faults again on return, and the process dies of it with a
            // core that shows the place.
        }
        handler => {
            let mut masked = MaybeUninit::uninit();
            // SAFETY: both masks are valid; pthread_sigmask may be called in a handler.
            unsafe {
                libc::pthread_sigmask(
                    libc::SIG_BLOCK,
                    &raw const before.sa_mask,
                    masked.as_mut_ptr(),
                )
            };
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                type Full = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                // SAFETY: SA_SIGINFO says that it is a function of this type.
                let handler: Full = unsafe { std::mem::transmute(handler) };
                // SAFETY: it was installed to be called so.
                unsafe { handler(signal, info, context) };
            } else {
                // SAFETY: without SA_SIGINFO it is a function of this type.
                let handler: unsafe extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                // SAFETY: it was installed to be called so.
                unsafe { handler(signal) };
            }
            // SAFETY: written by the first call; it restores what that call changed.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, masked.as_ptr(), ptr::null_mut()) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use libc::{REG_EFL, REG_RAX, REG_RDX, REG_RIP, ucontext_t};

    const DIRECTION_FLAG: i64 = 1 << 10;

    pub(super) fn instruction(context: &ucontext_t) -> usize {
        context.uc_mcontext.gregs[REG_RIP as usize] as usize
    }

    pub(super) fn resume(context: &mut ucontext_t, at: usize, address: usize, cause: usize) {
        let registers = &mut context.uc_mcontext.gregs;
        registers[REG_RIP as usize] = at as i64;
        registers[REG_RAX as usize] = address as i64;
        registers[REG_RDX as usize] = cause as i64;
        registers[REG_EFL as usize] &= !DIRECTION_FLAG;
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use libc::ucontext_t;

    pub(super) fn instruction(context: &ucontext_t) -> usize {
        context.uc_mcontext.pc as usize
    }

    pub(super) fn resume(context: &mut ucontext_t, at: usize, address: usize, cause: usize) {
        context.uc_mcontext.pc = at as u64;
        context.uc_mcontext.regs[0] = address as u64;
        context.uc_mcontext.regs[1] = cause as u64;
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Guards that come and go must not take memory each time.
    #[test]
    fn an_action_that_is_found_again_is_not_stored_again() {
        let guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        let found = set(SIGNALS[1], None).unwrap();
        assert!(*guards == 0 && !is_ours(&found), "no other test of this program has a guard");
        remember(1, found);
        let stored = BEFORE[1].load(Ordering::Acquire);
        remember(1, found);
        assert_eq!(BEFORE[1].load(Ordering::Acquire), stored);
        let mut other = found;
        other.sa_flags ^= libc::SA_RESTART;
        assert!(!is_same(&found, &other));
        other = found;
        // SAFETY: it changes a set of our own.
        unsafe { libc::sigaddset(&mut other.sa_mask, libc::SIGUSR2) };
        assert!(!is_same(&found, &other));
        assert!(is_same(&found, &found));
    }
}
