//! Properties of the parsers for any input. Each function panics if a property is violated.
//!
//! The fuzz targets call these, and so does the test of `longshore-load` that replays the corpora.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use longshore_formats::Error;
use longshore_formats::index::ShardIndex;
use longshore_formats::safetensors::{DIMENSIONS_MAX, Header};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Parses `data` first as a whole safetensors file and then as the text of a header, and compares
/// [`Header::parse`] with the format's reference implementation.
pub fn safetensors_header(data: &[u8]) {
    let theirs = SafeTensors::read_metadata(data).ok().map(|(_, metadata)| metadata);
    compare(data, data.len() as u64, theirs.as_ref());

    let mut file = (data.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(data);
    let theirs: Option<Metadata> = serde_json::from_slice(data).ok();
    let data_len = theirs.as_ref().map_or(0, Metadata::data_len);
    let file_len = file.len() as u64 + data_len as u64;
    compare(&file, file_len, theirs.as_ref().filter(|_| !data.is_empty()));
    // A file with one byte more or less is invalid.
    for wrong in [file_len + 1, file_len - 1] {
        assert!(Header::parse(&file, wrong).is_err());
    }
}

/// Compares our result with theirs, for a file that begins with `bytes`.
fn compare(bytes: &[u8], file_len: u64, theirs: Option<&Metadata>) {
    let ours = Header::parse(bytes, file_len);
    match (ours, theirs) {
        (Ok(ours), Some(theirs)) => agree(&ours, theirs, file_len),
        (Ok(ours), None) => panic!("accepted, but the reference refuses it: {ours:?}"),
        (Err(refused), Some(_)) => {
            let strict = serde_json::from_slice(header_text(bytes)).is_ok_and(is_refused_by_choice);
            assert!(strict, "refused, but the reference accepts it: {refused}");
            is_presentable(&refused);
        }
        (Err(refused), None) => is_presentable(&refused),
    }
}

fn agree(ours: &Header, theirs: &Metadata, file_len: u64) {
    assert_eq!(ours.tensors.len(), theirs.tensors().len());
    let mut end = ours.data_offset;
    for tensor in &ours.tensors {
        assert_eq!(tensor.data.start, end, "gap or overlap before {tensor:?}");
        end = tensor.data.end;
        let theirs = theirs.info(&tensor.name).expect("a tensor they do not have");
        assert_eq!(tensor.dtype.name(), theirs.dtype.to_string());
        assert_eq!(tensor.dtype.bits(), theirs.dtype.bitsize() as u64);
        assert!(tensor.shape.iter().copied().eq(theirs.shape.iter().map(|it| *it as u64)));
        let (theirs_start, theirs_end) = theirs.data_offsets;
        assert_eq!(tensor.data.start, ours.data_offset + theirs_start as u64);
        assert_eq!(tensor.data.end, ours.data_offset + theirs_end as u64);
    }
    assert_eq!((end, ours.file_len_bytes()), (file_len, file_len));
    let none = std::collections::HashMap::new();
    let theirs = theirs.metadata().as_ref().unwrap_or(&none);
    assert_eq!(ours.metadata, theirs.clone().into_iter().collect::<BTreeMap<_, _>>());
}

/// Checks that a message has no control characters, which a hostile name could bring to a terminal.
fn is_presentable(error: &Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
    assert!(text.len() < 4096, "{} bytes of message", text.len());
}

fn header_text(bytes: &[u8]) -> &[u8] {
    let (prefix, text) = bytes.split_first_chunk::<8>().expect("they read it");
    &text[..u64::from_le_bytes(*prefix) as usize]
}

/// Returns `true` if the header is one that the reference accepts and we refuse, as the module's
/// documentation says.
fn is_refused_by_choice(header: Json) -> bool {
    let Json::Object(entries) = header else { return false };
    has_twice(&entries)
        || entries.iter().any(|(key, value)| match value {
            Json::Object(entries) if key == "__metadata__" => has_twice(entries),
            Json::Object(fields) => fields.iter().any(|(key, value)| match value {
                Json::List(len) => key == "shape" && *len > DIMENSIONS_MAX,
                value => key == "dtype" && !matches!(value, Json::Text),
            }),
            _ => key != "__metadata__",
        })
}

fn has_twice(entries: &[(String, Json)]) -> bool {
    let mut keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// JSON with every key, including those that occur twice.
enum Json {
    /// An object: its entries.
    Object(Vec<(String, Json)>),
    /// A list: its length.
    List(usize),
    Text,
    Other,
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Json, E> {
        Ok(Json::Text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut len = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            len += 1;
        }
        Ok(Json::List(len))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = object.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Object(entries))
    }
}

/// Takes `data` as the index of a model in shards. None of the names it lets pass leads out of the
/// folder, and it says what the JSON says.
pub fn shard_index(data: &[u8]) {
    let folder = Path::new("folder");
    let index = match ShardIndex::parse(data) {
        Ok(index) => index,
        Err(refused) => return is_presentable(&refused),
    };
    assert!(index.shards().is_sorted_by(|a, b| a < b));
    for shard in index.shards() {
        let path = folder.join(shard);
        assert!(path.starts_with(folder) && path != folder, "{shard:?}");
        let normal = |part| matches!(part, std::path::Component::Normal(_));
        assert!(path.components().all(normal) && !shard.contains('\0'), "{shard:?}");
    }
    let json: serde_json::Value = serde_json::from_slice(data).expect("it was read");
    let map = json["weight_map"].as_object().expect("it was read");
    assert_eq!(map.len(), index.tensors().len());
    for (tensor, shard) in index.tensors() {
        assert_eq!(map[tensor].as_str(), Some(shard));
    }
    if let Some(total) = index.total_size_bytes() {
        assert_eq!(json["metadata"]["total_size"].as_f64(), Some(total as f64));
    }
    // Headers of no tensors have none of those it names.
    let empty = Header::new(Vec::new(), BTreeMap::new(), 10);
    let headers = vec![empty; index.shards().len()];
    is_presentable(&index.check(&headers).expect_err("tensors are missing"));
}
