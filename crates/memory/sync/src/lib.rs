//! Asymmetric synchronization: the frequent side pays no fence, the rare side pays for both.
//!
//! Both protocols here have a side that runs all the time, for which a fence at each step would cost
//! more than the step, and a side that runs now and then. The rare side calls `membarrier(2)`, which
//! puts a full barrier into every running thread of the process; see [`Barrier`].
//!
//! * [`grace`]: sessions that use what others take away. Whoever takes it away waits until no session
//!   can use it any more.
//! * [`Biased`]: a value that one thread owns and others claim now and then.
//!
//! [`primitives`] are the atomics and locks by which both are written, and by which users of this crate
//! write what they want checked: with `RUSTFLAGS="--cfg loom"` they are those of loom, a model checker.

mod back_off;
mod barrier;
mod biased;
pub mod grace;
pub mod primitives;

pub use back_off::BackOff;
pub use barrier::Barrier;
pub use biased::Biased;
