//! The index of a model in several safetensors files, which maps each tensor to its file.
//!
//! `model.safetensors.index.json` contains `{"metadata": {"total_size": n}, "weight_map": {tensor:
//! file}}`. The files, called shards, are in the same folder or below it. An index is untrusted input,
//! like the shards: a name in it must not lead out of the folder.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::de::{Error as _, MapAccess};

use crate::error::{Error, Result};
use crate::format::Format;
use crate::json::{At, Expect, Refusal, Skip, Text};
use crate::quoted::QuotedName;
use crate::reason::{Item, Quantity, Reason, ShardNameProblem, ShardProblem};
use crate::safetensors::{Dtype, HEADER_LEN_MAX_BYTES, Header, TENSORS_MAX};

/// The name of the format in messages.
const FORMAT: Format = Format::SafetensorsIndex;

/// The length limit of an index, in bytes. It is that of a header, which has more text for each tensor.
pub const INDEX_LEN_MAX_BYTES: u64 = HEADER_LEN_MAX_BYTES;

/// The limit on the shards of a model, whose numbers have five digits.
pub const SHARDS_MAX: usize = 99_999;

/// The length of the shortest possible entry of a weight map.
const ENTRY_LEN_MIN: usize = r#""":"a""#.len();

/// Returns an upper bound on the heap memory, in bytes, that parsing an index of `len_bytes` takes at
/// any time, without the headers of the shards. It covers the text, the names of the tensors, the
/// buffer for unescaping the longest string, and 48 MiB for the lists of [`TENSORS_MAX`] tensors and
/// [`SHARDS_MAX`] shards.
pub const fn parse_memory_max_bytes(len_bytes: u64) -> u64 {
    len_bytes.saturating_mul(5).saturating_add(48 << 20)
}

/// The index of a model: the shard of each tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIndex {
    /// The names, sorted.
    shards: Vec<String>,
    /// The names of tensors, sorted, with indices into `shards`.
    tensors: Vec<(String, u32)>,
    total_size_bytes: Option<u64>,
}

impl ShardIndex {
    /// Parses an index from the whole content of a file, of at most [`INDEX_LEN_MAX_BYTES`].
    ///
    /// # Errors
    /// [`Error`] if it is not a valid index.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        check_len(bytes.len() as u64)?;
        let claims = Claims::parse(bytes).map_err(|reason| Error::new(FORMAT, reason))?;
        let mut tensors = claims.tensors;
        tensors.sort_unstable();
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let item = Item::Tensor(QuotedName::new(&pair[0].0));
            return Err(Error::new(FORMAT, Reason::Duplicate { item }));
        }
        // The parser numbered the shards in the order of the text. Renumber them in sorted order.
        let mut place_by_number = vec![0; claims.shards.len()];
        for (place, number) in (0..).zip(claims.shards.values()) {
            place_by_number[*number as usize] = place;
        }
        for (_, shard) in &mut tensors {
            *shard = place_by_number[*shard as usize];
        }
        Ok(Self {
            shards: claims.shards.into_keys().collect(),
            tensors,
            total_size_bytes: claims.total_size_bytes,
        })
    }

    /// Returns the names of the shards, each once and sorted. They are relative paths without `..`, so
    /// only a symbolic link can lead out of the folder.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Returns the names of the tensors, sorted, each with the name of its shard.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.tensors.iter().map(|(name, shard)| (name.as_str(), self.shard_name(*shard)))
    }

    /// Returns the number of bytes that the index declares for the tensors of all shards, if it has one.
    /// Tools count it in different ways.
    pub fn total_size_bytes(&self) -> Option<u64> {
        self.total_size_bytes
    }

    /// Checks the headers of the shards, in the order of [`Self::shards`]: every tensor of the index is
    /// in its shard, and no tensor is in two. Shards may contain tensors that the index does not name.
    ///
    /// The total size must lie between the bytes of the tensors, with a boolean counted as one bit, and
    /// the length of all files, because tools count it in these ways.
    ///
    /// # Errors
    /// [`Error`] of the index, if it contradicts the headers.
    pub fn check(&self, headers: &[Header]) -> Result<()> {
        let problem = self.contradiction(headers);
        problem.map_or(Ok(()), |problem| Err(Error::new(FORMAT, Reason::Shards(problem))))
    }

    fn contradiction(&self, headers: &[Header]) -> Option<ShardProblem> {
        if headers.len() != self.shards.len() {
            let (shards, given) = (self.shards.len(), headers.len());
            return Some(ShardProblem::HeaderCount { shards, given });
        }
        let mut there: Vec<(&str, u32)> = Vec::new();
        for (shard, header) in (0..).zip(headers) {
            there.extend(header.tensors.iter().map(|tensor| (tensor.name.as_str(), shard)));
        }
        there.sort_unstable();
        if let Some(pair) = there.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Some(ShardProblem::TensorTwice {
                tensor: QuotedName::new(pair[0].0),
                first: self.quoted_shard(pair[0].1),
                second: self.quoted_shard(pair[1].1),
            });
        }
        for (name, shard) in &self.tensors {
            let found = there.binary_search_by_key(&name.as_str(), |(name, _)| name);
            let found = found.ok().map(|at| there[at].1);
            if found == Some(*shard) {
                continue;
            }
            return Some(ShardProblem::OtherShard {
                tensor: QuotedName::new(name),
                shard: self.quoted_shard(*shard),
                found: found.map(|other| self.quoted_shard(other)),
            });
        }
        self.impossible_total_size(headers)
    }

    fn impossible_total_size(&self, headers: &[Header]) -> Option<ShardProblem> {
        let total_size_bytes = self.total_size_bytes?;
        let (mut least, mut most) = (0u128, 0u128);
        for header in headers {
            most += u128::from(header.file_len_bytes());
            for tensor in &header.tensors {
                let counted_as_bits = if tensor.dtype == Dtype::Bool { 8 } else { 1 };
                least += u128::from(tensor.len_bytes() / counted_as_bits);
            }
        }
        let is_possible = (least..=most).contains(&u128::from(total_size_bytes));
        (!is_possible).then_some(ShardProblem::TotalSize { total_size_bytes, found_bytes: least })
    }

    fn shard_name(&self, shard: u32) -> &str {
        &self.shards[shard as usize]
    }

    fn quoted_shard(&self, shard: u32) -> QuotedName {
        QuotedName::new(self.shard_name(shard))
    }
}

/// Checks the length of an index before it is read.
///
/// # Errors
/// [`Error`] if `len_bytes` is above [`INDEX_LEN_MAX_BYTES`].
pub fn check_len(len_bytes: u64) -> Result<()> {
    if len_bytes > INDEX_LEN_MAX_BYTES {
        return Err(Error::new(
            FORMAT,
            Reason::TooLarge {
                item: None,
                quantity: Quantity::FileBytes,
                found: Some(len_bytes),
                max: INDEX_LEN_MAX_BYTES,
            },
        ));
    }
    Ok(())
}

/// Returns the problem of a shard name, if it has one.
fn unusable(name: &str) -> Option<ShardNameProblem> {
    if name.is_empty() {
        return Some(ShardNameProblem::Empty);
    }
    if name.contains('\0') {
        return Some(ShardNameProblem::Nul);
    }
    let path = Path::new(name);
    if path.is_absolute() {
        return Some(ShardNameProblem::Absolute);
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Some(ShardNameProblem::ParentDirectory);
    }
    // `components` drops './', '//' and a '/' at the end.
    let plain: PathBuf =
        path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    (plain.as_os_str() != path.as_os_str()).then_some(ShardNameProblem::NotPlain)
}

/// The content of an index, not yet sorted.
#[derive(Default)]
struct Claims {
    /// The names of tensors, with the numbers of their shards.
    tensors: Vec<(String, u32)>,
    /// The numbers of shards, by name.
    shards: BTreeMap<String, u32>,
    total_size_bytes: Option<u64>,
}

impl Claims {
    fn parse(bytes: &[u8]) -> std::result::Result<Self, Box<Reason>> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| Reason::NotUtf8 { item: None, offset: error.valid_up_to() as u64 })?;
        let refusal = Refusal::default();
        let object = IndexObject { refusal: &refusal, len_bytes: text.len() };
        let claims = refusal.read(text, object)?;
        if claims.tensors.is_empty() {
            return Err(Box::new(Reason::Missing { item: Item::WeightMap }));
        }
        Ok(claims)
    }
}

struct IndexObject<'a> {
    refusal: &'a Refusal,
    len_bytes: usize,
}

impl<'de> Expect<'de> for IndexObject<'_> {
    type Value = Claims;
    const WHAT: &'static str = "an object with a weight_map";

    fn object<A: MapAccess<'de>>(self, mut object: A) -> std::result::Result<Claims, A::Error> {
        let mut claims = Claims::default();
        let (mut map_seen, mut metadata_seen) = (false, false);
        let once = |seen: &mut bool, item: Item| {
            if std::mem::replace(seen, true) {
                return Err(self.refusal.refuse::<A::Error>(|| Reason::Duplicate { item }));
            }
            Ok(())
        };
        while let Some(key) = object.next_key_seed(At(Key))? {
            match key {
                "weight_map" => {
                    once(&mut map_seen, Item::WeightMap)?;
                    let fitting = self.len_bytes / ENTRY_LEN_MIN + 1;
                    claims.tensors.reserve_exact(fitting.min(TENSORS_MAX));
                    let seed = WeightMap { into: &mut claims, refusal: self.refusal };
                    object.next_value_seed(At(seed))?;
                    claims.tensors.shrink_to_fit();
                }
                "metadata" => {
                    once(&mut metadata_seen, Item::Metadata)?;
                    claims.total_size_bytes = object.next_value_seed(At(MetadataObject))?;
                }
                _ => object.next_value_seed(At(Skip))?,
            }
        }
        Ok(claims)
    }
}

/// A key of the format, or an empty string for any other key.
struct Key;

impl Expect<'_> for Key {
    type Value = &'static str;
    const WHAT: &'static str = "a name";

    fn text<E: serde::de::Error>(self, text: &str) -> std::result::Result<&'static str, E> {
        let known = ["weight_map", "metadata", "total_size"];
        Ok(known.into_iter().find(|known| *known == text).unwrap_or(""))
    }
}

struct WeightMap<'a> {
    into: &'a mut Claims,
    refusal: &'a Refusal,
}

impl<'de> Expect<'de> for WeightMap<'_> {
    type Value = ();
    const WHAT: &'static str = "a weight_map of tensors and their files";

    fn object<A: MapAccess<'de>>(self, mut object: A) -> std::result::Result<(), A::Error> {
        let Self { into: Claims { tensors, shards, .. }, refusal } = self;
        let too_many = |quantity, max: usize| {
            refusal.refuse::<A::Error>(|| Reason::TooLarge {
                item: None,
                quantity,
                found: None,
                max: max as u64,
            })
        };
        while let Some(tensor) = object.next_key_seed(At(Text))? {
            if tensors.len() == TENSORS_MAX {
                return Err(too_many(Quantity::Tensors, TENSORS_MAX));
            }
            let read = object.next_value_seed(At(Text));
            let shard = read.map_err(|error| {
                refusal.within(error, || Item::Tensor(QuotedName::new(&tensor)))
            })?;
            let number = match shards.get(&shard) {
                Some(number) => *number,
                None => {
                    if let Some(problem) = unusable(&shard) {
                        let name = QuotedName::new(&shard);
                        let problem = ShardProblem::BadName { name, problem };
                        return Err(refusal.refuse(|| Reason::Shards(problem)));
                    }
                    if shards.len() == SHARDS_MAX {
                        return Err(too_many(Quantity::Shards, SHARDS_MAX));
                    }
                    // Fits: there are at most SHARDS_MAX.
                    let number = shards.len() as u32;
                    shards.insert(shard, number);
                    number
                }
            };
            tensors.push((tensor, number));
        }
        Ok(())
    }
}

/// The metadata. Only the total size is kept.
struct MetadataObject;

impl<'de> Expect<'de> for MetadataObject {
    type Value = Option<u64>;
    const WHAT: &'static str = "an object";

    fn null<E: serde::de::Error>(self) -> std::result::Result<Option<u64>, E> {
        Ok(None)
    }

    fn object<A: MapAccess<'de>>(
        self,
        mut object: A,
    ) -> std::result::Result<Option<u64>, A::Error> {
        let mut total_size = None;
        while let Some(key) = object.next_key_seed(At(Key))? {
            if key != "total_size" {
                object.next_value_seed(At(Skip))?;
            } else if total_size.replace(object.next_value_seed(At(TotalSize))?).is_some() {
                return Err(A::Error::custom("total_size occurs twice"));
            }
        }
        Ok(total_size.flatten())
    }
}

/// A number of bytes, which some tools write as a float. A value that is not a whole number is ignored.
struct TotalSize;

impl Expect<'_> for TotalSize {
    type Value = Option<u64>;
    const WHAT: &'static str = "a number of bytes";

    fn null<E: serde::de::Error>(self) -> std::result::Result<Option<u64>, E> {
        Ok(None)
    }

    fn unsigned<E: serde::de::Error>(self, number: u64) -> std::result::Result<Option<u64>, E> {
        Ok(Some(number))
    }

    fn negative<E: serde::de::Error>(self, _: i64) -> std::result::Result<Option<u64>, E> {
        Ok(None)
    }

    fn text<E: serde::de::Error>(self, _: &str) -> std::result::Result<Option<u64>, E> {
        Ok(None)
    }

    fn float<E: serde::de::Error>(self, number: f64) -> std::result::Result<Option<u64>, E> {
        // Below 2^53 whole numbers are exact.
        let exact = (0.0..9e15).contains(&number) && number.fract() == 0.0;
        Ok(exact.then_some(number as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::Tensor;

    fn parse(text: &str) -> std::result::Result<ShardIndex, String> {
        ShardIndex::parse(text.as_bytes()).map_err(|error| reason(&error))
    }

    fn reason(error: &Error) -> String {
        assert_eq!(error.format(), FORMAT);
        error.detail().to_string()
    }

    fn header(tensors: &[(&str, Dtype, u64)]) -> Header {
        let mut end = 100;
        let tensors = tensors.iter().map(|(name, dtype, len)| {
            let start = end;
            end += len;
            Tensor { name: (*name).to_owned(), dtype: *dtype, shape: vec![], data: start..end }
        });
        Header { tensors: tensors.collect(), metadata: BTreeMap::new(), data_offset: 100 }
    }

    const THREE: &str = r#"{"weight_map":{"b":"m-2","a":"m-1","c":"m-2"},"metadata":{"total_size":24.0,"format":[1]},"more":{}}"#;

    #[test]
    fn shards_are_listed_once_and_sorted() {
        let index = parse(THREE).unwrap();
        assert_eq!(index.shards(), ["m-1", "m-2"]);
        let tensors: Vec<_> = index.tensors().collect();
        assert_eq!(tensors, [("a", "m-1"), ("b", "m-2"), ("c", "m-2")]);
        assert_eq!(index.total_size_bytes(), Some(24));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for (name, fault) in [
            ("../m", "has '..' in it"),
            ("a/../../m", "has '..' in it"),
            ("a/..", "has '..' in it"),
            ("/etc/passwd", "is absolute"),
            ("", "is empty"),
            (r"m\u0000.safetensors", "has a NUL in it"),
            (".", "is not a plain relative name"),
            ("./m", "is not a plain relative name"),
            ("a//m", "is not a plain relative name"),
            ("a/./m", "is not a plain relative name"),
            ("m/", "is not a plain relative name"),
        ] {
            let reason = parse(&format!(r#"{{"weight_map":{{"t":"{name}"}}}}"#)).unwrap_err();
            assert!(reason.starts_with("it cannot be read: the shard name"), "{name}: {reason}");
            assert!(reason.ends_with(fault), "{name}: {reason}");
        }
        for name in ["m", "a/m", "..m", "a/...", ".hidden", r"a\\..\\m"] {
            parse(&format!(r#"{{"weight_map":{{"t":"{name}"}}}}"#)).unwrap();
        }
    }

    #[test]
    fn text_that_is_not_an_index_is_refused() {
        for (text, expected) in [
            ("", "it cannot be read: EOF while parsing a value at line 1 column 0"),
            ("{}", "its weight_map is missing or names no tensor"),
            (r#"{"weight_map":{}}"#, "its weight_map is missing or names no tensor"),
            (r#"{"weight_map":{"a":"x","a":"y"}}"#, r#"its weight_map has the tensor "a" twice"#),
            (
                r#"{"weight_map":{"a":"x"},"weight_map":{"b":"x"}}"#,
                "it cannot be read: weight_map occurs twice",
            ),
            (
                r#"{"weight_map":{"a":1}}"#,
                r#"it cannot be read: tensor "a": expected a string, found 1 at line 1 column 20"#,
            ),
            (
                "[]",
                "it cannot be read: expected an object with a weight_map, found a list at line 1 \
                 column 2",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
        let latin = ShardIndex::parse(b"{\"\xe4").unwrap_err();
        assert_eq!(reason(&latin), "it is not UTF-8 from byte 2 on");
        for ignored in ["null", "\"24\"", "-1", "0.5", "1e300"] {
            let text =
                format!(r#"{{"weight_map":{{"a":"x"}},"metadata":{{"total_size":{ignored}}}}}"#);
            assert_eq!(parse(&text).unwrap().total_size_bytes(), None, "{ignored}");
        }
    }

    #[test]
    fn each_tensor_must_be_in_its_shard_and_in_no_other() {
        let index = parse(THREE).unwrap();
        let check = |first: &[(&str, Dtype, u64)], second: &[(&str, Dtype, u64)]| {
            index.check(&[header(first), header(second)]).map_err(|error| reason(&error))
        };
        let (u8, bool) = (Dtype::U8, Dtype::Bool);
        // The total size counts tensors, then files, then tensors with booleans as bits.
        check(&[("a", u8, 8)], &[("b", u8, 8), ("c", u8, 8)]).unwrap();
        check(&[("a", u8, 1)], &[("unnamed", u8, 1), ("b", u8, 1), ("c", u8, 1)]).unwrap();
        check(&[("a", u8, 16)], &[("b", bool, 64), ("c", bool, 0)]).unwrap();
        for (first, second, expected) in [
            (
                &[("a", u8, 8), ("b", u8, 8)][..],
                &[("b", u8, 8), ("c", u8, 8)][..],
                r#"tensor "b" is in two shards, "m-1" and "m-2""#,
            ),
            (
                &[("a", u8, 8)],
                &[("b", u8, 8)],
                r#"tensor "c" is not in the shard "m-2" that the index names, nor in any other; are the shards and the index of the same version?"#,
            ),
            (
                &[("a", u8, 8), ("c", u8, 8)],
                &[("b", u8, 8)],
                r#"tensor "c" is not in the shard "m-2" that the index names, but in "m-1"; are the shards and the index of the same version?"#,
            ),
            (
                &[("a", u8, 9)],
                &[("b", u8, 8), ("c", u8, 8)],
                "it declares 24 bytes of tensors, but the shards have 25; name the shards one by one to load them as they are",
            ),
        ] {
            assert_eq!(check(first, second).unwrap_err(), expected);
        }
        let one = reason(&index.check(&[header(&[])]).unwrap_err());
        assert_eq!(one, "it has 2 shards, and 1 headers were given");
    }
}
