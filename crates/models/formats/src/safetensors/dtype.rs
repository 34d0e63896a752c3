//! The element types of the format.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $bits:literal;)*) => {
        /// The type of a tensor's elements. [`fmt::Display`] writes the format's own name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
        }

        impl Dtype {
            /// All types, in the order of the format's reference implementation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name in the header of a file, such as `BF16`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the size of one element in bits: 4, 6 or a multiple of 8.
            pub const fn bits(self) -> u64 {
                match self {
                    $(Self::$variant => $bits,)*
                }
            }

            /// Returns the type with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    /// A boolean in a byte.
    Bool = "BOOL", 8;
    /// 4-bit float of the OCP microscaling formats (E2M1), two in a byte.
    F4 = "F4", 4;
    /// 6-bit float of the OCP microscaling formats, 2 exponent bits.
    F6E2m3 = "F6_E2M3", 6;
    /// 6-bit float of the OCP microscaling formats, 3 exponent bits.
    F6E3m2 = "F6_E3M2", 6;
    /// Unsigned 8-bit integer.
    U8 = "U8", 8;
    /// Signed 8-bit integer.
    I8 = "I8", 8;
    /// 8-bit float, 5 exponent bits.
    F8E5m2 = "F8_E5M2", 8;
    /// 8-bit float, 4 exponent bits.
    F8E4m3 = "F8_E4M3", 8;
    /// 8-bit power of two: a scale of the OCP microscaling formats.
    F8E8m0 = "F8_E8M0", 8;
    /// 8-bit float, 4 exponent bits, one zero and no infinities.
    F8E4m3fnuz = "F8_E4M3FNUZ", 8;
    /// 8-bit float, 5 exponent bits, one zero and no infinities.
    F8E5m2fnuz = "F8_E5M2FNUZ", 8;
    /// Signed 16-bit integer.
    I16 = "I16", 16;
    /// Unsigned 16-bit integer.
    U16 = "U16", 16;
    /// IEEE 754 half precision.
    F16 = "F16", 16;
    /// The upper half of a single-precision float.
    Bf16 = "BF16", 16;
    /// Signed 32-bit integer.
    I32 = "I32", 32;
    /// Unsigned 32-bit integer.
    U32 = "U32", 32;
    /// IEEE 754 single precision.
    F32 = "F32", 32;
    /// Complex number of two single-precision floats.
    C64 = "C64", 64;
    /// IEEE 754 double precision.
    F64 = "F64", 64;
    /// Signed 64-bit integer.
    I64 = "I64", 64;
    /// Unsigned 64-bit integer.
    U64 = "U64", 64;
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
