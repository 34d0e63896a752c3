//! Asymmetric synchronization: the frequent side executes no fence, and the rare side pays for
//! both.
//!
//! Both protocols here have a side that runs all the time, where a fence in each step would cost more
//! than the step, and a side that runs rarely. The rare side calls `membarrier(2)`, which executes a
//! full barrier on every running thread of the process; see [`Barrier`].
//!
//! * [`grace`]: sessions that use translations which another thread unmaps. The unmapping thread waits
//!   until no session can use them any more.
//! * [`OwnerBiased`]: a value that one thread owns, and that other threads claim rarely.
//!
//! [`primitives`] has the atomics and locks of both, for other protocols that are model-checked,
//! too: with `RUSTFLAGS="--cfg loom"`, they are those of loom, a model checker.

mod back_off;
mod barrier;
pub mod grace;
mod owner_biased;
pub mod primitives;

pub use barrier::Barrier;
pub use owner_biased::OwnerBiased;
