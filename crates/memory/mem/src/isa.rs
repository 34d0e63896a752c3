//! Which instructions the copies, checksums and digests use: asked of the machine once, before a
//! loop, never inside it.
//!
//! An [`IsaToken`] holds one of the tokens `Scalar`, `Avx2`, `Avx512` and `Neon`, each of which exists
//! only on a machine that has the instructions, so code that takes a token by value need not ask again.
//! `LONGSHORE_ISA=scalar|avx2|avx512|neon` in the environment chooses a lesser one, so that every
//! instruction set can be tested on one machine.
#![cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    expect(unsafe_code, reason = "calls functions compiled for an instruction set")
)]

use core::fmt;

/// An instruction set, by the name that `LONGSHORE_ISA` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// What every machine of the architecture has, without vector registers.
    Scalar,
    /// x86-64 with AVX2, BMI2, PCLMULQDQ and SSE4.2.
    Avx2,
    /// x86-64 with all of the above and AVX-512 F, BW, VL, VNNI and VPCLMULQDQ.
    Avx512,
    /// AArch64's vector registers with the CRC and PMULL instructions.
    Neon,
}

/// Proof that the machine has what [`Isa::Scalar`] names: every machine.
#[derive(Clone, Copy, Debug)]
pub struct Scalar(());

/// Proof that the machine has what [`Isa::Avx2`] names.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Proof that the machine has what [`Isa::Avx512`] names.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// Proof that the machine has what [`Isa::Neon`] names.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

/// One of the tokens that this architecture has.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum IsaToken {
    /// For [`Isa::Scalar`].
    Scalar(Scalar),
    /// For [`Isa::Avx2`].
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2(Avx2),
    /// For [`Isa::Avx512`].
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512(Avx512),
    /// For [`Isa::Neon`].
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    Neon(Neon),
}

impl Isa {
    /// All there are, the least first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// The name that `LONGSHORE_ISA` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Returns the token if this machine has the instructions.
    ///
    /// Under Miri, and without the crate's `std` feature, only [`Isa::Scalar`] is found.
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
    /// Those this machine has, the least first.
    pub fn all() -> impl Iterator<Item = Self> {
        Isa::ALL.into_iter().filter_map(Isa::token)
    }

    /// The best this machine has, or the one that `LONGSHORE_ISA` names if the machine has it.
    /// Asked of the environment and the machine once per process.
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

    /// Without the `std` feature there is nobody to ask: what every machine has.
    #[cfg(not(feature = "std"))]
    pub const fn active() -> Self {
        Self::Scalar(Scalar(()))
    }

    /// Runs `work`, compiled for this instruction set: a closure is built into a function that
    /// may use them, and its loops with it. Loops over bytes that the compiler turns into vector
    /// code become as wide as the set allows, whatever the rest of the program is built for.
    ///
    /// What `work` calls must be inlined to gain by it (`#[inline(always)]` where in doubt).
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
            // SAFETY: the token proves the instructions.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2(_) => unsafe { vectorized::avx2(work) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512(_) => unsafe { vectorized::avx512(work) },
            // What every AArch64 target is compiled for has its vectors.
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Self::Neon(_) => work(),
        }
    }

    /// Which instruction set it stands for.
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
/// [`IsaToken`](crate::isa::IsaToken): the choice is made here, and `$body` with its loops is compiled for
/// each kind of token.
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
    fn names_find_what_they_name() {
        for isa in Isa::ALL {
            assert_eq!(Isa::named(isa.name()), Some(isa));
        }
        assert_eq!(Isa::named("AVX2"), None);
    }

    #[test]
    fn work_is_done_once_with_every_token() {
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
    fn every_token_here_is_its_own_and_the_first_is_scalar() {
        let here: Vec<Isa> = IsaToken::all().map(IsaToken::isa).collect();
        assert_eq!(here[0], Isa::Scalar);
        assert!(here.iter().all(|isa| isa.token().is_some_and(|token| token.isa() == *isa)));
        assert!(here.contains(&IsaToken::active().isa()));
        std::println!("instruction sets of this machine: {here:?}");
    }
}
