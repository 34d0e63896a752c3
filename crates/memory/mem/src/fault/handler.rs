//! The signal handler, which lets a copy continue after a fault.
#![expect(
    unsafe_code,
    reason = "reads the arguments of a signal handler, changes instruction pointers"
)]

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::{count, lookup, table};

/// A synchronous memory error, of the interrupted access (`asm-generic/siginfo.h`).
const BUS_MCEERR_AR: c_int = 4;
/// An asynchronous memory error, found elsewhere (`asm-generic/siginfo.h`).
const BUS_MCEERR_AO: c_int = 5;
/// An asynchronous tag check fault of Arm's MTE (`asm-generic/siginfo.h`).
const SEGV_MTEAERR: c_int = 8;

/// Resumes a copy that faulted. Returns `true` if the signal was such a fault.
///
/// This is for programs that handle SIGSEGV or SIGBUS themselves: call it first in the handler, and
/// return from the handler if it returns `true`. The thread then continues at the end of the copy.
/// If it returns `false`, nothing was changed and the signal is the program's: no guard lives, or
/// the signal was not caused by a copy of this crate.
///
/// The kernel may call a handler several times for one copy: after a fault, a copy continues byte
/// by byte to find the first byte that is missing.
///
/// It is async-signal-safe: it takes no lock, allocates no memory and makes no system call.
///
/// # Safety
/// The arguments must be the three that the kernel passed to a handler installed with `SA_SIGINFO`,
/// and the handler must run on the thread that received the signal.
///
/// # Examples
///
/// ```
/// use std::ptr;
///
/// use longshore_mem::copy::copy_bytes;
/// use longshore_mem::fault::{self, FaultGuard};
///
/// extern "C" fn on_fault(
///     signal: libc::c_int,
///     info: *mut libc::siginfo_t,
///     context: *mut libc::c_void,
/// ) {
///     // SAFETY: the kernel's arguments, on the thread that faulted.
///     if unsafe { fault::handle(signal, info, context) } {
///         return;
///     }
///     // SAFETY: abort may be called in a handler.
///     unsafe { libc::abort() }; // the program's own handling
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # if cfg!(miri) { return Ok(()) }
/// assert!(fault::never_install_handler(), "no guard was installed before");
/// // SAFETY: zeros are an action with an empty mask.
/// let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
/// action.sa_sigaction = on_fault as *const () as usize;
/// action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
/// for signal in [libc::SIGSEGV, libc::SIGBUS] {
///     // SAFETY: the action is valid, and its handler is async-signal-safe.
///     assert_eq!(unsafe { libc::sigaction(signal, &action, ptr::null_mut()) }, 0);
/// }
///
/// let _guard = FaultGuard::install()?;
/// let mut target = [0; 64];
/// // SAFETY: nothing is mapped there, which a copy survives under a guard.
/// let copied =
///     unsafe { copy_bytes(ptr::without_provenance(64), target.as_mut_ptr(), target.len()) };
/// assert_eq!(copied.unwrap_err().done_bytes, 0);
/// # Ok(())
/// # }
/// ```
pub unsafe fn handle(signal: c_int, info: *const siginfo_t, context: *mut c_void) -> bool {
    if !count::is_guarded() {
        return false;
    }
    let context = context.cast::<ucontext_t>();
    // SAFETY: the kernel's, by the caller's promise.
    let Some(what) = (unsafe { Description::of(signal, info) }) else { return false };
    // SAFETY: as above.
    let instruction = unsafe { registers::instruction(context) };
    let Some(resume) = lookup::resume_of(instruction) else { return false };
    // SAFETY: as above; by its entry in the table, the block expects to be resumed there.
    unsafe { registers::resume(context, resume, what.address, what.cause) };
    true
}

/// Returns `true` if a signal was sent, and not raised by the instruction that it interrupted.
///
/// # Safety
/// `info` must come from the kernel.
pub(super) unsafe fn was_sent(signal: c_int, info: *const siginfo_t) -> bool {
    // SAFETY: valid by the caller's promise.
    let code = unsafe { (*info).si_code };
    code <= 0
        || matches!((signal, code), (libc::SIGBUS, BUS_MCEERR_AO) | (libc::SIGSEGV, SEGV_MTEAERR))
}

/// A fault, as the table encodes it.
struct Description {
    address: usize,
    cause: usize,
}

impl Description {
    /// Describes the fault of the interrupted instruction. Returns `None` for a signal that was
    /// sent.
    ///
    /// # Safety
    /// `info` must come from the kernel.
    unsafe fn of(signal: c_int, info: *const siginfo_t) -> Option<Self> {
        /// `si_addr_lsb` follows `si_addr`: both architectures have three `int`s and padding before
        /// it.
        const ADDRESS_LSB_OFFSET: usize = 24;
        // SAFETY: the caller's promise.
        if unsafe { was_sent(signal, info) } {
            return None;
        }
        // SAFETY: valid by the caller's promise.
        let info = unsafe { &*info };
        // SAFETY: both signals carry an address.
        let address = unsafe { info.si_addr() }.addr();
        match (signal, info.si_code) {
            (libc::SIGBUS, BUS_MCEERR_AR) => {
                // SAFETY: the field lies within the structure, which is 128 bytes.
                let lsb = unsafe { (&raw const *info).byte_add(ADDRESS_LSB_OFFSET) };
                // SAFETY: written by the kernel for this code; an i16 at an even address.
                let lsb = unsafe { lsb.cast::<i16>().read() };
                let page = 1usize.checked_shl(u32::from(lsb.unsigned_abs())).unwrap_or(1);
                Some(Self { address: address & !(page - 1), cause: table::POISONED })
            }
            (libc::SIGBUS, _) => Some(Self { address, cause: table::NOT_BACKED }),
            (libc::SIGSEGV, _) => Some(Self { address, cause: table::NOT_MAPPED }),
            _ => None,
        }
    }
}

/// The interrupted registers. There is no reference to the whole `ucontext_t`, because that of the
/// kernel is shorter than that of the C library.
#[cfg(target_arch = "x86_64")]
mod registers {
    use libc::{REG_EFL, REG_RAX, REG_RDX, REG_RIP, ucontext_t};

    const DIRECTION_FLAG: i64 = 1 << 10;

    /// # Safety
    /// The context must be that of a signal handler.
    pub(super) unsafe fn instruction(context: *const ucontext_t) -> usize {
        // SAFETY: the caller's promise.
        let registers = unsafe { &(*context).uc_mcontext.gregs };
        registers[REG_RIP as usize] as usize
    }

    /// # Safety
    /// The context must be that of a signal handler, interrupted in a block that is resumed at
    /// `at`.
    pub(super) unsafe fn resume(context: *mut ucontext_t, at: usize, address: usize, cause: usize) {
        // SAFETY: the caller's promise; no other code accesses it while the handler runs.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        registers[REG_RIP as usize] = at as i64;
        registers[REG_RAX as usize] = address as i64;
        registers[REG_RDX as usize] = cause as i64;
        registers[REG_EFL as usize] &= !DIRECTION_FLAG;
    }
}

/// The interrupted registers, as for x86-64.
#[cfg(target_arch = "aarch64")]
mod registers {
    use libc::ucontext_t;

    /// # Safety
    /// The context must be that of a signal handler.
    pub(super) unsafe fn instruction(context: *const ucontext_t) -> usize {
        // SAFETY: the caller's promise.
        unsafe { (*context).uc_mcontext.pc as usize }
    }

    /// # Safety
    /// The context must be that of a signal handler, interrupted in a block that is resumed at
    /// `at`.
    pub(super) unsafe fn resume(context: *mut ucontext_t, at: usize, address: usize, cause: usize) {
        // SAFETY: the caller's promise; no other code accesses it while the handler runs.
        let registers = unsafe { &mut (*context).uc_mcontext };
        registers.pc = at as u64;
        registers.regs[0] = address as u64;
        registers.regs[1] = cause as u64;
    }
}
