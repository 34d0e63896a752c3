//! The instruction sets of copies, checksums and digests. The instruction set is chosen once,
//! outside of every loop.
//!
//! An [`IsaToken`] holds one of the tokens `Scalar`, `Avx2`, `Avx512` and `Neon`. Each token exists
//! only on a machine that has its instructions, so code that takes a token by value need not check
//! again. The environment variable `LONGSHORE_ISA=scalar|avx2|avx512|neon` chooses a lesser
//! instruction set, so that one machine can test all of them.
#![cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    expect(unsafe_code, reason = "calls functions compiled for an instruction set")
)]

use core::fmt;

/// An instruction set, named as in `LONGSHORE_ISA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// The instructions of every machine of the architecture, without vector registers.
    Scalar,
    /// x86-64 with AVX2, BMI2, PCLMULQDQ and SSE4.2.
    Avx2,
    /// x86-64 with all of the above and AVX-512 F, BW, VL, VNNI and VPCLMULQDQ.
    Avx512,
    /// AArch64's vector registers with the CRC and PMULL instructions.
    Neon,
}

/// Proof that the machine has the instructions of [`Isa::Scalar`], as every machine does.
#[derive(Clone, Copy, Debug)]
pub struct Scalar(());

/// Proof that the machine has the instructions of [`Isa::Avx2`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Proof that the machine has the instructions of [`Isa::Avx512`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// Proof that the machine has the instructions of [`Isa::Neon`].
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

/// A token of an instruction set of this architecture.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum IsaToken {
    /// The token of [`Isa::Scalar`].
    Scalar(Scalar),
    /// The token of [`Isa::Avx2`].
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2(Avx2),
    /// The token of [`Isa::Avx512`].
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512(Avx512),
    /// The token of [`Isa::Neon`].
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    Neon(Neon),
}

impl Isa {
    /// All instruction sets, from the least to the best.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// Returns the name that `LONGSHORE_ISA` accepts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// Returns the instruction set with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Returns the token if this machine has the instructions.
    ///
    /// Under Miri, and without the `std` feature, only [`Isa::Scalar`] has one.
    pub fn token(self) -> Option<IsaToken> {
        match self {
            Self::Scalar => Some(IsaToken::Scalar(Scalar(()))),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2 => detected::avx2().then_some(IsaToken::Avx2(Avx2(()))),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512 => detected::avx512().then_some(IsaToken::Avx512(Avx512(()))),
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Self::Neon => detected::neon().then_some(IsaToken::Neon(Neon(()))),
            _ => None,
        }
    }
}

impl IsaToken {
    /// Returns the tokens that this machine has, from the least to the best.
    pub fn all() -> impl Iterator<Item = Self> {
        Isa::ALL.into_iter().filter_map(Isa::token)
    }

    /// Returns the token that `LONGSHORE_ISA` names, if this machine has it, or the best token of
    /// this machine. The choice is made once per process.
    #[cfg(feature = "std")]
    #[inline]
    pub fn active() -> Self {
        static ACTIVE: std::sync::OnceLock<IsaToken> = std::sync::OnceLock::new();
        *ACTIVE.get_or_init(|| {
            let forced = std::env::var("LONGSHORE_ISA").ok();
            let forced = forced.and_then(|name| Isa::named(&name)).and_then(Isa::token);
            forced.or_else(|| Self::all().last()).unwrap_or(Self::Scalar(Scalar(())))
        })
    }

    /// Returns the token of [`Isa::Scalar`]: without the `std` feature, the machine cannot be
    /// queried.
    #[cfg(not(feature = "std"))]
    pub const fn active() -> Self {
        Self::Scalar(Scalar(()))
    }

    /// Runs `work`, compiled for this instruction set: the closure becomes part of a function that
    /// may use these instructions. The compiler can then vectorize its loops with the widest
    /// registers of the set, for whichever target the rest of the program is compiled.
    ///
    /// Functions that `work` calls must be inlined to gain from this (`#[inline(always)]` if in
    /// doubt).
    ///
    /// ```
    /// use longshore_mem::isa::IsaToken;
    ///
    /// let bytes = [0u8; 4096];
    /// let is_zero = IsaToken::active().vectorize(|| bytes.iter().fold(0, |ored, byte| ored | byte) == 0);
    /// assert!(is_zero);
    /// ```
    #[inline]
    pub fn vectorize<R>(self, work: impl FnOnce() -> R) -> R {
        match self {
            Self::Scalar(_) => work(),
            // SAFETY: the token proves that the instructions exist.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2(_) => unsafe { vectorized::avx2(work) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512(_) => unsafe { vectorized::avx512(work) },
            // Every AArch64 target is compiled with vector instructions.
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Self::Neon(_) => work(),
        }
    }

    /// Returns the instruction set of the token.
    pub const fn isa(self) -> Isa {
        match self {
            Self::Scalar(_) => Isa::Scalar,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2(_) => Isa::Avx2,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512(_) => Isa::Avx512,
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Self::Neon(_) => Isa::Neon,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Evaluates `$body` with `$isa` bound to the token inside of `$token`, which is an
/// [`IsaToken`](crate::isa::IsaToken). The choice is made here, and `$body` with its loops is
/// compiled for each kind of token.
#[macro_export]
macro_rules! dispatch_isa {
    ($token:expr, $isa:ident => $body:expr) => {
        match $token {
            $crate::isa::IsaToken::Scalar($isa) => $body,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            $crate::isa::IsaToken::Avx2($isa) => $body,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            $crate::isa::IsaToken::Avx512($isa) => $body,
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            $crate::isa::IsaToken::Neon($isa) => $body,
            #[allow(unreachable_patterns, reason = "in the crate itself the list is complete")]
            _ => ::core::unreachable!("a token of another architecture"),
        }
    };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vectorized {
    #[target_feature(enable = "avx2,bmi2,pclmulqdq,sse4.2")]
    pub(super) fn avx2<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    #[target_feature(enable = "avx2,bmi2,avx512f,avx512bw,avx512vl")]
    pub(super) fn avx512<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
}

#[cfg(all(feature = "std", not(miri), target_arch = "x86_64"))]
mod detected {
    use std::is_x86_feature_detected as has;

    pub(super) fn avx2() -> bool {
        has!("avx2") && has!("bmi2") && has!("pclmulqdq") && has!("sse4.2")
    }

    pub(super) fn avx512() -> bool {
        avx2()
            && has!("avx512f")
            && has!("avx512bw")
            && has!("avx512vl")
            && has!("avx512vnni")
            && has!("vpclmulqdq")
    }
}

#[cfg(all(feature = "std", not(miri), target_arch = "aarch64"))]
mod detected {
    use std::arch::is_aarch64_feature_detected as has;

    pub(super) fn neon() -> bool {
        has!("neon") && has!("crc") && has!("pmull")
    }
}

#[cfg(all(not(feature = "std"), not(miri)))]
mod detected {
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn avx2() -> bool {
        false
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) const fn avx512() -> bool {
        false
    }

    #[cfg(target_arch = "aarch64")]
    pub(super) const fn neon() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn names_are_found() {
        for isa in Isa::ALL {
            assert_eq!(Isa::named(isa.name()), Some(isa));
        }
        assert_eq!(Isa::named("AVX2"), None);
    }

    #[test]
    fn vectorize_runs_its_closure_once_with_every_token() {
        for token in IsaToken::all() {
            let mut calls = 0;
            let sum = token.vectorize(|| {
                calls += 1;
                (0..1000u32).sum::<u32>()
            });
            assert_eq!((sum, calls), (499_500, 1), "{}", token.isa());
        }
    }

    #[test]
    fn tokens_match_their_isa_and_the_first_is_scalar() {
        let here: Vec<Isa> = IsaToken::all().map(IsaToken::isa).collect();
        assert_eq!(here[0], Isa::Scalar);
        assert!(here.iter().all(|isa| isa.token().is_some_and(|token| token.isa() == *isa)));
        assert!(here.contains(&IsaToken::active().isa()));
        std::println!("instruction sets of this machine: {here:?}");
    }
}
