//! GGUF files: compared with the Python package gguf, within the documented memory bound, and loaded
//! into a buffer.

use std::fs;
use std::path::{Path, PathBuf};

use longshore_formats::gguf::{
    self, Array, Dtype, HEADER_LEN_MAX_BYTES, Header, METADATA_ENTRIES_MAX, TENSORS_MAX, Value,
    ValueType,
};
use longshore_formats::{Dtype as AnyDtype, Format};
use longshore_heap::Heap;
use longshore_load::{Error, FormatChoice, Loader, Opened, SourceFile, open, read_gguf_header};
use longshore_mem::Granule;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

#[expect(unreachable_pub, reason = "the file belongs to the fuzzers, where it is public")]
#[path = "../../../../fuzz/src/gguf.rs"]
mod checks;

mod allocator;

use allocator::peak_bytes;

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::Format { reason, format: Format::Gguf, .. } => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

fn parse(bytes: &[u8]) -> longshore_formats::Result<Header> {
    Header::parse(bytes, bytes.len() as u64)
}

// Comparison with files that the Python package gguf wrote and read: see tests/gguf/make.py.

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf").join(name)
}

fn expected() -> Json {
    serde_json::from_str(&fs::read_to_string(reference("expected.json")).unwrap()).unwrap()
}

#[test]
fn every_type_is_known() {
    let expected = expected();
    let dtypes = expected["dtypes"].as_object().unwrap();
    for dtype in Dtype::ALL {
        let ours = [u64::from(dtype.number()), dtype.block_elements(), dtype.block_bytes()];
        match (dtype, dtypes.get(dtype.name())) {
            // ggml has this type, but the package does not.
            (Dtype::Q2_0, None) => assert_eq!(ours, [42, 64, 18]),
            (_, theirs) => assert_eq!(serde_json::json!(ours), *theirs.unwrap(), "{dtype}"),
        }
        assert_eq!(Dtype::from_name(dtype.name()), Some(*dtype));
        assert_eq!(Dtype::from_number(dtype.number()), Some(*dtype));
    }
    assert_eq!(dtypes.len() + 1, Dtype::ALL.len());
    assert!(Dtype::ALL.is_sorted_by_key(|dtype| dtype.number()));
    let kinds = expected["value_types"].as_object().unwrap();
    assert_eq!(kinds.len(), ValueType::ALL.len());
    for kind in ValueType::ALL {
        assert_eq!(kinds[&kind.name().to_uppercase()], kind.number());
        assert_eq!(ValueType::from_number(kind.number()), Some(*kind));
    }
    assert_eq!((Dtype::from_name("q4_k"), Dtype::from_number(4)), (None, None));
    assert_eq!(format!("{:>6}|{:<7}|", Dtype::Q4K, ValueType::Bool), "  Q4_K|bool   |");
}

#[test]
fn files_of_the_reference_are_parsed_as_it_parses_them() {
    let expected = expected();
    let files = expected["files"].as_object().unwrap();
    assert_eq!(files.len(), 8);
    for (name, expected) in files {
        let bytes = fs::read(reference(name)).unwrap();
        let header = read_gguf_header(&SourceFile::open(reference(name)).unwrap()).unwrap();
        assert_eq!(parse(&bytes).unwrap(), header);
        assert_eq!(header.version, expected["version"].as_u64().unwrap() as u32, "{name}");
        assert_eq!(header.alignment.bytes(), expected["alignment"].as_u64().unwrap(), "{name}");
        let tensors = expected["tensors"].as_array().unwrap();
        if !tensors.is_empty() {
            assert_eq!(header.data_offset, expected["data_offset"].as_u64().unwrap(), "{name}");
        }
        assert_eq!(header.tensors.len(), tensors.len());
        for (tensor, expected) in header.tensors.iter().zip(tensors) {
            assert_eq!(tensor.name, expected["name"].as_str().unwrap());
            assert_eq!(tensor.dtype.name(), expected["dtype"].as_str().unwrap());
            assert_eq!(serde_json::json!(tensor.shape), expected["shape"], "{}", tensor.name);
            assert_eq!(tensor.data.start, expected["offset"].as_u64().unwrap());
            assert_eq!(tensor.len_bytes(), expected["bytes"].as_u64().unwrap(), "{}", tensor.name);
            let data = &bytes[tensor.data.start as usize..tensor.data.end as usize];
            let digest: String =
                Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digest, expected["sha256"].as_str().unwrap(), "{}", tensor.name);
        }
        let entries = expected["metadata"].as_array().unwrap();
        assert_eq!(header.metadata.len(), entries.len());
        for ((key, value), expected) in header.metadata.iter().zip(entries) {
            assert_eq!(key, expected[0].as_str().unwrap());
            let kinds: Vec<&str> =
                expected[1].as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()).collect();
            assert_eq!(value.value_type().name().to_uppercase(), kinds[0], "{key}");
            match value {
                Value::Array(array) => {
                    assert_eq!(array.element_type().name().to_uppercase(), kinds[1], "{key}");
                    assert_eq!(Json::Array(flattened(array)), expected[2], "{key}");
                }
                value => assert_eq!(json(value), expected[2], "{key}"),
            }
            assert!(header.metadata.get(key).is_some());
        }
        checks::gguf_header(&bytes);
    }
}

/// Returns all elements of an array and of nested arrays as one list, as the reference does.
fn flattened(array: Array<'_>) -> Vec<Json> {
    let values = array.values();
    assert_eq!(values.len() as u64, array.len());
    values
        .flat_map(|value| match value {
            Value::Array(inner) => flattened(inner),
            value => vec![json(value)],
        })
        .collect()
}

fn json(value: Value<'_>) -> Json {
    match value {
        Value::U8(number) => number.into(),
        Value::I8(number) => number.into(),
        Value::U16(number) => number.into(),
        Value::I16(number) => number.into(),
        Value::U32(number) => number.into(),
        Value::I32(number) => number.into(),
        Value::U64(number) => number.into(),
        Value::I64(number) => number.into(),
        Value::F32(number) => f64::from(number).into(),
        Value::F64(number) => number.into(),
        Value::Bool(truth) => truth.into(),
        Value::String(bytes) => match value.as_str() {
            Some(text) => text.into(),
            None => {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                serde_json::json!({"hex": hex})
            }
        },
        Value::Array(_) => panic!("{value:?} is not a single value"),
    }
}

// Generated files.

/// The metadata and tensors of a file.
#[derive(Clone, Debug, Default)]
struct File {
    version: u32,
    /// The keys, types and encoded values.
    entries: Vec<(String, u32, Vec<u8>)>,
    /// The names, dimensions (innermost first), types and offsets.
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

impl File {
    fn head(&self) -> Vec<u8> {
        let mut head = b"GGUF".to_vec();
        head.extend(self.version.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.entries.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.entries {
            head.extend(text(key.as_bytes()));
            head.extend(kind.to_le_bytes());
            head.extend(value);
        }
        for (name, dimensions, dtype, offset) in &self.tensors {
            head.extend(text(name.as_bytes()));
            head.extend((dimensions.len() as u32).to_le_bytes());
            head.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
            head.extend(dtype.to_le_bytes());
            head.extend(offset.to_le_bytes());
        }
        head
    }
}

/// Encodes an array of the metadata: its type, its length, and its elements.
fn array(kind: ValueType, len: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.number().to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

fn value(depth: u32) -> BoxedStrategy<(ValueType, Vec<u8>)> {
    let number = (0..ValueType::ALL.len(), any::<u64>()).prop_map(|(at, bits)| {
        let kind = ValueType::ALL[at];
        let size = kind.size_bytes().unwrap_or(8) as usize;
        match kind {
            ValueType::Bool => (kind, vec![(bits % 2) as u8]),
            ValueType::String | ValueType::Array => (ValueType::U64, bits.to_le_bytes().to_vec()),
            _ => (kind, bits.to_le_bytes()[..size].to_vec()),
        }
    });
    let string = vec(any::<u8>(), 0..20).prop_map(|bytes| (ValueType::String, text(&bytes)));
    if depth == 0 {
        return prop_oneof![number, string].boxed();
    }
    let list = (value(depth - 1), 0..6u64).prop_map(|((kind, element), len)| {
        (ValueType::Array, array(kind, len, &element.repeat(len as usize)))
    });
    prop_oneof![2 => number, 1 => string, 2 => list].boxed()
}

/// Generates valid files.
fn file() -> impl Strategy<Value = File> {
    let key = prop_oneof!["[a-z]{1,6}(\\.[a-z_]{1,8}){0,2}", ".{0,4}"];
    let entries = proptest::collection::btree_map(key, value(3), 0..6);
    let name = prop_oneof!["blk\\.[0-9]{1,2}\\.[a-z_]{1,8}\\.weight", ".{0,6}"];
    let shape = (0..Dtype::ALL.len(), 0..4u64, vec(0..4u64, 0..4));
    let tensors = proptest::collection::btree_map(name, shape, 0..8);
    let alignment = prop_oneof![3 => Just(None), 1 => (3u32..13).prop_map(Some)];
    let shuffle = any::<Index>();
    (entries, tensors, alignment, 2..4u32, shuffle).prop_map(
        |(entries, tensors, alignment, version, shuffle)| {
            let mut entries: Vec<_> = entries
                .into_iter()
                .map(|(key, (kind, value))| (key, kind.number(), value))
                .collect();
            if let Some(log2) = alignment {
                let bytes = (1u32 << log2).to_le_bytes().to_vec();
                entries.push(("general.alignment".to_owned(), ValueType::U32.number(), bytes));
            }
            let alignment = 1u64 << alignment.unwrap_or(5);
            let mut end = 0u64;
            let mut tensors: Vec<_> = tensors
                .into_iter()
                .map(|(name, (dtype, blocks, outer))| {
                    let dtype = Dtype::ALL[dtype];
                    let mut dimensions = vec![blocks * dtype.block_elements()];
                    dimensions.extend(&outer);
                    let dimensions = if outer.len() == 4 { outer } else { dimensions };
                    let offset = end;
                    let rows: u64 = dimensions[1..].iter().product();
                    end += (blocks * dtype.block_bytes() * rows).next_multiple_of(alignment);
                    (name, dimensions, dtype.number(), offset)
                })
                .collect();
            if !tensors.is_empty() {
                // Some writers describe tensors in another order than their data.
                let by = shuffle.index(tensors.len());
                tensors.rotate_left(by);
            }
            File { version, entries, tensors }
        },
    )
}

#[derive(Clone, Debug)]
enum Damage {
    Cut(Index),
    Byte(Index, u8),
    /// Eight bytes are replaced by a number.
    Number(Index, u64),
    Repeat(Index, Index),
    Remove(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let number =
        prop_oneof![0..300u64, Just(1 << 31), Just(1 << 32), Just(1 << 63), Just(u64::MAX)];
    prop_oneof![
        any::<Index>().prop_map(Damage::Cut),
        any::<(Index, u8)>().prop_map(|(at, byte)| Damage::Byte(at, byte)),
        (any::<Index>(), number).prop_map(|(at, number)| Damage::Number(at, number)),
        any::<(Index, Index)>().prop_map(|(a, b)| Damage::Repeat(a, b)),
        any::<(Index, Index)>().prop_map(|(a, b)| Damage::Remove(a, b)),
    ]
}

fn damaged(mut head: Vec<u8>, damage: &Damage) -> Vec<u8> {
    let part = |a: &Index, b: &Index| {
        let (a, b) = (a.index(head.len()), b.index(head.len()));
        a.min(b)..a.max(b)
    };
    match damage {
        Damage::Cut(at) => head.truncate(at.index(head.len())),
        Damage::Byte(at, byte) => {
            let at = at.index(head.len());
            head[at] ^= byte;
        }
        Damage::Number(at, number) => {
            let at = at.index(head.len());
            let end = head.len().min(at + 8);
            head[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
        }
        Damage::Repeat(a, b) => {
            let again = head[part(a, b)].to_vec();
            let at = part(a, b).end;
            head.splice(at..at, again);
        }
        Damage::Remove(a, b) => drop(head.drain(part(a, b))),
    }
    head
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_files_are_parsed_and_encoded_again(file in file()) {
        let head = file.head();
        let header = Header::parse(&head, 1 << 40).unwrap();
        prop_assert_eq!(header.tensors.len(), file.tensors.len());
        checks::gguf_header(&head);

        let mut on_disk = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut on_disk, &head).unwrap();
        on_disk.as_file().set_len(1 << 30).unwrap();
        let read = read_gguf_header(&SourceFile::open(on_disk.path()).unwrap()).unwrap();
        prop_assert_eq!(read, header);
    }

    #[test]
    fn damaged_files_are_refused_if_the_simple_parser_refuses_them(
        file in file(),
        damages in vec(damage(), 1..4),
    ) {
        let mut head = file.head();
        for damage in &damages {
            if !head.is_empty() {
                head = damaged(head, damage);
            }
        }
        checks::gguf_header(&head);
        let (_, peak) = peak_bytes(|| Header::parse(&head, 1 << 40));
        prop_assert!(peak <= gguf::parse_memory_max_bytes(head.len() as u64));
    }
}

#[test]
fn the_corpus_of_the_fuzzer_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/gguf_header");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 40, "{} has only {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        checks::gguf_header(&fs::read(file).unwrap());
    }
}

// Memory.

/// Reads a header from a file that continues with a hole, and checks the peak of the allocated memory.
/// Returns the reason if the header is refused.
#[track_caller]
fn within_bound(head: &[u8]) -> Option<String> {
    let mut on_disk = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    std::io::Write::write_all(&mut on_disk, head).unwrap();
    on_disk.as_file().set_len(1 << 40).unwrap();
    let source = SourceFile::open(on_disk.path()).unwrap();
    let (read, peak) = peak_bytes(|| read_gguf_header(&source));
    let bound = gguf::parse_memory_max_bytes(head.len() as u64);
    assert!(peak <= bound, "{peak} bytes for a header of {}, above {bound}", head.len());
    read.is_err().then(|| reason(read))
}

/// Returns a header of `count` tensors, which are scalars or have no data.
fn many_tensors(count: u64, dimensions: usize) -> Vec<u8> {
    let tensor = |number: u64| (format!("{number:x}"), vec![0; dimensions], 0, number * 32);
    File { version: 3, tensors: (0..count).map(tensor).collect(), ..File::default() }.head()
}

/// Returns a header with one entry of metadata.
fn one_entry(key: &str, kind: ValueType, value: Vec<u8>) -> Vec<u8> {
    let entries = vec![(key.to_owned(), kind.number(), value)];
    File { version: 3, entries, ..File::default() }.head()
}

#[test]
fn ten_million_tensors_are_refused_within_the_bound() {
    assert_eq!(
        within_bound(&many_tensors(TENSORS_MAX + 1, 0)).unwrap(),
        "it declares 1048577 tensors, more than the limit of 1048576"
    );
    // A count that is too large takes no memory, even if the file is long enough for it.
    for (at, what) in [(8, "tensors"), (16, "entries of metadata")] {
        for count in [10_000_000, 1 << 63, u64::MAX] {
            let mut head = many_tensors(1, 0);
            head[at..at + 8].copy_from_slice(&u64::to_le_bytes(count));
            let refused = within_bound(&head).unwrap();
            assert!(refused.starts_with(&format!("it declares {count} {what}, ")));
        }
        let mut head = many_tensors(0, 0);
        head[at..at + 8].copy_from_slice(&30_000u64.to_le_bytes());
        let file_len = head.len() as u64;
        let (refused, peak) = peak_bytes(|| Header::parse(&head, file_len));
        assert!(refused.unwrap_err().detail().to_string().contains("but is too short for them"));
        assert!(peak < 4096, "{peak}");
    }
}

#[test]
fn the_largest_counts_are_read_within_the_bound() {
    assert_eq!(within_bound(&many_tensors(TENSORS_MAX, 0)), None);
    assert_eq!(within_bound(&many_tensors(200_000, 4)), None);
    // The descriptions are in the reverse order of the data.
    let tensor = |number: u64| (format!("{number:x}"), vec![], 0, number * 32);
    let tensors = (0..200_000).rev().map(tensor).collect();
    assert_eq!(within_bound(&File { version: 3, tensors, ..File::default() }.head()), None);
    let entry = |number: u64| (format!("{number:05}"), ValueType::U8.number(), vec![0]);
    let entries = |count| (0..count).map(entry).collect();
    let most = File { version: 3, entries: entries(METADATA_ENTRIES_MAX), tensors: Vec::new() };
    assert_eq!(within_bound(&most.head()), None);
    // One more entry, for the alignment, is above the limit.
    let header = parse(&most.head()).unwrap();
    let refused = header.encode_aligned(Granule::SIZE_4K).unwrap_err().to_string();
    assert!(refused.ends_with("its header would exceed the limits"), "{refused}");
    let more = File { entries: entries(METADATA_ENTRIES_MAX + 1), ..most };
    assert!(within_bound(&more.head()).unwrap().ends_with("more than the limit of 32768"));
}

#[test]
fn hostile_values_stay_within_the_bound() {
    const LEN: u64 = 12_000_000;
    let zeros = vec![0; LEN as usize];
    let empty_array = array(ValueType::Bool, 0, &[]);
    let empty_arrays = empty_array.repeat(LEN as usize / 12);
    for (kind, value) in [
        (ValueType::String, text(&zeros)),
        (ValueType::Array, array(ValueType::Bool, LEN, &zeros)),
        (ValueType::Array, array(ValueType::F64, LEN / 8, &zeros)),
        (ValueType::Array, array(ValueType::String, LEN / 8, &zeros)),
        (ValueType::Array, array(ValueType::Array, LEN / 12, &empty_arrays)),
    ] {
        assert_eq!(within_bound(&one_entry("key", kind, value)), None);
    }
    let long = "x".repeat(LEN as usize);
    for (head, expected) in [
        (one_entry(&long, ValueType::U8, vec![0]), "its name has 12000000 bytes, more than 65535"),
        (
            one_entry(
                "key",
                ValueType::Array,
                array(ValueType::Bool, LEN, &[1, 2].repeat(LEN as usize / 2)),
            ),
            "a boolean is 2",
        ),
        (
            one_entry(&long[..65_535], ValueType::Array, array(ValueType::String, 1 << 60, &[])),
            "would end at byte 9223372036854841391, but the file has 1099511627776",
        ),
    ] {
        let refused = within_bound(&head).unwrap();
        assert!(refused.contains(expected), "{refused}");
        assert!(refused.len() < 1024, "{} bytes of message", refused.len());
    }
}

#[test]
fn a_header_is_read_only_up_to_the_limit() {
    let mut head =
        one_entry("key", ValueType::String, (HEADER_LEN_MAX_BYTES + 1).to_le_bytes().to_vec());
    let refused = within_bound(&head).unwrap();
    assert!(refused.contains("above the limit of 134.22 MB"), "{refused}");
    // A header of the maximum length, most of which is a hole.
    head = one_entry("key", ValueType::String, (HEADER_LEN_MAX_BYTES - 47).to_le_bytes().to_vec());
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    fs::write(file.path(), &head).unwrap();
    file.as_file().set_len(1 << 30).unwrap();
    let source = SourceFile::open(file.path()).unwrap();
    let (read, peak) = peak_bytes(|| read_gguf_header(&source));
    assert_eq!(read.unwrap().data_offset, HEADER_LEN_MAX_BYTES);
    assert!(peak <= gguf::parse_memory_max_bytes(HEADER_LEN_MAX_BYTES), "{peak}");
    // Truncate the file after it was opened.
    file.as_file().set_len(1 << 20).unwrap();
    assert!(matches!(read_gguf_header(&source), Err(Error::Truncated { ended_at: 1_048_576, .. })));
}

// Loading from the disk into the buffer.

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Copies the splits of the reference to a folder.
fn splits(folder: &Path) -> [PathBuf; 3] {
    [1, 2, 3].map(|number| {
        let name = format!("split-{number:05}-of-00003.gguf");
        fs::copy(reference(&name), folder.join(&name)).unwrap();
        folder.join(name)
    })
}

/// The number of types in `every_dtype.gguf`, which has all types of the reference.
const DTYPES_IN_FILE: usize = 34;

fn planned(opened: &Opened) -> Vec<&Path> {
    opened.plan.files().iter().map(|file| file.source().path()).collect()
}

#[test]
fn tensors_are_at_their_places_in_the_buffer() {
    let folder = folder();
    let paths = splits(folder.path());
    let other = folder.path().join("every_dtype.gguf");
    fs::copy(reference("every_dtype.gguf"), &other).unwrap();
    // Opening the first split opens the others, which a glob pattern names, too.
    let named = [&paths[0], &paths[1], &paths[2], &other];
    let opened = open(&named, FormatChoice::Auto).unwrap();
    assert_eq!(planned(&opened), named);
    let loaded = Loader::new().heap(Heap::Memfd).load(&opened.plan).unwrap();
    let bytes = loaded.buffer.read().unwrap();
    let mut end = 0;
    for placed in opened.placed_tensors() {
        let range = placed.buffer_range;
        assert!(range.start >= end && placed.tensor.len_bytes() == range.end - range.start);
        end = range.end;
        let file = fs::read(placed.file.source().path()).unwrap();
        let data = placed.tensor.data.start as usize..placed.tensor.data.end as usize;
        assert!(bytes[range.start as usize..range.end as usize] == file[data]);
    }
    let placed: Vec<_> = opened.placed_tensors().collect();
    assert_eq!(placed.len(), 5 + DTYPES_IN_FILE);
    assert_eq!(placed[0].tensor.name, "blk.0.w");
    assert_eq!(placed[5].tensor.dtype, AnyDtype::Ggml(Dtype::F32));
    assert_eq!(placed[5].tensor.dtype.to_string(), "F32");
    let header = &opened.tensors[3].header;
    assert_eq!((header.format(), header.tensors().len()), (Format::Gguf, DTYPES_IN_FILE));
    assert_eq!(header.tensor("of.Q6_K").unwrap().shape, [2, 3, 256]);
    assert_eq!(header.data_offset(), 1952);

    let raw = open(&named, FormatChoice::Raw).unwrap();
    assert_eq!((raw.plan.files().len(), raw.tensors.len()), (4, 0));
    let refused = reason(open(&[reference("make.py")], FormatChoice::Gguf));
    assert!(refused.starts_with("it begins with '#!/u' and not with GGUF"), "{refused}");
    let named_otherwise = folder.path().join("blob");
    fs::copy(&other, &named_otherwise).unwrap();
    let opened = open(&[named_otherwise], FormatChoice::Gguf).unwrap();
    assert_eq!(opened.tensors.len(), 1);
}

#[test]
fn splits_must_belong_together() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let open = |path: &Path| open(&[path], FormatChoice::Auto);
    let [first, second, third] = splits(folder.path());
    assert_eq!(planned(&open(&first).unwrap()), [&first, &second, &third]);
    // A split that is not the first is opened alone.
    assert_eq!(planned(&open(&second).unwrap()), [&second]);

    fs::rename(&third, at("away")).unwrap();
    assert_eq!(
        reason(open(&first)),
        format!(
            "its split \"split-00003-of-00003.gguf\" is not in {} (1 of 3 are missing); fetch it",
            folder.path().display()
        )
    );
    fs::copy(&second, &third).unwrap();
    let text = open(&first).unwrap_err().to_string();
    let expected = "split-00003-of-00003.gguf is not a valid GGUF file: it should be split 3 of 3, \
                    but its metadata has split.no 1 and split.count 3";
    assert!(text.ends_with(expected), "{text}");
    fs::copy(reference("version_2.gguf"), &third).unwrap();
    assert!(reason(open(&first)).ends_with("has split.no ? and split.count ?"));

    // Names that contradict the metadata.
    fs::copy(&first, at("model.gguf")).unwrap();
    assert_eq!(
        reason(open(&at("model.gguf"))),
        "it is the first of 3 splits, and the others are found only if its name ends in \
         -00001-of-00003.gguf"
    );
    for (from, name, expected) in [
        (&first, "a-00001-of-00002.gguf", "split 1 of 2, but by its metadata 1 of 3"),
        (&first, "a-00002-of-00003.gguf", "split 2 of 3, but by its metadata 1 of 3"),
        (&second, "b-00001-of-00003.gguf", "split 1 of 3, but by its metadata 2 of 3"),
        (
            &reference("version_2.gguf"),
            "c-00001-of-00003.gguf",
            "1 of 3, but by its metadata 1 of 1",
        ),
    ] {
        fs::copy(from, at(name)).unwrap();
        let refused = reason(open(&at(name)));
        assert!(refused.contains(expected), "{refused}");
    }
    // Names that only look like those of splits.
    for name in ["model-1-of-3.gguf", "model-00001-of-00001.gguf", "-00001-of-0000x.gguf"] {
        fs::copy(reference("version_2.gguf"), at(name)).unwrap();
        assert_eq!(planned(&open(&at(name)).unwrap()), [at(name)]);
    }
}

#[test]
fn splits_with_a_common_tensor_or_a_wrong_count_are_refused() {
    let folder = folder();
    let write = |number: u16, names: &[&str], claimed: u16| {
        let entry = |key: &str, value: u16| {
            (key.to_owned(), ValueType::U16.number(), value.to_le_bytes().to_vec())
        };
        let entries = vec![
            entry("split.no", number - 1),
            entry("split.count", 2),
            entry("split.tensors.count", claimed),
        ];
        let tensor = |name: &&str| ((*name).to_owned(), vec![0], 0, 0);
        let file = File { version: 3, entries, tensors: names.iter().map(tensor).collect() };
        let path = folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        fs::write(&path, [file.head(), vec![0; 32]].concat()).unwrap();
        path
    };
    let first = write(1, &["a", "b"], 3);
    let open = || open(&[&first], FormatChoice::Auto);
    write(2, &["c"], 3);
    assert_eq!(open().unwrap().placed_tensors().count(), 3);
    write(2, &["b"], 3);
    assert_eq!(reason(open()), r#"tensor "b" is in two splits, 1 and 2"#);
    write(2, &["c", "d"], 3);
    let expected = "split 1 declares 3 tensors in all splits, but they have 4; are they of the \
                    same version?";
    assert_eq!(reason(open()), expected);
}

#[test]
fn the_headers_of_all_splits_together_are_bounded() {
    let folder = folder();
    let split = |number: u16| {
        let entry = |key: &str, value: u16| {
            (key.to_owned(), ValueType::U16.number(), value.to_le_bytes().to_vec())
        };
        let long = ("long".to_owned(), ValueType::String.number(), text(&[b'a'; 70_000_000]));
        let entries = vec![entry("split.no", number - 1), entry("split.count", 2), long];
        let path = folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        fs::write(&path, File { version: 3, entries, tensors: Vec::new() }.head()).unwrap();
        path
    };
    let (first, second) = (split(1), split(2));
    let refused = reason(open(&[&first], FormatChoice::Auto));
    let expected = "MB or more, above the limit of 134.22 MB; name the shards one by one, or load \
                    the files as raw ones";
    assert!(refused.ends_with(expected), "{refused}");
    assert_eq!(open(&[&second], FormatChoice::Auto).unwrap().tensors.len(), 1);
}
