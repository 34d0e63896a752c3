//! The seccomp filter, and the signal handler that ends the program at a call that the filter does not
//! permit.
#![expect(unsafe_code, reason = "handles a signal, and ends the program at once")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use longshore::mem::Granule;
use longshore_sys::mapping::{Access, Mapping};
use seccompiler::{SeccompAction, SeccompFilter, SeccompRule, TargetArch};

use crate::call::Call;

/// The exit status of a program that made a call that its filter does not permit.
pub(crate) const TRAPPED: i32 = 77;

/// The number of words in the report of such a call: the call number and six arguments.
pub(crate) const REPORT_WORDS: usize = 7;
/// The word of a report that is set when the phase is over.
const OVER_WORD: usize = REPORT_WORDS;
/// The length of the report's file.
const REPORT_BYTES: u64 = ((REPORT_WORDS + 1) * size_of::<u64>()) as u64;

/// The report, in a mapped file. The handler cannot write to a descriptor, because some threads have a
/// descriptor table of their own.
static REPORT: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// `true` once a thread writes the report.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Creates the file of the report, and maps it.
pub(crate) fn report_to(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(REPORT_BYTES)?;
    let mapping = Mapping::of_file(&file, REPORT_BYTES, Granule::SIZE_4K, Access::ReadWrite)?;
    REPORT.store(mapping.start().as_ptr().cast(), Ordering::Release);
    std::mem::forget(mapping);
    Ok(())
}

/// The report of a program.
pub(crate) struct Report {
    /// The call that its filter does not permit: its number and its arguments.
    pub(crate) words: [u64; REPORT_WORDS],
    /// `true` if the first thread has reached the end of the phase.
    pub(crate) is_over: bool,
}

pub(crate) fn read_report(path: &Path) -> io::Result<Report> {
    let bytes = fs::read(path)?;
    let word = |at: usize| {
        let bytes = bytes.get(at * size_of::<u64>()..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    let words = std::array::from_fn(|at| word(at).unwrap_or(0));
    Ok(Report { words, is_over: word(OVER_WORD).is_some_and(|word| word != 0) })
}

fn report_word(at: usize) -> &'static AtomicU64 {
    let report = REPORT.load(Ordering::Acquire);
    // SAFETY: `at` is below the number of words of the file, which stays mapped.
    unsafe { &*report.wrapping_add(at) }
}

/// Reports that the phase is over, and waits for the test to kill the process. It does not exit,
/// because other threads may still be at work.
pub(crate) fn finish() -> ! {
    report_word(OVER_WORD).store(1, Ordering::Release);
    loop {
        // SAFETY: it only waits.
        unsafe { libc::pause() };
    }
}

/// Installs a filter on all threads of this process. It permits these calls; any other call ends the
/// program with a report.
pub(crate) fn install(permitted: &BTreeSet<Call>) -> Result<(), String> {
    handle_traps();
    let mut rules = BTreeMap::<i64, Vec<SeccompRule>>::new();
    for call in permitted {
        let of_number = rules.entry(call.number).or_default();
        of_number.extend(call.rule());
    }
    // An empty list matches every call of the number.
    for call in permitted.iter().filter(|call| call.rule().is_none()) {
        rules.insert(call.number, Vec::new());
    }
    let (otherwise, matched) = (SeccompAction::Trap, SeccompAction::Allow);
    let filter = SeccompFilter::new(rules, otherwise, matched, TargetArch::x86_64);
    let program = filter.and_then(seccompiler::BpfProgram::try_from);
    let program = program.map_err(|error| format!("the filter cannot be compiled: {error}"))?;
    seccompiler::apply_filter_all_threads(&program)
        .map_err(|error| format!("the filter cannot be installed: {error}"))
}

/// Ends the process at once, even while its other threads run.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: no cleanup is needed, because nothing of this process is kept.
    unsafe { libc::_exit(status) }
}

/// Ends the process with SIGALRM if it hangs.
pub(crate) fn limit_time() {
    const SECONDS: u32 = 60;
    // SAFETY: it only sets a timer.
    unsafe { libc::alarm(SECONDS) };
}

fn handle_traps() {
    // SAFETY: all zeros are a valid value: no flags, an empty mask, the default action.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction =
        report as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler calls only async-signal-safe functions, and never returns.
    let set = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) };
    assert_eq!(set, 0, "SIGSYS can be handled");
}

extern "C" fn report(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with `SA_SIGINFO` the registers of the thread.
    let registers = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let order = [
        libc::REG_RAX,
        libc::REG_RDI,
        libc::REG_RSI,
        libc::REG_RDX,
        libc::REG_R10,
        libc::REG_R8,
        libc::REG_R9,
    ];
    if IS_REPORTED.swap(true, Ordering::AcqRel) {
        // Another thread writes the report, and ends the process.
        loop {
            std::hint::spin_loop();
        }
    }
    for (at, register) in order.into_iter().enumerate() {
        report_word(at).store(registers[register as usize] as u64, Ordering::Relaxed);
    }
    exit(TRAPPED)
}

/// Replaces the function of the C library, to keep SIGSYS unblocked: some threads of Longshore block all
/// signals, and if SIGSYS is blocked, the kernel kills the process without calling the handler.
#[unsafe(no_mangle)]
extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    /// The size of the kernel's signal set, which has a bit for each signal.
    const SET_BYTES: usize = 8;
    let wanted = (!set.is_null()).then(|| {
        // SAFETY: the caller passes a valid `sigset_t`, whose first word is the kernel's set.
        let set = unsafe { set.cast::<u64>().read() };
        if how == libc::SIG_UNBLOCK { set } else { set & !(1 << (libc::SIGSYS - 1)) }
    });
    let set = wanted.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: each set is null or valid, as the caller promises.
    let set = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, SET_BYTES) };
    if set == 0 { 0 } else { libc::EINVAL }
}
