//! SIGINT, SIGTERM and SIGHUP: the first one cancels, the second one ends the process at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::Context;
use longshore::CancelToken;
use longshore_sys::signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The number of the received signal; 0 if there was none.
static RECEIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Returns the signals that end this process, without those that the parent has ignored, as nohup does.
fn ending() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok())
        .unwrap_or(0);
    ENDING.into_iter().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// Returns a token that SIGINT, SIGTERM or SIGHUP cancels.
pub(crate) fn cancel_token() -> anyhow::Result<CancelToken> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        // In this order: the second signal finds the flag set and ends the process.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| {
                flag::register_usize(signal, Arc::clone(&RECEIVED), signal.unsigned_abs() as usize)
            })
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("catching signals")?;
    }
    Ok(CancelToken::from_flag(stop))
}

/// Makes the signals of [`cancel_token`] end the process again, also before a program takes its place.
pub(crate) fn restore_defaults() -> anyhow::Result<()> {
    for signal in ending() {
        signals::set_default(signal).context("no longer catching signals")?;
    }
    Ok(())
}

/// Returns the received signal, if there was one.
pub(crate) fn received() -> Option<u8> {
    u8::try_from(RECEIVED.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
}

/// The caught signals of a server.
pub(crate) struct ServerSignals(Signals);

/// A signal that a server received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerSignal {
    /// SIGINT or SIGTERM, by name. The next one ends the process at once.
    End(&'static str),
    /// SIGHUP.
    HangUp,
}

impl ServerSignals {
    /// Blocks until the next signal.
    pub(crate) fn wait(&mut self) -> Option<ServerSignal> {
        let signal = self.0.forever().next()?;
        if signal == SIGHUP {
            return Some(ServerSignal::HangUp);
        }
        RECEIVED.store(signal.unsigned_abs() as usize, Ordering::Relaxed);
        Some(ServerSignal::End(if signal == SIGINT { "SIGINT" } else { "SIGTERM" }))
    }
}

/// Catches the signals of a server. SIGHUP does not end it, because a server outlives the terminal that
/// it was started in.
pub(crate) fn of_server() -> anyhow::Result<ServerSignals> {
    let stop = Arc::new(AtomicBool::new(false));
    let ending: Vec<i32> = ending().filter(|signal| *signal != SIGHUP).collect();
    for signal in ending.iter().copied() {
        // The second signal finds the flag set.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("catching signals")?;
    }
    let all = ending.iter().chain([&SIGHUP]);
    Ok(ServerSignals(Signals::new(all).context("catching signals")?))
}

/// Blocks until SIGINT, SIGTERM or SIGHUP.
pub(crate) fn wait_for_end() -> anyhow::Result<()> {
    let mut signals = Signals::new(ending()).context("catching signals")?;
    if received().is_none() {
        signals.forever().next();
    }
    Ok(())
}
