//! The types of metadata values.

use std::fmt;

macro_rules! value_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $size:expr;)*) => {
        /// The type of a metadata value. [`fmt::Display`] writes the format's own name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ValueType {
            $($(#[$doc])* $variant,)*
        }

        impl ValueType {
            /// All types, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the number that files use for the type.
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }

            /// Returns the name, such as `uint32`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the size of a value in bytes; `None` if it depends on the value.
            pub const fn size_bytes(self) -> Option<u64> {
                match self {
                    $(Self::$variant => $size,)*
                }
            }

            /// Returns the type with this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

value_types! {
    /// Unsigned 8-bit integer.
    U8 = 0, "uint8", Some(1);
    /// Signed 8-bit integer.
    I8 = 1, "int8", Some(1);
    /// Unsigned 16-bit integer.
    U16 = 2, "uint16", Some(2);
    /// Signed 16-bit integer.
    I16 = 3, "int16", Some(2);
    /// Unsigned 32-bit integer.
    U32 = 4, "uint32", Some(4);
    /// Signed 32-bit integer.
    I32 = 5, "int32", Some(4);
    /// IEEE 754 single precision.
    F32 = 6, "float32", Some(4);
    /// A boolean in a byte.
    Bool = 7, "bool", Some(1);
    /// A length, and that number of bytes.
    String = 8, "string", None;
    /// The type of the elements, their number, and the elements.
    Array = 9, "array", None;
    /// Unsigned 64-bit integer.
    U64 = 10, "uint64", Some(8);
    /// Signed 64-bit integer.
    I64 = 11, "int64", Some(8);
    /// IEEE 754 double precision.
    F64 = 12, "float64", Some(8);
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
