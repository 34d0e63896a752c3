//! The texts of errors. Some depend on the format: the metadata of GGUF is `__metadata__` in a
//! safetensors file.

use std::fmt;

use longshore_mem::ByteSize;

use crate::format::Format;
use crate::gguf::{self, removed_dtype};
use crate::reason::{
    AlignProblem, Item, Quantity, Reason, ShapeProblem, ShardProblem, Start, TruncatedPart,
    UnknownDtype,
};
use crate::safetensors;

/// The text of a reason, as the end of a sentence about a file.
pub(crate) struct Detail<'a> {
    pub(crate) format: Format,
    pub(crate) reason: &'a Reason,
}

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.format;
        f.write_str(while_reading(format, self.reason))?;
        match self.reason {
            Reason::BadStart { start, looks_like } => {
                bad_start(*start, f)?;
                looks_like.map_or(Ok(()), |kind| write!(f, "; {kind}"))
            }
            Reason::UnsupportedVersion { version: 1 } => f.write_str(
                "it is of version 1, which is no longer in use and not read; convert the model \
                 again with a current llama.cpp",
            ),
            Reason::UnsupportedVersion { version } => {
                write!(f, "it is of version {version} (expected 2 or 3)")
            }
            Reason::BigEndian { version } => write!(
                f,
                "it is big-endian (version {version}), and only little-endian files are read; \
                 convert it with gguf-convert-endian of the Python package gguf"
            ),
            Reason::Truncated { part, needed_bytes, found_bytes } => {
                truncated(format, part, *needed_bytes, *found_bytes, f)
            }
            Reason::HeaderIncomplete { given_bytes, needed_bytes } => {
                let of = if format == Format::Gguf { "at least" } else { "the" };
                write!(
                    f,
                    "only {given_bytes} of {of} {needed_bytes} bytes before its data were given"
                )
            }
            Reason::TooLarge { item, quantity, found, max } => {
                too_large(format, item.as_ref(), *quantity, *found, *max, f)
            }
            Reason::NotUtf8 { item: Some(item), .. } => {
                write!(f, "{}: its name is not UTF-8", Shown(format, item))
            }
            Reason::NotUtf8 { item: None, offset } => match format {
                Format::Safetensors => {
                    write!(f, "its header is not UTF-8 at byte {offset} of the file")
                }
                _ => write!(f, "it is not UTF-8 from byte {offset} on"),
            },
            Reason::Json { item, error } => write!(f, "{}{error}", Prefix(format, item.as_ref())),
            Reason::Missing { item: Item::TensorField { tensor, field } } => {
                write!(f, "tensor {tensor} has no {field}")
            }
            Reason::Missing { item: Item::WeightMap } => {
                f.write_str("its weight_map is missing or names no tensor")
            }
            Reason::Missing { item } => write!(f, "it has no {}", Shown(format, item)),
            Reason::Duplicate { item } => duplicate(format, item, f),
            Reason::UnknownDtype { tensor, dtype } => {
                write!(f, "tensor {tensor} has the ")?;
                unknown_dtype(dtype, f)
            }
            Reason::BadValue { item, problem } => {
                write!(f, "{}{problem}", Prefix(format, item.as_ref()))
            }
            Reason::BadAlignment { alignment_bytes: Some(bytes), .. } => write!(
                f,
                "its {} is {bytes}, which is not a power of two of at least {}",
                gguf::ALIGNMENT_KEY,
                gguf::ALIGNMENT_MIN
            ),
            Reason::BadAlignment { value_type, alignment_bytes: None } => {
                write!(f, "its {} is of type {value_type}, not uint32", gguf::ALIGNMENT_KEY)
            }
            Reason::Unaligned { tensor, offset, alignment } => write!(
                f,
                "tensor {tensor} is at offset {offset}, which is not a multiple of the file's \
                 alignment {alignment}"
            ),
            Reason::Shape { tensor, shape, dtype, problem } => {
                write!(f, "tensor {tensor} of shape {shape:?} and dtype {dtype} ")?;
                bad_shape(format, problem, f)
            }
            Reason::EndBeforeStart { tensor, start, end } => {
                write!(f, "tensor {tensor} begins at byte {start} of the data but ends at {end}")
            }
            Reason::Overlap { first, first_data, second, second_data } => write!(
                f,
                "tensor {second} (bytes {} to {} of the {}) overlaps tensor {first} (bytes {} to {})",
                second_data.start,
                second_data.end,
                if format == Format::Gguf { "file" } else { "data" },
                first_data.start,
                first_data.end
            ),
            Reason::Gap { bytes, before } => write!(
                f,
                "bytes {} to {} of the data, before tensor {before}, belong to no tensor",
                bytes.start, bytes.end
            ),
            Reason::Trailing { bytes } => write!(
                f,
                "its tensors end at byte {}, but the file ends at byte {}: the bytes between \
                 belong to no tensor",
                bytes.start, bytes.end
            ),
            Reason::Shards(problem) => write!(f, "{problem}"),
            Reason::Splits(problem) => write!(f, "{problem}"),
            Reason::CannotAlign { alignment, problem } => {
                write!(f, "it cannot have its tensors at multiples of {alignment}: ")?;
                match (format, problem) {
                    (Format::Safetensors, AlignProblem::HeaderTooLong) => write!(
                        f,
                        "its header would be longer than the limit of {}",
                        ByteSize(safetensors::HEADER_LEN_MAX_BYTES)
                    ),
                    _ => write!(f, "{problem}"),
                }
            }
        }
    }
}

/// The beginning of the text for problems that the JSON reader finds.
fn while_reading(format: Format, reason: &Reason) -> &'static str {
    let in_json = match reason {
        Reason::Json { .. } | Reason::UnknownDtype { .. } => true,
        Reason::TooLarge { quantity, .. } => *quantity != Quantity::FileBytes,
        Reason::Missing { item } => *item != Item::WeightMap,
        Reason::Duplicate { item } => !matches!(item, Item::Tensor(_)),
        Reason::Shards(problem) => matches!(problem, ShardProblem::BadName { .. }),
        _ => false,
    };
    match format {
        Format::Safetensors if in_json => "its header cannot be read: ",
        Format::SafetensorsIndex | Format::Pipeline if in_json => "it cannot be read: ",
        _ => "",
    }
}

fn bad_start(start: Start, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match start {
        Start::EmptyHeader => f.write_str("its header has no bytes"),
        Start::LongHeader { len_bytes, max_bytes } => write!(
            f,
            "its first 8 bytes declare a header of {}, more than the limit of {}",
            ByteSize(len_bytes),
            ByteSize(max_bytes)
        ),
        Start::HeaderByte(byte) => {
            write!(f, "its header begins with the byte {byte:#04x} and not with '{{'")
        }
        Start::Magic(magic) if magic.iter().all(u8::is_ascii_graphic) => {
            write!(f, "it begins with '{}' and not with GGUF", String::from_utf8_lossy(&magic))
        }
        Start::Magic([a, b, c, d]) => {
            write!(f, "it begins with the bytes {a:02x} {b:02x} {c:02x} {d:02x} and not with GGUF")
        }
    }
}

fn truncated(
    format: Format,
    part: &TruncatedPart,
    needed: u128,
    found: u64,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match part {
        TruncatedPart::Start if format == Format::Gguf => {
            write!(f, "it has {found} bytes, but a GGUF file has at least {needed}")
        }
        TruncatedPart::Start => {
            write!(f, "it has {found} bytes, and the length of its header alone takes {needed}")
        }
        TruncatedPart::Header => write!(
            f,
            "it was cut short in its header, which ends at byte {needed}: it has {found}; fetch or \
             copy it again"
        ),
        TruncatedPart::Value { item, offset } => write!(
            f,
            "{}the header was cut short or is damaged: the value at byte {offset} would end at \
             byte {needed}, but the file has {found}",
            Prefix(format, item.as_ref())
        ),
        TruncatedPart::Elements { quantity, count } => write!(
            f,
            "it declares {count} {}, but is too short for them; was it cut short?",
            plural(*quantity)
        ),
        TruncatedPart::Data { len_bytes } => write!(
            f,
            "it was cut short: with {} of data it would have {}, but it has {}, which is {} too few; \
             fetch or copy it again",
            ByteSize(*len_bytes),
            ByteSize(saturated(needed)),
            ByteSize(found),
            ByteSize(saturated(needed).saturating_sub(found))
        ),
        TruncatedPart::Tensor(name) => {
            write!(f, "it was cut short: tensor {name} ends ")?;
            match u64::try_from(needed) {
                Ok(end) => write!(f, "at byte {end}")?,
                Err(_) => f.write_str("past 2^64")?,
            }
            write!(f, ", but it has {found} bytes; fetch or copy it again")
        }
    }
}

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn too_large(
    format: Format,
    item: Option<&Item>,
    quantity: Quantity,
    found: Option<u64>,
    max: u64,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Some(found) = found else {
        return match (quantity, item) {
            (Quantity::Tensors, _) if format == Format::Safetensors => {
                write!(f, "it describes more than {max} tensors, which is the limit")
            }
            (Quantity::Tensors, _) => {
                write!(f, "it names more than {max} tensors, which is the limit")
            }
            (Quantity::ArrayDepth, _) => {
                write!(f, "{}arrays are nested more than {max} deep", Prefix(format, item))
            }
            (Quantity::MetadataEntries, Some(item)) => {
                write!(f, "{} has more than {max} entries", Shown(format, item))
            }
            (_, Some(item)) => {
                write!(f, "{} has more than {max} {}", Shown(format, item), plural(quantity))
            }
            (_, None) => write!(f, "it names more than {max} {}", plural(quantity)),
        };
    };
    write!(f, "{}", Prefix(format, item))?;
    match quantity {
        Quantity::FileBytes => {
            write!(f, "it has {}, more than the limit of {}", ByteSize(found), ByteSize(max))
        }
        Quantity::HeaderBytes => write!(
            f,
            "the header has {} or more, which is above the limit of {}",
            ByteSize(found),
            ByteSize(max)
        ),
        Quantity::NameBytes => write!(f, "its name has {found} bytes, more than {max}"),
        Quantity::Tensors | Quantity::MetadataEntries => {
            write!(f, "it declares {found} {}, more than the limit of {max}", plural(quantity))
        }
        Quantity::Dimensions | Quantity::ArrayDepth | Quantity::Shards => {
            write!(f, "it has {found} {}, more than {max}", plural(quantity))
        }
    }
}

fn plural(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::FileBytes | Quantity::HeaderBytes | Quantity::NameBytes => "bytes",
        Quantity::Tensors => "tensors",
        Quantity::MetadataEntries => "entries of metadata",
        Quantity::Dimensions => "dimensions",
        Quantity::ArrayDepth => "arrays in arrays",
        Quantity::Shards => "shards",
    }
}

fn duplicate(format: Format, item: &Item, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (item, format) {
        (Item::Tensor(name), Format::Safetensors) => {
            write!(f, "its header describes the tensor {name} twice")
        }
        (Item::Tensor(name), Format::SafetensorsIndex) => {
            write!(f, "its weight_map has the tensor {name} twice")
        }
        (Item::Tensor(name), Format::Gguf) => write!(f, "it has the tensor {name} twice"),
        (Item::TensorField { tensor, field }, _) => {
            write!(f, "tensor {tensor} has its {field} twice")
        }
        (Item::MetadataEntry(key), Format::Gguf) => {
            write!(f, "its metadata has the key {key} twice")
        }
        (Item::MetadataEntry(key), _) => write!(f, "__metadata__ has the key {key} twice"),
        _ => write!(f, "{} occurs twice", Shown(format, item)),
    }
}

fn unknown_dtype(dtype: &UnknownDtype, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match dtype {
        UnknownDtype::Name(name) => {
            let known = safetensors::Dtype::ALL.iter().map(|dtype| dtype.name());
            let known = known.collect::<Vec<_>>().join(", ");
            write!(f, "unknown dtype {name} (expected {known})")
        }
        UnknownDtype::Number(number) => match removed_dtype(*number) {
            Some(removed) => write!(
                f,
                "type {removed} ({number}), which ggml no longer has; convert the model again with \
                 a current llama.cpp"
            ),
            None => {
                let last = gguf::Dtype::ALL[gguf::Dtype::ALL.len() - 1];
                let last_number = last.number();
                write!(
                    f,
                    "type {number}, which is not known; the last known is {last} ({last_number})"
                )
            }
        },
    }
}

fn bad_shape(format: Format, problem: &ShapeProblem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match problem {
        ShapeProblem::Overflow { offset } if format == Format::Gguf => {
            write!(f, "at offset {offset} ends past 2^64")
        }
        ShapeProblem::Overflow { .. } => f.write_str("has more than 2^64 bits"),
        ShapeProblem::PartialByte { bits } => {
            write!(f, "has {bits} bits, which is not a whole number of bytes")
        }
        ShapeProblem::PartialBlock { row, block } => {
            write!(
                f,
                "has rows of {row} elements, which is not a multiple of the block size {block}"
            )
        }
        ShapeProblem::OtherLength { needed_bytes, given_bytes } => {
            write!(f, "has {needed_bytes} bytes, but its data_offsets span {given_bytes}")
        }
    }
}

/// A part of a file of a format.
struct Shown<'a>(Format, &'a Item);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(format, item) = self;
        let metadata = if *format == Format::Safetensors { "__metadata__" } else { "metadata" };
        match item {
            Item::Tensor(name) => write!(f, "tensor {name}"),
            Item::TensorNumber(number) => write!(f, "tensor number {number}"),
            Item::TensorField { tensor, field } => write!(f, "{field} of tensor {tensor}"),
            Item::Metadata => f.write_str(metadata),
            Item::MetadataEntry(key) => write!(f, "{metadata} {key}"),
            Item::MetadataNumber(number) => write!(f, "{metadata} number {number}"),
            Item::WeightMap => f.write_str("weight_map"),
        }
    }
}

/// The part of a file that the rest of the text is about; nothing if that is the whole file.
struct Prefix<'a>(Format, Option<&'a Item>);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.map_or(Ok(()), |item| write!(f, "{}: ", Shown(self.0, item)))
    }
}
