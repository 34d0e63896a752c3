//! Arithmetic modulo the polynomial, at compile time, and the constants that kernels need.
//!
//! Bits are reflected, as in the register of the CRC: the highest power is bit 0.

/// x^32 mod P, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// Returns x^`power` mod P, reflected.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
pub(super) const fn power_of_x(power: u32) -> u32 {
    let mut value = 0x8000_0000;
    let mut done = 0;
    while done < power {
        value = times_x(value);
        done += 1;
    }
    value
}

/// Returns `value` times x.
pub(super) const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// Returns the two factors that fold 128 bits over a distance of `distance` bits, by carry-less
/// multiplication of the 64-bit halves: the low half (which has the higher powers) by the first
/// factor, the high half by the second. Because of the reflection, the product is one bit too low,
/// for which the shift compensates ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
/// Instruction", Gopal et al., Intel 2009).
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
pub(super) const fn fold_factors(distance: u32) -> [u64; 2] {
    [(power_of_x(distance + 32) as u64) << 1, (power_of_x(distance - 32) as u64) << 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_the_published_ones() {
        // From Linux's arch/x86/crypto/crc32c-pcl and from zlib-ng, for 512 and 128 bits.
        assert_eq!(fold_factors(512), [0x740e_ef02, 0x9e4a_ddf8]);
        assert_eq!(fold_factors(128), [0xf20c_0dfe, 0x1_4cd0_0bd6]);
    }
}
