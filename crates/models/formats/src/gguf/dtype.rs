//! The element types of ggml, and how elements are packed into blocks.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $elements:literal in $bytes:literal;)*) => {
        /// The type of a tensor's elements, as ggml defines it. [`fmt::Display`] writes ggml's own name.
        ///
        /// Elements are stored in blocks of a fixed length, each with its scales. A row is a whole
        /// number of blocks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
        }

        impl Dtype {
            /// All types, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the number that files use for the type.
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }

            /// Returns the name, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the number of elements in a block.
            pub const fn block_elements(self) -> u64 {
                match self {
                    $(Self::$variant => $elements,)*
                }
            }

            /// Returns the size of a block in bytes.
            pub const fn block_bytes(self) -> u64 {
                match self {
                    $(Self::$variant => $bytes,)*
                }
            }

            /// Returns the type with this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
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
    /// IEEE 754 single precision.
    F32 = 0, "F32", 1 in 4;
    /// IEEE 754 half precision.
    F16 = 1, "F16", 1 in 2;
    /// 4 bits and a scale.
    Q4_0 = 2, "Q4_0", 32 in 18;
    /// 4 bits, a scale and a minimum.
    Q4_1 = 3, "Q4_1", 32 in 20;
    /// 5 bits and a scale.
    Q5_0 = 6, "Q5_0", 32 in 22;
    /// 5 bits, a scale and a minimum.
    Q5_1 = 7, "Q5_1", 32 in 24;
    /// 8 bits and a scale.
    Q8_0 = 8, "Q8_0", 32 in 34;
    /// 8 bits, a scale and a sum, for intermediate results. The block size is that of the Python package
    /// gguf. In ggml itself, which never writes this type to files, a block now has 36 bytes.
    Q8_1 = 9, "Q8_1", 32 in 40;
    /// 2 bits in super-blocks, whose scales are quantized.
    Q2K = 10, "Q2_K", 256 in 84;
    /// 3 bits in super-blocks, whose scales are quantized.
    Q3K = 11, "Q3_K", 256 in 110;
    /// 4 bits in super-blocks, whose scales are quantized.
    Q4K = 12, "Q4_K", 256 in 144;
    /// 5 bits in super-blocks, whose scales are quantized.
    Q5K = 13, "Q5_K", 256 in 176;
    /// 6 bits in super-blocks, whose scales are quantized.
    Q6K = 14, "Q6_K", 256 in 210;
    /// 8 bits and sums, for intermediate results.
    Q8K = 15, "Q8_K", 256 in 292;
    /// 2.06 bits, by a table of grid points.
    Iq2Xxs = 16, "IQ2_XXS", 256 in 66;
    /// 2.31 bits, by a table of grid points.
    Iq2Xs = 17, "IQ2_XS", 256 in 74;
    /// 3.06 bits, by a table of grid points.
    Iq3Xxs = 18, "IQ3_XXS", 256 in 98;
    /// 1.56 bits, by a table of grid points.
    Iq1S = 19, "IQ1_S", 256 in 50;
    /// 4 bits by a table of values.
    Iq4Nl = 20, "IQ4_NL", 32 in 18;
    /// 3.44 bits, by a table of grid points.
    Iq3S = 21, "IQ3_S", 256 in 110;
    /// 2.56 bits, by a table of grid points.
    Iq2S = 22, "IQ2_S", 256 in 82;
    /// 4.25 bits by a table of values.
    Iq4Xs = 23, "IQ4_XS", 256 in 136;
    /// Signed 8-bit integer.
    I8 = 24, "I8", 1 in 1;
    /// Signed 16-bit integer.
    I16 = 25, "I16", 1 in 2;
    /// Signed 32-bit integer.
    I32 = 26, "I32", 1 in 4;
    /// Signed 64-bit integer.
    I64 = 27, "I64", 1 in 8;
    /// IEEE 754 double precision.
    F64 = 28, "F64", 1 in 8;
    /// 1.75 bits, by a table of grid points.
    Iq1M = 29, "IQ1_M", 256 in 56;
    /// The upper half of a single-precision float.
    Bf16 = 30, "BF16", 1 in 2;
    /// -1, 0 or 1, five in a byte.
    Tq1_0 = 34, "TQ1_0", 256 in 54;
    /// -1, 0 or 1, four in a byte.
    Tq2_0 = 35, "TQ2_0", 256 in 66;
    /// 4-bit floats of the OCP microscaling formats, with a shared scale.
    Mxfp4 = 39, "MXFP4", 32 in 17;
    /// 4-bit floats, with an 8-bit float as the scale of each 16 elements.
    Nvfp4 = 40, "NVFP4", 64 in 36;
    /// 1 bit and a scale.
    Q1_0 = 41, "Q1_0", 128 in 18;
    /// 2 bits and a scale.
    Q2_0 = 42, "Q2_0", 64 in 18;
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the name of a type that ggml has removed and that had this number.
pub(crate) fn removed(number: u32) -> Option<&'static str> {
    Some(match number {
        4 => "Q4_2",
        5 => "Q4_3",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return None,
    })
}
