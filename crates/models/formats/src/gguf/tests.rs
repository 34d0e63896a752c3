//! Hostile headers from the corpus of the fuzzer and the error of each, and encoded headers.

use std::fs;
use std::path::Path;

use longshore_mem::Granule;

use super::limits::{ALIGNMENT_KEY, FORMAT};
use super::*;

fn case(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read(root.join("../../../fuzz/corpus/gguf_header").join(name)).unwrap()
}

fn parse(bytes: &[u8]) -> Result<Header, String> {
    Header::parse(bytes, bytes.len() as u64).map_err(|error| {
        assert_eq!(error.format(), FORMAT);
        error.detail().to_string()
    })
}

fn sound(name: &str) -> Header {
    parse(&case(name)).unwrap()
}

#[test]
fn a_header_is_read() {
    let header = sound("sound_two_tensors");
    assert_eq!((header.version, header.alignment.bytes(), header.data_offset), (3, 32, 160));
    let [a, b] = &header.tensors[..] else { panic!("{header:?}") };
    assert_eq!(
        (&a.name[..], a.dtype, &a.shape[..], &a.data),
        ("a", Dtype::F32, &[8][..], &(160..192))
    );
    // The file stores the length of a row first.
    assert_eq!((&b.name[..], b.dtype, &b.shape[..]), ("b", Dtype::Q4_0, &[2, 32][..]));
    assert_eq!((&b.data, b.len_bytes(), header.data_end()), (&(192..228), 36, 228));
    assert_eq!((header.tensor("b"), header.tensor("c")), (Some(b), None));
    let architecture = header.metadata.get("general.architecture");
    assert_eq!(architecture.unwrap().as_str(), Some("llama"));
    assert_eq!((header.metadata.get("x"), header.metadata.len()), (None, 1));
    assert_eq!(sound("sound_version_2").version, 2);
}

#[test]
fn every_value_is_read() {
    let header = sound("sound_every_value");
    let value = |key: &str| header.metadata.get(key).unwrap();
    assert_eq!(value("u8"), Value::U8(255));
    assert_eq!(value("i8"), Value::I8(-1));
    assert_eq!(value("u16"), Value::U16(0x201));
    assert_eq!(value("i16"), Value::I16(-1));
    assert_eq!((value("u32"), value("i32")), (Value::U32(7), Value::I32(7)));
    assert!(matches!(value("f32"), Value::F32(number) if number.is_nan()));
    assert_eq!((value("bool"), value("string").as_str()), (Value::Bool(true), Some("ä")));
    assert_eq!((value("u64"), value("i64")), (Value::U64(1 << 63), Value::I64(i64::MIN)));
    assert_eq!(value("f64"), Value::F64(f64::INFINITY));
    let numbers = ["u8", "i8", "u16", "u32", "i32", "u64", "i64", "f32", "bool", "string"];
    assert_eq!(
        numbers.map(|key| value(key).as_u64()),
        [Some(255), None, Some(513), Some(7), Some(7), Some(1 << 63), None, None, None, None]
    );
    let Value::Array(strings) = value("strings") else { panic!("no array") };
    let elements: Vec<Value<'_>> = strings.values().collect();
    assert_eq!(elements, [&b""[..], b"\xff", b"c"].map(Value::String));
    assert_eq!(elements[1].as_str(), None);
    assert_eq!((strings.len(), strings.element_type()), (3, ValueType::String));
    let Value::Array(none) = value("none") else { panic!("no array") };
    assert!(none.is_empty() && none.values().next().is_none() && none.bytes().is_empty());
    assert_eq!(format!("{strings:?} {none:?}"), "[string; 3] [float64; 0]");
    let content = case("sound_every_value");
    let offsets: Vec<_> = header.metadata.offsets().collect();
    assert_eq!((offsets.len(), offsets[0].1), (header.metadata.len(), 24));
    for (key, offset) in offsets {
        let entry = &content[offset as usize..];
        assert_eq!(entry[..8], (key.len() as u64).to_le_bytes(), "{key}");
        assert!(entry[8..].starts_with(key.as_bytes()), "{key}");
    }
}

#[test]
fn deviations_that_are_in_use_are_accepted() {
    for (name, names) in [
        ("sound_empty", &[][..]),
        ("sound_no_tensors_no_padding", &[]),
        ("sound_depth_4", &[]),
        ("sound_padded_behind", &["a", "b"]),
        ("sound_gap", &["a", "b"]),
        ("sound_order", &["a", "b"]),
        ("sound_without_data", &["b", "c", "a", "d"]),
        ("sound_alignment_4096", &["a", "b"]),
        ("sound_alignment_8", &["a", "b"]),
        ("shape_zero_before_overflow", &["a"]),
    ] {
        let header = sound(name);
        let found: Vec<&str> = header.tensors.iter().map(|tensor| &tensor.name[..]).collect();
        assert_eq!(found, names, "{name}");
    }
    assert_eq!(sound("sound_no_tensors_no_padding").data_offset, 69);
    assert_eq!(sound("sound_alignment_4096").tensors[1].data, 8192..8224);
}

#[test]
fn each_error_states_the_problem() {
    let beyond = "the header was cut short or is damaged: the value at byte";
    for (name, reason) in [
        ("empty", "it has 0 bytes, but a GGUF file has at least 24".to_owned()),
        ("magic_alone", "it has 4 bytes, but a GGUF file has at least 24".to_owned()),
        ("cut_in_counts", "it has 20 bytes, but a GGUF file has at least 24".to_owned()),
        (
            "cut_in_key",
            "it declares 2 tensors, but is too short for them; was it cut short?".to_owned(),
        ),
        (
            "cut_in_tensor",
            format!(r#"tensor "a": {beyond} 78 would end at byte 82, but the file has 80"#),
        ),
        (
            "cut_in_data",
            r#"it was cut short: tensor "b" ends at byte 228, but it has 227 bytes; fetch or copy it again"#.to_owned(),
        ),
        ("zeros", "it begins with the bytes 00 00 00 00 and not with GGUF".to_owned()),
        ("version_0", "it is of version 0 (expected 2 or 3)".to_owned()),
        (
            "version_1",
            "it is of version 1, which is no longer in use and not read; convert the model again \
             with a current llama.cpp".to_owned(),
        ),
        ("version_4", "it is of version 4 (expected 2 or 3)".to_owned()),
        (
            "big_endian",
            "it is big-endian (version 3), and only little-endian files are read; convert it with \
             gguf-convert-endian of the Python package gguf".to_owned(),
        ),
        (
            "tensors_ten_million",
            "it declares 10000000 tensors, more than the limit of 1048576".to_owned(),
        ),
        (
            "tensors_2_63",
            "it declares 9223372036854775808 tensors, more than the limit of 1048576".to_owned(),
        ),
        (
            "tensors_too_many_for_it",
            "it declares 1000000 tensors, but is too short for them; was it cut short?".to_owned(),
        ),
        (
            "entries_2_64",
            "it declares 18446744073709551615 entries of metadata, more than the limit of 32768"
                .to_owned(),
        ),
        (
            "entries_too_many_for_it",
            "it declares 1000 entries of metadata, but is too short for them; was it cut short?"
                .to_owned(),
        ),
        (
            "key_2_63",
            "metadata number 1: its name has 9223372036854775808 bytes, more than 65535".to_owned(),
        ),
        ("key_not_utf8", "metadata number 1: its name is not UTF-8".to_owned()),
        ("key_twice", r#"its metadata has the key "general.architecture" twice"#.to_owned()),
        (
            "key_control",
            r#"metadata "\u{1b}[2J\n": a value has the unknown type 99 (expected 0 to 12)"#.to_owned(),
        ),
        (
            "string_2_64",
            format!(r#"metadata "x": {beyond} 45 would end at byte 18446744073709551660, but the file has 64"#),
        ),
        ("value_type_13", r#"metadata "x": a value has the unknown type 13 (expected 0 to 12)"#.to_owned()),
        ("bool_2", r#"metadata "x": a boolean is 2 (expected 0 or 1)"#.to_owned()),
        ("array_of_bool_2", r#"metadata "x": a boolean is 2 (expected 0 or 1)"#.to_owned()),
        ("array_of_type_13", r#"metadata "x": a value has the unknown type 13 (expected 0 to 12)"#.to_owned()),
        (
            "array_overflow",
            format!(r#"metadata "x": {beyond} 49 would end at byte 18446744073709551664, but the file has 64"#),
        ),
        (
            "array_of_2_63_strings",
            format!(r#"metadata "x": {beyond} 49 would end at byte 18446744073709551664, but the file has 64"#),
        ),
        ("depth_5", r#"metadata "nested": arrays are nested more than 4 deep"#.to_owned()),
        ("depth_100000", r#"metadata "nested": arrays are nested more than 4 deep"#.to_owned()),
        ("alignment_0", "its general.alignment is 0, which is not a power of two of at least 8".to_owned()),
        ("alignment_4", "its general.alignment is 4, which is not a power of two of at least 8".to_owned()),
        ("alignment_48", "its general.alignment is 48, which is not a power of two of at least 8".to_owned()),
        ("alignment_u64", "its general.alignment is of type uint64, not uint32".to_owned()),
        (
            "alignment_2_31",
            r#"it was cut short: tensor "a" ends at byte 2147483680, but it has 128 bytes; fetch or copy it again"#.to_owned(),
        ),
        (
            "tensor_name_2_63",
            "tensor number 1: its name has 9223372036854775808 bytes, more than 65535".to_owned(),
        ),
        ("tensor_name_not_utf8", "tensor number 1: its name is not UTF-8".to_owned()),
        ("tensor_twice", r#"it has the tensor "a" twice"#.to_owned()),
        ("dimensions_5", r#"tensor "a": it has 5 dimensions, more than 4"#.to_owned()),
        ("dimensions_2_32", r#"tensor "a": it has 4294967295 dimensions, more than 4"#.to_owned()),
        (
            "shape_overflow",
            r#"tensor "a" of shape [4294967296, 4294967296] and dtype F32 at offset 0 ends past 2^64"#.to_owned(),
        ),
        (
            "bytes_overflow",
            r#"tensor "a" of shape [4611686018427387904] and dtype F32 at offset 0 ends past 2^64"#.to_owned(),
        ),
        (
            "half_a_block",
            r#"tensor "a" of shape [2, 48] and dtype Q4_0 has rows of 48 elements, which is not a multiple of the block size 32"#.to_owned(),
        ),
        (
            "scalar_of_blocks",
            r#"tensor "a" of shape [] and dtype Q4_0 has rows of 1 elements, which is not a multiple of the block size 32"#.to_owned(),
        ),
        (
            "dtype_removed",
            r#"tensor "a" has the type Q4_2 (4), which ggml no longer has; convert the model again with a current llama.cpp"#.to_owned(),
        ),
        (
            "dtype_repacked",
            r#"tensor "a" has the type Q4_0_4_4 (31), which ggml no longer has; convert the model again with a current llama.cpp"#.to_owned(),
        ),
        (
            "dtype_unknown",
            r#"tensor "a" has the type 43, which is not known; the last known is Q2_0 (42)"#.to_owned(),
        ),
        (
            "offset_unaligned",
            r#"tensor "a" is at offset 16, which is not a multiple of the file's alignment 32 B"#.to_owned(),
        ),
        (
            "offset_2_64",
            r#"tensor "a" of shape [8] and dtype F32 at offset 18446744073709551584 ends past 2^64"#.to_owned(),
        ),
        (
            "overlap",
            r#"tensor "b" (bytes 128 to 160 of the file) overlaps tensor "a" (bytes 96 to 160)"#.to_owned(),
        ),
        (
            "overlap_same",
            r#"tensor "b" (bytes 96 to 128 of the file) overlaps tensor "a" (bytes 96 to 128)"#.to_owned(),
        ),
    ] {
        assert_eq!(parse(&case(name)).unwrap_err(), reason, "{name}");
    }
}

#[test]
fn an_error_names_the_format_that_the_file_has() {
    for (name, what) in [
        ("safetensors", "a safetensors file"),
        ("git_lfs_pointer", "git lfs pull"),
        ("web_page", "a web page"),
        ("ggjt", "before GGUF"),
    ] {
        let reason = parse(&case(name)).unwrap_err();
        assert!(reason.contains("and not with GGUF; it") && reason.contains(what), "{reason}");
    }
}

#[test]
fn an_incomplete_header_is_refused() {
    let bytes = case("sound_two_tensors");
    let error = Header::parse(&bytes[..50], bytes.len() as u64).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not a valid GGUF file: only 50 of at least 52 bytes before its data were given"
    );
}

#[test]
fn for_the_same_alignment_the_bytes_are_the_same() {
    for name in [
        "sound_two_tensors",
        "sound_version_2",
        "sound_no_tensors_no_padding",
        "sound_gap",
        "sound_order",
        "sound_without_data",
        "sound_every_value",
        "sound_alignment_4096",
        "sound_alignment_8",
    ] {
        let bytes = case(name);
        let header = sound(name);
        let encoded = header.encode_aligned(header.alignment).unwrap();
        let (head, padded) = bytes.split_at(encoded.head.len());
        assert_eq!(encoded.head, head, "{name}");
        assert_eq!(encoded.data_offset, header.data_offset, "{name}");
        let padding = (encoded.data_offset - head.len() as u64) as usize;
        assert!(padded[..padding].iter().all(|byte| *byte == 0));
        assert!(encoded.offsets.iter().eq(header.tensors.iter().map(|it| &it.data.start)));
    }
}

#[test]
fn for_another_alignment_the_tensors_move() {
    let header = sound("sound_order");
    let encoded = header.encode_aligned(Granule::SIZE_4K).unwrap();
    assert_eq!(encoded.data_offset, 4096);
    assert_eq!((&encoded.offsets[..], encoded.file_len_bytes), (&[4096, 8192][..], 12288));
    let again = Header::parse(&encoded.head, encoded.file_len_bytes).unwrap();
    assert_eq!(again.metadata.get(ALIGNMENT_KEY), Some(Value::U32(4096)));
    // The tensors are in the order of the data; the file still describes the second one first.
    let names: Vec<&str> = again.tensors.iter().map(|tensor| &tensor.name[..]).collect();
    assert_eq!((&names[..], &again.described[..]), (&["a", "b"][..], &[1, 0][..]));
    assert_eq!(again.tensors[1].data, 8192..8224);

    // If a file declares its alignment, the entry stays in its place and gets the new value.
    let header = sound("sound_alignment_4096");
    let encoded = header.encode_aligned(Granule::new(32).unwrap()).unwrap();
    let again = Header::parse(&encoded.head, encoded.file_len_bytes).unwrap();
    assert_eq!(again.metadata.get(ALIGNMENT_KEY), Some(Value::U32(32)));
    assert_eq!((again.metadata.len(), again.alignment.bytes()), (1, 32));
    assert_eq!(encoded.file_len_bytes, again.data_end());
    for bytes in [4, 1 << 32] {
        let refused = header.encode_aligned(Granule::new(bytes).unwrap()).unwrap_err();
        assert!(refused.to_string().ends_with("alignments of 8 B to 2 GiB"), "{refused}");
    }
}
