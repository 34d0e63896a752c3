//! Safetensors files and indexes: compared with the reference implementation, within the documented
//! memory bounds, and loaded into a buffer.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ::safetensors::Dtype as TheirDtype;
use ::safetensors::tensor::{TensorView, serialize};
use longshore_formats::index::{self, ShardIndex};
use longshore_formats::safetensors::{
    self, Dtype, HEADER_LEN_MAX_BYTES, Header, METADATA_ENTRIES_MAX, TENSORS_MAX,
};
use longshore_heap::Heap;
use longshore_load::{Error, FormatChoice, Loader, SourceFile, open, read_safetensors_header};
use proptest::collection::vec;
use proptest::prelude::*;

#[expect(unreachable_pub, reason = "the file belongs to the fuzzers, where it is public")]
#[path = "../../../../fuzz/src/checks.rs"]
mod checks;
#[expect(unreachable_pub, reason = "the file belongs to the fuzzers, where it is public")]
#[path = "../../../../fuzz/src/manifest.rs"]
mod manifest;

mod allocator;

const MIB: u64 = 1 << 20;

use allocator::peak_bytes;

fn with_prefix(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::Format { reason, .. } => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

fn refused<T: std::fmt::Debug>(result: longshore_formats::Result<T>) -> String {
    result.unwrap_err().detail().to_string()
}

// Comparison with the reference implementation.

/// All dtypes of the reference implementation, in its order.
const THEIR_DTYPES: [TheirDtype; 22] = [
    TheirDtype::BOOL,
    TheirDtype::F4,
    TheirDtype::F6_E2M3,
    TheirDtype::F6_E3M2,
    TheirDtype::U8,
    TheirDtype::I8,
    TheirDtype::F8_E5M2,
    TheirDtype::F8_E4M3,
    TheirDtype::F8_E8M0,
    TheirDtype::F8_E4M3FNUZ,
    TheirDtype::F8_E5M2FNUZ,
    TheirDtype::I16,
    TheirDtype::U16,
    TheirDtype::F16,
    TheirDtype::BF16,
    TheirDtype::I32,
    TheirDtype::U32,
    TheirDtype::F32,
    TheirDtype::C64,
    TheirDtype::F64,
    TheirDtype::I64,
    TheirDtype::U64,
];

#[test]
fn every_dtype_is_known() {
    assert_eq!(THEIR_DTYPES.len(), Dtype::ALL.len());
    for (ours, theirs) in Dtype::ALL.iter().zip(THEIR_DTYPES) {
        assert_eq!(ours.name(), theirs.to_string());
        assert_eq!(ours.bits(), theirs.bitsize() as u64);
        assert_eq!(Dtype::from_name(ours.name()), Some(*ours));
    }
    assert!(Dtype::ALL.is_sorted());
    assert_eq!(Dtype::from_name("bf16"), None);
}

#[derive(Debug)]
struct Described {
    dtype: TheirDtype,
    shape: Vec<usize>,
}

fn tensors() -> impl Strategy<Value = HashMap<String, Described>> {
    let dtype = (0..THEIR_DTYPES.len()).prop_map(|index| THEIR_DTYPES[index]);
    let described = (dtype, vec(0usize..6, 0..5)).prop_map(|(dtype, mut shape)| {
        // A multiple of 4 elements of a small type fills whole bytes.
        if dtype.bitsize() % 8 != 0 {
            shape.push(4);
        }
        Described { dtype, shape }
    });
    let name = prop_oneof!["[a-z.0-9]{0,12}", ".{0,8}"];
    proptest::collection::hash_map(name, described, 0..12)
}

fn metadata() -> impl Strategy<Value = Option<HashMap<String, String>>> {
    // With an empty metadata object and no tensors, the reference implementation writes a file that it
    // cannot read.
    proptest::option::of(proptest::collection::hash_map(".{0,8}", ".{0,20}", 1..5))
}

fn serialized(
    tensors: &HashMap<String, Described>,
    metadata: Option<HashMap<String, String>>,
) -> Vec<u8> {
    let views = tensors.iter().map(|(name, Described { dtype, shape })| {
        let bits = shape.iter().product::<usize>() * dtype.bitsize();
        (name.clone(), vec![0xa5; bits / 8], dtype, shape)
    });
    let owned: Vec<_> = views.collect();
    let views = owned.iter().map(|(name, data, dtype, shape)| {
        (name.as_str(), TensorView::new(**dtype, (*shape).clone(), data).unwrap())
    });
    serialize(views, metadata).unwrap()
}

/// A kind of damage to a file.
#[derive(Clone, Debug)]
enum Damage {
    /// The file ends early.
    Cut(prop::sample::Index),
    /// The file has more bytes.
    Longer(u8),
    Byte(prop::sample::Index, u8),
    /// A number in the header is replaced.
    Number(prop::sample::Index, u64),
    /// A part of the header is repeated behind itself.
    Repeat(prop::sample::Index, prop::sample::Index),
    /// A part of the header is removed.
    Remove(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    use prop::sample::Index;
    let number = prop_oneof![
        0..300u64,
        Just(1 << 31),
        Just(1 << 32),
        Just(1 << 61),
        Just(1 << 63),
        Just(u64::MAX)
    ];
    prop_oneof![
        any::<Index>().prop_map(Damage::Cut),
        (1u8..).prop_map(Damage::Longer),
        any::<(Index, u8)>().prop_map(|(at, byte)| Damage::Byte(at, byte)),
        (any::<Index>(), number).prop_map(|(at, number)| Damage::Number(at, number)),
        any::<(Index, Index)>().prop_map(|(a, b)| Damage::Repeat(a, b)),
        any::<(Index, Index)>().prop_map(|(a, b)| Damage::Remove(a, b)),
    ]
}

fn damaged(file: &[u8], damage: &Damage) -> Vec<u8> {
    let (prefix, rest) = file.split_first_chunk::<8>().unwrap();
    let header_len = u64::from_le_bytes(*prefix) as usize;
    let (header, data) = rest.split_at(header_len);
    let rebuilt = |parts: &[&[u8]]| {
        let header = parts.concat();
        [&(header.len() as u64).to_le_bytes(), &header[..], data].concat()
    };
    let part = |a: &prop::sample::Index, b: &prop::sample::Index| {
        let (a, b) = (a.index(header_len), b.index(header_len));
        a.min(b)..a.max(b)
    };
    match damage {
        Damage::Cut(at) => file[..at.index(file.len())].to_vec(),
        Damage::Longer(by) => [file, &vec![0; usize::from(*by)]].concat(),
        Damage::Byte(at, byte) => {
            let mut file = file.to_vec();
            let at = at.index(file.len());
            file[at] ^= byte;
            file
        }
        Damage::Number(at, number) => {
            let at = at.index(header_len);
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            let Some(start) = header[at..].iter().position(is_digit).map(|skip| at + skip) else {
                return file.to_vec();
            };
            let len = header[start..].iter().take_while(|byte| is_digit(byte)).count();
            let number = number.to_string();
            rebuilt(&[&header[..start], number.as_bytes(), &header[start + len..]])
        }
        Damage::Repeat(a, b) => {
            let part = part(a, b);
            rebuilt(&[&header[..part.end], &header[part.start..]])
        }
        Damage::Remove(a, b) => {
            let part = part(a, b);
            rebuilt(&[&header[..part.start], &header[part.end..]])
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_of_the_reference_are_parsed_as_it_parses_them(
        tensors in tensors(),
        metadata in metadata(),
    ) {
        let file = serialized(&tensors, metadata);
        let header = Header::parse(&file, file.len() as u64).unwrap();
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for tensor in &header.tensors {
            let Described { dtype, shape } = &tensors[&tensor.name];
            prop_assert_eq!(tensor.dtype.name(), dtype.to_string());
            prop_assert!(tensor.shape.iter().copied().eq(shape.iter().map(|it| *it as u64)));
        }
        checks::safetensors_header(&file);

        let mut on_disk = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut on_disk, &file).unwrap();
        let read = read_safetensors_header(&SourceFile::open(on_disk.path()).unwrap()).unwrap();
        prop_assert_eq!(read, header);
    }

    #[test]
    fn damaged_files_are_refused_if_the_reference_refuses_them(
        tensors in tensors(),
        metadata in metadata(),
        damages in vec(damage(), 1..4),
    ) {
        let mut file = serialized(&tensors, metadata);
        for damage in &damages {
            if file.len() > 8 && header_is_inside(&file) {
                file = damaged(&file, damage);
            }
        }
        checks::safetensors_header(&file);
        let len_bytes = file.len() as u64;
        let (_, peak) = peak_bytes(|| Header::parse(&file, len_bytes));
        prop_assert!(peak <= safetensors::parse_memory_max_bytes(len_bytes));
    }

    #[test]
    fn parsing_random_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        checks::shard_index(&bytes);
        checks::safetensors_header(&bytes);
    }

    #[test]
    fn an_index_has_the_content_that_was_written(
        map in proptest::collection::btree_map(".{0,8}", "(\\PC{1,4}/)?[^/]{1,6}", 0..8),
        total_size in any::<u64>(),
    ) {
        let json = serde_json::json!({"metadata": {"total_size": total_size}, "weight_map": map});
        checks::shard_index(json.to_string().as_bytes());
    }
}

fn header_is_inside(file: &[u8]) -> bool {
    let (prefix, rest) = file.split_first_chunk::<8>().unwrap();
    (1..=rest.len() as u64).contains(&u64::from_le_bytes(*prefix))
}

// The corpora of the fuzzers.

fn replay(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} has only {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        check(&fs::read(file).unwrap());
    }
}

#[test]
fn the_corpus_of_headers_passes() {
    replay("safetensors_header", checks::safetensors_header);
}

#[test]
fn the_corpus_of_indexes_passes() {
    replay("shard_index", checks::shard_index);
}

#[test]
fn the_corpus_of_manifests_passes() {
    replay("manifest", manifest::manifest);
}

// Memory.

/// Parses a header, and checks the peak of the allocated memory. Returns the reason if it is refused.
#[track_caller]
fn within_bound(header: &str, data_len: u64) -> Option<String> {
    let file = with_prefix(header);
    let (header_len, file_len) = (header.len() as u64, file.len() as u64 + data_len);
    let (read, peak) = peak_bytes(|| Header::parse(&file, file_len));
    // The bound includes the text, which was allocated before.
    let bound = safetensors::parse_memory_max_bytes(header_len) - header_len;
    assert!(peak <= bound, "{peak} bytes for a header of {header_len}, above {bound}");
    read.is_err().then(|| refused(read))
}

/// Returns a header of `count` tensors without data, each with this number of dimensions.
fn many_tensors(count: usize, dimensions: usize) -> String {
    let shape = vec!["0"; dimensions].join(",");
    let mut header = String::from("{");
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        write!(
            header,
            r#"{comma}"{number:x}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}"#
        )
        .unwrap();
    }
    header + "}"
}

#[test]
fn ten_million_tensors_are_refused_within_the_bound() {
    let refused = within_bound(&many_tensors(TENSORS_MAX + 1, 0), 0).unwrap();
    assert_eq!(
        refused,
        format!(
            "its header cannot be read: it describes more than {TENSORS_MAX} tensors, which is \
             the limit"
        )
    );
    // A header of ten million tensors would be too long.
    let len = 10_000_000u64 * 50;
    let file_len = len + 8;
    let (refused, peak) = peak_bytes(|| Header::parse(&len.to_le_bytes(), file_len));
    assert!(self::refused(refused).contains("more than the limit of 100.00 MB"));
    assert!(peak < 4096, "{peak}");
    // Ten million names are short enough, but they describe no tensors.
    let names = format!("{{{}\"a\":0}}", "\"a\":0,".repeat(10_000_000 - 1));
    assert!(within_bound(&names, 0).unwrap().contains("found 0"));
}

#[test]
fn the_most_tensors_with_the_most_dimensions_are_read_within_the_bound() {
    assert_eq!(within_bound(&many_tensors(100_000, 1), 0), None);
    assert_eq!(within_bound(&many_tensors(50_000, 64), 0), None);
}

#[test]
fn hostile_values_stay_within_the_bound() {
    const LEN: usize = 10_000_000;
    let long = "x".repeat(LEN);
    // Escapes are decoded into a buffer that grows.
    let escaped = r"\u0001".repeat(LEN / 6);
    let numbers = vec!["1"; LEN / 2].join(",");
    let lists = "[],".repeat(LEN / 3);
    for header in [
        format!(r#"{{"{long}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#),
        format!(r#"{{"\n{long}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#),
        format!(r#"{{"{escaped}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#),
        format!(r#"{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[0,0],"\n{long}":0}}}}"#),
        format!(r#"{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":[{lists}0]}}}}"#),
        format!(r#"{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":"\n{long}"}}}}"#),
        format!(r#"{{"__metadata__":{{"a":"\n{long}"}}}}"#),
    ] {
        assert_eq!(within_bound(&header, 0), None);
    }
    for header in [
        format!(r#"{{"{escaped}":0}}"#),
        format!(r#"{{"a":"\n{long}"}}"#),
        format!(r#"{{"a":{{"dtype":"{escaped}"}}}}"#),
        format!(r#"{{"a":{{"dtype":["\n{long}"]}}}}"#),
        format!(r#"{{"a":{{"shape":["{escaped}"]}}}}"#),
        format!(r#"{{"a":{{"shape":[{numbers}]}}}}"#),
        format!(r#"{{"a":{{"data_offsets":[{numbers}]}}}}"#),
        format!(r#"{{"a":{{"data_offsets":"{escaped}"}}}}"#),
        format!(r#"{{"a":[{numbers}]}}"#),
        format!(r#"{{"a":{}"#, "[".repeat(LEN)),
        format!(r#"{{"__metadata__":"{escaped}"}}"#),
        format!(r#"{{"__metadata__":{{"{escaped}":["{long}"]}}}}"#),
        format!("{{{long}"),
    ] {
        let reason = within_bound(&header, 0).unwrap();
        assert!(reason.len() < 1024, "{} bytes of message", reason.len());
    }
}

#[test]
fn metadata_is_bounded() {
    let entries = |count: usize| {
        let entries: Vec<String> = (0..count).map(|key| format!(r#""{key:05}":"""#)).collect();
        format!(r#"{{"__metadata__":{{{}}}}}"#, entries.join(","))
    };
    assert_eq!(within_bound(&entries(METADATA_ENTRIES_MAX), 0), None);
    let refused = within_bound(&entries(METADATA_ENTRIES_MAX + 1), 0).unwrap();
    assert!(refused.ends_with("__metadata__ has more than 32768 entries"), "{refused}");
}

#[test]
fn a_file_without_a_header_takes_little_memory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // A length, and a gigabyte of zeros that takes no space on the disk.
    for (prefix, expected) in [
        (HEADER_LEN_MAX_BYTES, "begins with the byte 0x00"),
        (1 << 63, "more than the limit of 100.00 MB"),
        (0, "has no bytes"),
    ] {
        fs::write(file.path(), prefix.to_le_bytes()).unwrap();
        file.as_file().set_len(1 << 30).unwrap();
        let source = SourceFile::open(file.path()).unwrap();
        let (refused, peak) = peak_bytes(|| read_safetensors_header(&source));
        let reason = reason(refused);
        assert!(reason.contains(expected), "{reason}");
        assert!(peak < 64 << 10, "{peak} bytes");
    }
}

#[test]
fn an_index_is_read_within_its_bound() {
    let entry = |tensor: usize| format!(r#""{tensor:x}":"{tensor:x}""#);
    let many = |count: usize| (0..count).map(entry).collect::<Vec<_>>().join(",");
    let escaped = r"\u0001".repeat(1 << 20);
    for (map, expected) in [
        (many(90_000), None),
        (many(100_000), Some("it names more than 99999 shards")),
        (r#""a":"b","#.repeat(TENSORS_MAX) + r#""a":"b""#, Some("more than 1048576 tensors")),
        (format!(r#""{escaped}":"{escaped}""#), None),
        (format!(r#""{escaped}":["{escaped}"]"#), Some("found a list")),
    ] {
        let text = format!(r#"{{"weight_map":{{{map}}}}}"#);
        let (read, peak) = peak_bytes(|| ShardIndex::parse(text.as_bytes()));
        let bound = index::parse_memory_max_bytes(text.len() as u64) - text.len() as u64;
        assert!(peak <= bound, "{peak} bytes for an index of {}, above {bound}", text.len());
        match expected {
            Some(expected) => {
                let reason = refused(read);
                assert!(reason.contains(expected), "{reason}");
            }
            None => drop(read.unwrap()),
        }
    }
}

// Loading from the disk into the buffer.

/// Returns a folder for test files.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Writes the index of these shards.
fn write_index(path: &Path, shards: &[(&str, &Header)]) {
    let map: HashMap<String, &str> = shards
        .iter()
        .flat_map(|(shard, header)| {
            header.tensors.iter().map(|tensor| (tensor.name.clone(), *shard))
        })
        .collect();
    let total: u64 = shards
        .iter()
        .flat_map(|(_, header)| &header.tensors)
        .map(safetensors::Tensor::len_bytes)
        .sum();
    let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
    fs::write(path, index.to_string()).unwrap();
}

/// Writes a file of one tensor of this length with the reference implementation.
fn write_shard(path: &Path, name: &str, byte: u8, len: usize) -> Header {
    let data = vec![byte; len];
    let view = TensorView::new(TheirDtype::U8, vec![len], &data).unwrap();
    fs::write(path, serialize([(name, view)], None).unwrap()).unwrap();
    read_safetensors_header(&SourceFile::open(path).unwrap()).unwrap()
}

#[test]
fn tensors_are_at_their_places_in_the_buffer() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    // Each byte differs from its neighbours.
    let data: Vec<u8> = (0..3 * MIB).map(|at| (at % 251 + at / 4096) as u8).collect();
    let parts = (0..40).map(|number| (number * number * 50, (number + 1) * (number + 1) * 50));
    let views = parts.map(|(start, end)| {
        let part = &data[start..end];
        (format!("t{start}"), TensorView::new(TheirDtype::U8, vec![part.len()], part).unwrap())
    });
    fs::write(at("many.safetensors"), serialize(views, None).unwrap()).unwrap();
    let many = fs::read(at("many.safetensors")).unwrap();
    fs::write(at("raw.bin"), [7; 5000]).unwrap();
    let (second, first) = ("model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors");
    let headers = [write_shard(&at(second), "y", 2, 5001), write_shard(&at(first), "x", 1, 4097)];
    let index_path = at("model.safetensors.index.json");
    write_index(&index_path, &[(second, &headers[0]), (first, &headers[1])]);

    let paths = [at("raw.bin"), index_path, at("many.safetensors")];
    let opened = open(&paths, FormatChoice::Auto).unwrap();
    let planned: Vec<&Path> = opened.plan.files().iter().map(|file| file.source().path()).collect();
    assert_eq!(planned, [at("raw.bin"), at(first), at(second), at("many.safetensors")]);
    let with_tensors: Vec<usize> = opened.tensors.iter().map(|file| file.file_index).collect();
    assert_eq!(with_tensors, [1, 2, 3]);

    let loaded = Loader::new().heap(Heap::Memfd).load(&opened.plan).unwrap();
    let bytes = loaded.buffer.read().unwrap();
    let mut end = 5000;
    for placed in opened.placed_tensors() {
        let range = placed.buffer_range;
        assert!(
            range.start >= end,
            "{placed:?} overlaps what is before it",
            placed = placed.tensor
        );
        end = range.end;
        let found = &bytes[range.start as usize..range.end as usize];
        match placed.tensor.name {
            "x" => assert!(found == [1; 4097]),
            "y" => assert!(found == [2; 5001]),
            _ => {
                assert_eq!(placed.file.source().path(), at("many.safetensors"));
                let of_file = placed.tensor.data;
                let expected = &many[of_file.start as usize..of_file.end as usize];
                assert!(found == expected, "{}", placed.tensor.name);
            }
        }
    }
    assert_eq!(opened.placed_tensors().count(), 2 + 40);
    assert_eq!(end, opened.plan.len_bytes());

    let raw = open(&paths, FormatChoice::Raw).unwrap();
    assert_eq!((raw.plan.files().len(), raw.tensors.len()), (3, 0));
    let refused = reason(open(&paths[..1], FormatChoice::Safetensors));
    assert!(refused.contains("its first 8 bytes declare"), "{refused}");
}

#[test]
fn an_incomplete_model_is_not_opened() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let [x, y] = [("a.safetensors", "x"), ("b.safetensors", "y")]
        .map(|(shard, name)| (shard, write_shard(&at(shard), name, 0, 100)));
    let index_path = at("model.safetensors.index.json");
    let open_it = || open(&[&index_path], FormatChoice::Auto);
    let shards = [(x.0, &x.1), (y.0, &y.1)];
    write_index(&index_path, &shards);
    assert_eq!(open_it().unwrap().tensors.len(), 2);

    write_index(&index_path, &[shards[0], ("c.safetensors", &y.1)]);
    let text = open_it().unwrap_err().to_string();
    let folder_name = folder.path().display();
    assert_eq!(
        text,
        format!(
            "{} is not a valid safetensors index file: its shard \"c.safetensors\" is not in \
             {folder_name} (1 of 2 shards are missing); fetch it",
            index_path.display()
        )
    );
    fs::write(&index_path, r#"{"weight_map":{"x":"../a.safetensors"}}"#).unwrap();
    assert!(reason(open_it()).contains("has '..' in it"));
    write_index(&index_path, &[("a.safetensors", &y.1)]);
    assert!(reason(open_it()).contains("tensor \"y\" is not in the shard \"a.safetensors\""));

    // The error of a truncated shard names the shard and not the index.
    write_index(&index_path, &shards);
    let shard = fs::OpenOptions::new().write(true).open(at("b.safetensors")).unwrap();
    shard.set_len(x.1.file_len_bytes() - 1).unwrap();
    let text = open_it().unwrap_err().to_string();
    assert!(text.contains("b.safetensors is not a valid") && text.contains("cut short"), "{text}");
    assert!(matches!(open(&[at("none.safetensors")], FormatChoice::Auto), Err(Error::Open { .. })));
    let directory = open(&[folder.path()], FormatChoice::Safetensors).unwrap_err();
    assert!(directory.to_string().contains("b.safetensors is not a valid"), "{directory}");
}

#[test]
fn an_index_that_is_too_long_is_not_read() {
    let folder = folder();
    let path = folder.path().join("model.safetensors.index.json");
    fs::File::create(&path).unwrap().set_len(index::INDEX_LEN_MAX_BYTES + 1).unwrap();
    let (refused, peak) = peak_bytes(|| open(&[&path], FormatChoice::Auto));
    assert_eq!(reason(refused), "it has 100.00 MB, more than the limit of 100.00 MB");
    assert!(peak < 64 << 10, "{peak}");
}

#[test]
fn the_headers_of_all_shards_together_are_bounded() {
    let folder = folder();
    let shard = folder.path().join("0.safetensors");
    // Only metadata, which is below the limit twice but not three times. All shards are the same file.
    let header = format!(r#"{{"__metadata__":{{"a":"{}"}}}}"#, "a".repeat(50_000_000));
    fs::write(&shard, with_prefix(&header)).unwrap();
    for name in ["1.safetensors", "2.safetensors"] {
        fs::hard_link(&shard, folder.path().join(name)).unwrap();
    }
    let path = folder.path().join("model.safetensors.index.json");
    let map = serde_json::json!({"a": "0.safetensors", "b": "1.safetensors", "c": "2.safetensors"});
    fs::write(&path, serde_json::json!({"weight_map": map}).to_string()).unwrap();
    let refused = reason(open(&[&path], FormatChoice::Auto));
    let expected = "the headers of this model's files have 150.00 MB or more, above the limit \
                    of 134.22 MB; name the shards one by one, or load the files as raw ones";
    assert!(refused.ends_with(expected), "{refused}");
    // If the shards are named one by one, they are opened.
    assert_eq!(open(&[&shard, &shard, &shard], FormatChoice::Auto).unwrap().tensors.len(), 3);
}

#[test]
fn a_header_longer_than_the_first_read_is_read_in_full() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    for count in [60, 1000] {
        let header = many_tensors(count, 3);
        fs::write(&path, with_prefix(&header)).unwrap();
        let source = SourceFile::open(&path).unwrap();
        let (read, peak) = peak_bytes(|| read_safetensors_header(&source));
        assert_eq!(read.unwrap().tensors.len(), count);
        assert!(peak <= safetensors::parse_memory_max_bytes(header.len() as u64));
    }
    // Truncate the file after it was opened.
    let source = SourceFile::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20_000).unwrap();
    assert!(matches!(
        read_safetensors_header(&source),
        Err(Error::Truncated { ended_at: 20_000, .. })
    ));
}
