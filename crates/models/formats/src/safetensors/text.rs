//! The parser of a header's text, which makes one pass.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::de::{Error, MapAccess, SeqAccess};

use super::dtype::Dtype;
use super::header::Tensor;
use super::limits::{DIMENSIONS_MAX, METADATA_ENTRIES_MAX, TENSORS_MAX};
use crate::json::{At, Expect, Refusal, Skip, Text, Unsigned};
use crate::quoted::QuotedName;
use crate::reason::{Item, Quantity, Reason, UnknownDtype};

const METADATA_KEY: &str = "__metadata__";

/// The length of the shortest description of a tensor. It bounds the number of tensors in a header, so
/// that their list is allocated once: while a list grows, it is in memory twice.
const DESCRIPTION_LEN_MIN: usize = r#""":{"dtype":"U8","shape":[],"data_offsets":[0,0]}"#.len();

/// The content of a header, not yet checked for consistency.
pub(super) struct Claims {
    /// The tensors in the order of the text. Their ranges are relative to the beginning of the data.
    pub(super) tensors: Vec<Tensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Parses the text of a header.
///
/// # Errors
/// The first problem found.
pub(super) fn parse(text: &str) -> Result<Claims, Box<Reason>> {
    let fitting = text.len() / DESCRIPTION_LEN_MIN + 1;
    let mut claims =
        Claims { tensors: Vec::with_capacity(fitting.min(TENSORS_MAX)), metadata: BTreeMap::new() };
    let refusal = Refusal::default();
    refusal.read(text, HeaderObject { into: &mut claims, refusal: &refusal })?;
    claims.tensors.shrink_to_fit();
    Ok(claims)
}

struct HeaderObject<'a> {
    into: &'a mut Claims,
    refusal: &'a Refusal,
}

impl<'de> Expect<'de> for HeaderObject<'_> {
    type Value = ();
    const WHAT: &'static str = "an object of tensors";

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let Self { into, refusal } = self;
        let mut metadata_seen = false;
        while let Some(name) = object.next_key_seed(At(Text))? {
            if name == METADATA_KEY {
                if std::mem::replace(&mut metadata_seen, true) {
                    return Err(refusal.refuse(|| Reason::Duplicate { item: Item::Metadata }));
                }
                let seed = MetadataObject { into: &mut into.metadata, refusal };
                let read = object.next_value_seed(At(seed));
                read.map_err(|error| refusal.within(error, || Item::Metadata))?;
                continue;
            }
            if into.tensors.len() == TENSORS_MAX {
                return Err(refusal.refuse(|| too_many(None, Quantity::Tensors, TENSORS_MAX)));
            }
            let about = About { tensor: &name, refusal };
            let read = object.next_value_seed(At(Description(&about)));
            let (dtype, shape, [start, end]) =
                read.map_err(|error| refusal.within(error, || about.item()))?;
            into.tensors.push(Tensor { name, dtype, shape, data: start..end });
        }
        Ok(())
    }
}

/// The free-form metadata: strings by name.
struct MetadataObject<'a> {
    into: &'a mut BTreeMap<String, String>,
    refusal: &'a Refusal,
}

impl<'de> Expect<'de> for MetadataObject<'_> {
    type Value = ();
    const WHAT: &'static str = "an object of strings";

    fn null<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let Self { into, refusal } = self;
        while let Some(key) = object.next_key_seed(At(Text))? {
            if into.len() == METADATA_ENTRIES_MAX {
                let (item, quantity) = (Some(Item::Metadata), Quantity::MetadataEntries);
                return Err(refusal.refuse(|| too_many(item, quantity, METADATA_ENTRIES_MAX)));
            }
            let entry = |key: &str| Item::MetadataEntry(QuotedName::new(key));
            let read = object.next_value_seed(At(Text));
            let value = read.map_err(|error| refusal.within(error, || entry(&key)))?;
            match into.entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert(value);
                }
                Entry::Occupied(occupied) => {
                    let item = entry(occupied.key());
                    return Err(refusal.refuse(|| Reason::Duplicate { item }));
                }
            }
        }
        Ok(())
    }
}

fn too_many(item: Option<Item>, quantity: Quantity, max: usize) -> Reason {
    Reason::TooLarge { item, quantity, found: None, max: max as u64 }
}

/// The tensor that is being parsed.
struct About<'a> {
    tensor: &'a str,
    refusal: &'a Refusal,
}

impl About<'_> {
    fn name(&self) -> QuotedName {
        QuotedName::new(self.tensor)
    }

    fn item(&self) -> Item {
        Item::Tensor(self.name())
    }

    fn field(&self, field: Field) -> Item {
        Item::TensorField { tensor: self.name(), field: field.name() }
    }
}

/// The object that describes one tensor.
struct Description<'a>(&'a About<'a>);

impl<'de> Expect<'de> for Description<'_> {
    type Value = (Dtype, Vec<u64>, [u64; 2]);
    const WHAT: &'static str = "an object with dtype, shape and data_offsets";

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let about = self.0;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = object.next_key_seed(At(FieldName))? {
            let twice = match field {
                Field::Dtype => {
                    dtype.replace(object.next_value_seed(At(DtypeName(about)))?).is_some()
                }
                Field::Shape => shape.replace(object.next_value_seed(At(Shape(about)))?).is_some(),
                Field::DataOffsets => {
                    offsets.replace(object.next_value_seed(At(Offsets))?).is_some()
                }
                Field::Unknown => {
                    object.next_value_seed(At(Skip))?;
                    false
                }
            };
            if twice {
                let item = || about.field(field);
                return Err(about.refusal.refuse(|| Reason::Duplicate { item: item() }));
            }
        }
        let missing = |field: Field| {
            move || about.refusal.refuse(|| Reason::Missing { item: about.field(field) })
        };
        Ok((
            dtype.ok_or_else(missing(Field::Dtype))?,
            shape.ok_or_else(missing(Field::Shape))?,
            offsets.ok_or_else(missing(Field::DataOffsets))?,
        ))
    }
}

#[derive(Clone, Copy)]
enum Field {
    Dtype,
    Shape,
    DataOffsets,
    Unknown,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Self::Dtype => "dtype",
            Self::Shape => "shape",
            Self::DataOffsets => "data_offsets",
            Self::Unknown => "",
        }
    }
}

struct FieldName;

impl Expect<'_> for FieldName {
    type Value = Field;
    const WHAT: &'static str = "a name";

    fn text<E: Error>(self, text: &str) -> Result<Field, E> {
        Ok(match text {
            "dtype" => Field::Dtype,
            "shape" => Field::Shape,
            "data_offsets" => Field::DataOffsets,
            _ => Field::Unknown,
        })
    }
}

struct DtypeName<'a>(&'a About<'a>);

impl Expect<'_> for DtypeName<'_> {
    type Value = Dtype;
    const WHAT: &'static str = "the name of a dtype";

    fn text<E: Error>(self, text: &str) -> Result<Dtype, E> {
        Dtype::from_name(text).ok_or_else(|| {
            let dtype = || UnknownDtype::Name(QuotedName::new(text));
            let Self(about) = self;
            about.refusal.refuse(|| Reason::UnknownDtype { tensor: about.name(), dtype: dtype() })
        })
    }
}

struct Shape<'a>(&'a About<'a>);

impl<'de> Expect<'de> for Shape<'_> {
    type Value = Vec<u64>;
    const WHAT: &'static str = "a list of dimensions";

    fn list<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u64>, A::Error> {
        // Collect on the stack first, so that the allocation has the exact size.
        let mut dimensions = [0; DIMENSIONS_MAX];
        let mut count = 0;
        while let Some(dimension) = list.next_element_seed(At(Unsigned))? {
            let Some(place) = dimensions.get_mut(count) else {
                let Self(about) = self;
                return Err(about.refusal.refuse(|| {
                    too_many(Some(about.item()), Quantity::Dimensions, DIMENSIONS_MAX)
                }));
            };
            *place = dimension;
            count += 1;
        }
        Ok(dimensions[..count].to_vec())
    }
}

struct Offsets;

impl<'de> Expect<'de> for Offsets {
    type Value = [u64; 2];
    const WHAT: &'static str = "data_offsets of a begin and an end";

    fn list<A: SeqAccess<'de>>(self, mut list: A) -> Result<[u64; 2], A::Error> {
        let begin = list.next_element_seed(At(Unsigned))?;
        let end = list.next_element_seed(At(Unsigned))?;
        let more = list.next_element_seed(At(Skip))?;
        match (begin, end, more) {
            (Some(begin), Some(end), None) => Ok([begin, end]),
            _ => Err(A::Error::custom("data_offsets must be two numbers, the begin and the end")),
        }
    }
}
