//! The signal handlers of the fault guard together with those of a program. Each scenario has a
//! process of its own, because a signal has one action per process.
#![cfg(not(miri))]
#![expect(unsafe_code, reason = "installs signal handlers and faults")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;

use libc::{c_int, c_void, sigaction, siginfo_t};
use longshore_mem::copy::copy_bytes;
use longshore_mem::fault::{self, FaultGuard};

const PAGE: usize = 4096;
const SCENARIO: &str = "LONGSHORE_HANDLERS_TEST";
const HOLDS: &str = "the scenario holds";
/// Kills a scenario that hangs.
const WATCHDOG_SECONDS: u32 = 60;

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Runs the scenario of one of the tests below, in the process that the test starts. It does
/// nothing in an ordinary run.
#[test]
fn scenario() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    // SAFETY: it sets a timer.
    unsafe { libc::alarm(WATCHDOG_SECONDS) };
    match name.as_str() {
        "below ours" => handlers_below_ours_are_called(),
        "calls ours" => handlers_above_ours_may_call_it(),
        "restores ours" => handlers_above_ours_may_restore_it(),
        "ignores ours" => handlers_above_ours_may_ignore_it(),
        "comes back above ours" => handlers_may_come_back_above_ours(),
        "many" => many_handlers_replace_ours(),
        "own handler" => a_program_calls_handle_itself(),
        "own handler, too late" => a_program_decides_too_late(),
        "masks" => handlers_have_their_masks(),
        "stacks" => handlers_have_their_stacks(),
        "one argument" => handlers_without_siginfo_are_called(),
        "ignored" => ignored_signals_stay_ignored(),
        "reset" => a_handler_is_reset(),
        "ignored fault" => an_ignored_fault_is_fatal(),
        "memory error" => a_memory_error_elsewhere_is_fatal(),
        "fork" => guards_in_forked_children(),
        other => panic!("no such scenario: {other}"),
    }
    println!("{HOLDS}");
}

mod processes {
    use super::*;

    fn run(scenario: &str) -> Output {
        Command::new(std::env::current_exe().unwrap())
            .args(["scenario", "--exact", "--nocapture", "--test-threads=1"])
            .env(SCENARIO, scenario)
            .output()
            .unwrap()
    }

    fn assert_holds(scenario: &str) {
        let output = run(scenario);
        let words = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let holds = output.status.success() && words.contains(HOLDS);
        assert!(holds, "{scenario}: {}: {words}{errors}", output.status);
    }

    fn assert_dies_of(scenario: &str, signal: c_int) -> String {
        let output = run(scenario);
        let words = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let status = output.status;
        assert_eq!(status.signal(), Some(signal), "{scenario}: {status}: {words}{errors}");
        words.into_owned()
    }

    #[test]
    fn handlers_below_ours_are_called_for_other_faults() {
        assert_holds("below ours");
    }

    #[test]
    fn handlers_above_ours_may_call_it() {
        assert_holds("calls ours");
    }

    #[test]
    fn handlers_above_ours_may_restore_it() {
        assert_holds("restores ours");
    }

    #[test]
    fn handlers_above_ours_may_ignore_it() {
        assert_holds("ignores ours");
    }

    #[test]
    fn handlers_may_come_back_above_ours() {
        assert_holds("comes back above ours");
    }

    #[test]
    fn many_handlers_may_replace_ours() {
        assert_holds("many");
    }

    #[test]
    fn a_program_may_call_handle_itself() {
        assert_holds("own handler");
    }

    #[test]
    fn a_program_that_decides_after_the_first_guard_is_refused() {
        assert_holds("own handler, too late");
    }

    #[test]
    fn handlers_run_with_the_signal_masks_that_they_asked_for() {
        assert_holds("masks");
    }

    #[test]
    fn handlers_run_on_the_stacks_that_they_asked_for() {
        assert_holds("stacks");
    }

    #[test]
    fn handlers_without_siginfo_are_called() {
        assert_holds("one argument");
    }

    #[test]
    fn a_handler_with_resethand_is_called_once() {
        let words = assert_dies_of("reset", libc::SIGSEGV);
        assert_eq!(words.matches("logged").count(), 1, "{words}");
    }

    #[test]
    fn only_signals_that_were_sent_are_ignored() {
        assert_holds("ignored");
        assert_dies_of("ignored fault", libc::SIGSEGV);
    }

    #[test]
    fn an_asynchronous_memory_error_is_fatal_by_default() {
        assert_dies_of("memory error", libc::SIGBUS);
    }

    #[test]
    fn forked_children_can_install_guards() {
        assert_holds("fork");
    }
}

/// The number of faults that the first handler repaired.
static REPAIRED: AtomicUsize = AtomicUsize::new(0);
/// The number of calls of the handler above ours.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// The action that the handler above ours replaced.
static mut PREVIOUS: Option<sigaction> = None;

/// Makes the page accessible, as the handler of a garbage collector or a VMM would.
extern "C" fn repairs(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    REPAIRED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel's `siginfo_t`.
    let info = unsafe { &*info };
    // SAFETY: the tests pass on memory faults only.
    let address = unsafe { info.si_addr() };
    let page = address.map_addr(|address| address & !(PAGE - 1));
    // SAFETY: makes the inaccessible page of a test accessible.
    if unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        // SAFETY: it may be called in a handler.
        unsafe { libc::_exit(77) };
    }
}

extern "C" fn calls_the_previous(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: written before the tests fault.
    let previous = unsafe { PREVIOUS }.unwrap();
    // SAFETY: the tests install it above handlers with SA_SIGINFO only.
    let previous: Handler = unsafe { std::mem::transmute(previous.sa_sigaction) };
    previous(signal, info, context);
}

extern "C" fn restores_the_previous(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: written before the tests fault.
    let previous = unsafe { PREVIOUS }.unwrap();
    // SAFETY: it was installed before.
    unsafe { sigaction(signal, &previous, ptr::null_mut()) };
}

/// Repairs the faults that it is called for, and never calls the handler that it replaced.
extern "C" fn passes_nothing_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    repairs(signal, info, context);
}

fn action(handler: Handler, flags: c_int) -> sigaction {
    // SAFETY: zeros are an action with an empty mask.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    action
}

fn set(signal: c_int, action: &sigaction) -> sigaction {
    // SAFETY: zeros are an action.
    let mut before: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid.
    assert_eq!(unsafe { sigaction(signal, action, &raw mut before) }, 0);
    before
}

fn install(handler: Handler) -> sigaction {
    set(libc::SIGSEGV, &action(handler, libc::SA_ONSTACK))
}

fn installed(signal: c_int) -> sigaction {
    // SAFETY: zeros are an action.
    let mut now: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads the action.
    assert_eq!(unsafe { sigaction(signal, ptr::null(), &raw mut now) }, 0);
    now
}

/// Installs a handler, and remembers the action that it replaced.
fn replace_with(handler: Handler) {
    let before = install(handler);
    if before.sa_sigaction != handler as *const () as usize {
        // SAFETY: no other thread of the scenario accesses it.
        unsafe { PREVIOUS = Some(before) };
    }
}

fn forbidden_page() -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

/// Faults outside of the copies of this crate.
fn fault() {
    // SAFETY: the page is the test's own; the handlers make it accessible.
    unsafe { forbidden_page().write_volatile(1) };
}

/// Returns `true` if a fault of a copy is returned as an error, instead of being passed to a
/// handler.
fn copy_survives() -> bool {
    let mut target = [0; 100];
    // SAFETY: the target is valid; the source faults, under a guard or with a handler that repairs.
    let copied = unsafe { copy_bytes(forbidden_page(), target.as_mut_ptr(), target.len()) };
    copied.is_err_and(|stop| stop.done_bytes == 0)
}

fn count(of: &AtomicUsize) -> usize {
    of.load(Ordering::Relaxed)
}

fn handlers_below_ours_are_called() {
    install(repairs);
    let (first, second) = (FaultGuard::install().unwrap(), FaultGuard::install().unwrap());
    assert!(copy_survives());
    assert_eq!(count(&REPAIRED), 0);
    fault();
    assert_eq!(count(&REPAIRED), 1);
    drop(first);
    assert!(copy_survives());
    drop(second);
    assert!(!copy_survives(), "the first handler repairs without a guard");
    fault();
    assert_eq!(count(&REPAIRED), 3);
    // The kernel still calls our handler, which calls the first one.
    let handler = installed(libc::SIGSEGV).sa_sigaction;
    assert_ne!(handler, repairs as *const () as usize);
    let _guard = FaultGuard::install().unwrap();
    assert_eq!(installed(libc::SIGSEGV).sa_sigaction, handler);
    assert!(copy_survives());
}

fn handlers_above_ours_may_call_it() {
    install(repairs);
    let guard = FaultGuard::install().unwrap();
    replace_with(calls_the_previous);
    assert!(copy_survives());
    assert!(count(&CALLS) > 0 && count(&REPAIRED) == 0);
    drop(guard);
    for round in 1..=10 {
        let guard = FaultGuard::install().unwrap();
        let calls = count(&CALLS);
        fault();
        assert_eq!((count(&CALLS), count(&REPAIRED)), (calls + 1, 2 * round - 1));
        assert!(copy_survives(), "round {round}");
        drop(guard);
        assert!(!copy_survives(), "the first handler repairs without a guard");
        assert_eq!(count(&REPAIRED), 2 * round);
    }
}

fn handlers_above_ours_may_restore_it() {
    install(repairs);
    drop(FaultGuard::install().unwrap());
    replace_with(restores_the_previous);
    let _guard = FaultGuard::install().unwrap();
    assert!(copy_survives());
    assert_eq!((count(&CALLS), count(&REPAIRED)), (0, 0));
    fault();
    assert_eq!((count(&CALLS), count(&REPAIRED)), (1, 1));
    assert!(copy_survives());
    fault();
    assert_eq!((count(&CALLS), count(&REPAIRED)), (1, 2), "it has removed itself");
}

fn handlers_above_ours_may_ignore_it() {
    let first = FaultGuard::install().unwrap();
    install(passes_nothing_on);
    assert!(!copy_survives(), "no guard was installed since");
    assert_eq!(count(&CALLS), 1);
    let second = FaultGuard::install().unwrap();
    assert!(copy_survives());
    drop((first, second));
    install(passes_nothing_on);
    let _third = FaultGuard::install().unwrap();
    assert!(copy_survives());
    assert_eq!(count(&CALLS), 1);
    fault();
    assert_eq!(count(&CALLS), 2);
}

fn handlers_may_come_back_above_ours() {
    install(repairs);
    for round in 1..=20 {
        let guard = FaultGuard::install().unwrap();
        assert!(copy_survives(), "round {round}");
        let calls = count(&CALLS);
        fault();
        assert_eq!(count(&REPAIRED), 2 * round - 1, "the first handler is reached");
        assert!(count(&CALLS) - calls <= 2, "there is no endless loop");
        drop(guard);
        // Installed once more, it has forgotten which handler it replaced at first.
        replace_with(calls_the_previous);
        fault();
        assert_eq!(count(&REPAIRED), 2 * round);
    }
}

fn many_handlers_replace_ours() {
    install(repairs);
    drop(FaultGuard::install().unwrap());
    for (round, signal) in (libc::SIGRTMIN()..libc::SIGRTMIN() + 10).enumerate() {
        // A different mask makes it a different action.
        let mut other = action(calls_the_previous, libc::SA_ONSTACK);
        // SAFETY: it changes a private set.
        unsafe { libc::sigaddset(&raw mut other.sa_mask, signal) };
        // SAFETY: no other thread of the scenario accesses it.
        unsafe { PREVIOUS = Some(set(libc::SIGSEGV, &other)) };
        let _guard = FaultGuard::install().unwrap();
        assert!(copy_survives(), "round {round}");
        fault();
        assert_eq!(count(&REPAIRED), round + 1, "the first handler is reached");
    }
}

extern "C" fn calls_handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel's arguments.
    if !unsafe { fault::handle(signal, info, context) } {
        repairs(signal, info, context);
    }
}

fn a_program_calls_handle_itself() {
    assert!(fault::never_install_handler());
    assert!(fault::never_install_handler(), "the same answer again");
    let before = installed(libc::SIGBUS);
    install(calls_handle);
    assert!(!copy_survives(), "no guard yet");
    assert_eq!((count(&CALLS), count(&REPAIRED)), (1, 1));
    let guard = FaultGuard::install().unwrap();
    assert_eq!(installed(libc::SIGSEGV).sa_sigaction, calls_handle as *const () as usize);
    assert_eq!(installed(libc::SIGBUS).sa_sigaction, before.sa_sigaction);
    assert!(copy_survives());
    assert!(count(&CALLS) > 1 && count(&REPAIRED) == 1);
    fault();
    assert_eq!(count(&REPAIRED), 2);
    drop(guard);
    assert!(!copy_survives());
    assert_eq!(count(&REPAIRED), 3);
}

fn a_program_decides_too_late() {
    drop(FaultGuard::install().unwrap());
    assert!(!fault::never_install_handler());
    // Guards still install the handler of this crate above others.
    install(repairs);
    let _guard = FaultGuard::install().unwrap();
    assert_ne!(installed(libc::SIGSEGV).sa_sigaction, repairs as *const () as usize);
    assert!(copy_survives());
    assert_eq!(count(&REPAIRED), 0);
    assert!(!fault::never_install_handler());
}

/// The signals of [`ASKED`] that were blocked while the handler ran, as bits.
static BLOCKED: AtomicI32 = AtomicI32::new(0);
const ASKED: [c_int; 3] = [libc::SIGSEGV, libc::SIGUSR1, libc::SIGUSR2];

fn blocked() -> i32 {
    // SAFETY: zeros are an empty set.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask) };
    // SAFETY: a valid set.
    let has = |signal| unsafe { libc::sigismember(&raw const mask, signal) };
    ASKED.iter().enumerate().map(|(bit, signal)| has(*signal) << bit).sum()
}

extern "C" fn notes_its_mask(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    BLOCKED.store(blocked(), Ordering::Relaxed);
    repairs(signal, info, context);
}

fn handlers_have_their_masks() {
    let _guard = FaultGuard::install().unwrap();
    for (flags, masked, expected) in [
        (0, None, 0b001),
        (0, Some(libc::SIGUSR2), 0b101),
        (libc::SA_NODEFER, None, 0b000),
        (libc::SA_NODEFER, Some(libc::SIGUSR1), 0b010),
        (libc::SA_NODEFER, Some(libc::SIGSEGV), 0b001),
    ] {
        let mut theirs = action(notes_its_mask, flags);
        if let Some(signal) = masked {
            // SAFETY: it changes a private set.
            unsafe { libc::sigaddset(&raw mut theirs.sa_mask, signal) };
        }
        set(libc::SIGSEGV, &theirs);
        fault();
        assert_eq!(BLOCKED.swap(-1, Ordering::Relaxed), expected, "by the kernel");
        let _guard = FaultGuard::install().unwrap();
        assert_ne!(installed(libc::SIGSEGV).sa_sigaction, theirs.sa_sigaction);
        fault();
        assert_eq!(BLOCKED.swap(-1, Ordering::Relaxed), expected, "{flags:#x}, {masked:?}");
        assert_eq!(blocked(), 0, "no signal stays blocked");
    }
}

static WAS_ON_ALTERNATIVE_STACK: AtomicBool = AtomicBool::new(false);

extern "C" fn notes_its_stack(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: zeros are a description of a stack.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads the description of the stack.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    let is_on_it = stack.ss_flags & libc::SS_ONSTACK != 0;
    WAS_ON_ALTERNATIVE_STACK.store(is_on_it, Ordering::Relaxed);
    repairs(signal, info, context);
}

fn handlers_have_their_stacks() {
    // Rust's standard library gives its threads an alternate signal stack.
    for flags in [0, libc::SA_ONSTACK] {
        set(libc::SIGSEGV, &action(notes_its_stack, flags));
        fault();
        assert_eq!(WAS_ON_ALTERNATIVE_STACK.load(Ordering::Relaxed), flags != 0, "by the kernel");
        let _guard = FaultGuard::install().unwrap();
        fault();
        assert_eq!(WAS_ON_ALTERNATIVE_STACK.load(Ordering::Relaxed), flags != 0);
    }
}

static KNOWN_PAGE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn repairs_the_known_page(_: c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let page = ptr::with_exposed_provenance_mut(KNOWN_PAGE.load(Ordering::Relaxed));
    // SAFETY: makes the inaccessible page of the test accessible.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

fn handlers_without_siginfo_are_called() {
    // SAFETY: zeros are an action with an empty mask.
    let mut theirs: sigaction = unsafe { std::mem::zeroed() };
    theirs.sa_sigaction = repairs_the_known_page as *const () as usize;
    set(libc::SIGSEGV, &theirs);
    let _guard = FaultGuard::install().unwrap();
    let page = forbidden_page();
    KNOWN_PAGE.store(page.expose_provenance(), Ordering::Relaxed);
    // SAFETY: the test's own page, which the handler makes accessible.
    unsafe { page.write_volatile(1) };
    assert_eq!(count(&CALLS), 1);
    assert!(copy_survives());
}

fn set_without_handler(signal: c_int, to: usize) {
    // SAFETY: zeros are an action with an empty mask.
    let mut none: sigaction = unsafe { std::mem::zeroed() };
    none.sa_sigaction = to;
    set(signal, &none);
}

/// Sends this thread a SIGBUS for an asynchronous memory error.
fn send_memory_error() {
    const BUS_MCEERR_AO: c_int = 5;
    // SAFETY: zeros are a `siginfo_t`.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = libc::SIGBUS;
    info.si_code = BUS_MCEERR_AO;
    // SAFETY: it has no arguments and no effects.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let process = std::process::id();
    let (call, signal) = (libc::SYS_rt_tgsigqueueinfo, libc::SIGBUS);
    // SAFETY: the details are valid.
    let sent = unsafe { libc::syscall(call, process, thread, signal, &raw const info) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

fn ignored_signals_stay_ignored() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        set_without_handler(signal, libc::SIG_IGN);
    }
    let _guard = FaultGuard::install().unwrap();
    // SAFETY: the signal is ignored.
    unsafe { libc::raise(libc::SIGSEGV) };
    assert!(copy_survives());
    send_memory_error();
    assert!(copy_survives());
    assert_ne!(installed(libc::SIGBUS).sa_sigaction, libc::SIG_DFL);
}

fn an_ignored_fault_is_fatal() {
    set_without_handler(libc::SIGSEGV, libc::SIG_IGN);
    let _guard = FaultGuard::install().unwrap();
    fault();
}

fn a_memory_error_elsewhere_is_fatal() {
    set_without_handler(libc::SIGBUS, libc::SIG_DFL);
    let _guard = FaultGuard::install().unwrap();
    send_memory_error();
}

extern "C" fn logs(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let words = "logged\n";
    // SAFETY: the bytes are valid.
    unsafe { libc::write(1, words.as_ptr().cast(), words.len()) };
    if CALLS.fetch_add(1, Ordering::Relaxed) == 100 {
        // SAFETY: it may be called in a handler.
        unsafe { libc::_exit(88) };
    }
}

fn a_handler_is_reset() {
    set(libc::SIGSEGV, &action(logs, libc::SA_ONSTACK | libc::SA_RESETHAND));
    let _guard = FaultGuard::install().unwrap();
    assert!(copy_survives());
    fault();
}

fn guards_in_forked_children() {
    const FORKS: usize = 300;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    drop(FaultGuard::install().unwrap());
                }
            });
        }
        let failed = (0..FORKS).find(|_| !child_installs_a_guard());
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "a child hung");
    });
}

fn child_installs_a_guard() -> bool {
    // SAFETY: the child only installs a guard and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: it sets a timer, which kills a child that hangs.
        unsafe { libc::alarm(WATCHDOG_SECONDS / 3) };
        let guard = FaultGuard::install();
        let status = c_int::from(guard.is_err() || !copy_survives());
        // SAFETY: it ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: it is a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}
