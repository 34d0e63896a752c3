//! Waiting for another thread that takes no longer than an access, unless it was preempted.

/// How a thread waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackOff {
    /// Spins, and then lets other threads run.
    Yield,
    /// As [`Yield`](Self::Yield), and then sleeps: the other thread may be busy for long.
    Sleep,
}

/// Rounds of a few cycles, as an access takes.
#[cfg(not(loom))]
const SPINS: u32 = 128;
/// Rounds in which another thread may have the processor, as one that was preempted in the middle of
/// its access.
#[cfg(not(loom))]
const YIELDS: u32 = 256;

impl BackOff {
    /// Waits until `is_over`. Calls `ask` when that takes longer than an access does, and then each
    /// time the thread has slept. Returns whether it was over at once.
    pub(crate) fn wait(self, mut is_over: impl FnMut() -> bool, mut ask: impl FnMut()) -> bool {
        let mut round = 0u32;
        while !is_over() {
            if asks(round) {
                ask();
            }
            self.pause(round);
            round = round.saturating_add(1);
        }
        round == 0
    }

    /// Waits a little: longer the more rounds there were.
    #[cfg(not(loom))]
    fn pause(self, round: u32) {
        if round < SPINS {
            std::hint::spin_loop();
        } else if self == Self::Yield || round < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    #[cfg(loom)]
    fn pause(self, _: u32) {
        loom::thread::yield_now();
    }
}

#[cfg(not(loom))]
fn asks(round: u32) -> bool {
    round == SPINS || round >= SPINS + YIELDS
}

#[cfg(loom)]
fn asks(_: u32) -> bool {
    true
}
