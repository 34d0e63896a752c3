//! Waits for another thread, usually for no longer than an access takes.

/// The way in which a thread waits for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackOff {
    /// Spins, and then lets other threads run.
    Yield,
    /// Does the same, and then sleeps: the other thread may be busy for a long time.
    Sleep,
}

/// The number of rounds that spin, which take about as long as an access.
#[cfg(not(loom))]
const SPINS: u32 = 128;
/// The number of rounds that yield the processor, in case the other thread was preempted during its
/// access.
#[cfg(not(loom))]
const YIELDS: u32 = 256;

impl BackOff {
    /// Waits until `is_over` returns `true`. Calls `ask` when the wait takes longer than an access,
    /// and then after each sleep. Returns `true` if it did not have to wait.
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

    /// Waits for a short time, which grows with the number of rounds.
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
