//! Hostile headers, and the error of each.

use longshore_mem::ByteSize;
use std::collections::BTreeMap;

use super::limits::FORMAT;
use super::*;

/// Returns a file with this header and this much data.
fn file(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_len, 0xda);
    bytes
}

fn parse(bytes: &[u8]) -> Result<Header, String> {
    Header::parse(bytes, bytes.len() as u64).map_err(|error| {
        assert_eq!(error.format(), FORMAT);
        error.detail().to_string()
    })
}

/// Checks that the file is refused with exactly this reason.
#[track_caller]
fn refused(bytes: &[u8], reason: &str) {
    assert_eq!(parse(bytes).unwrap_err(), reason);
}

#[track_caller]
fn header_refused(header: &str, data_len: usize, reason: &str) {
    refused(&file(header, data_len), reason);
}

const TWO: &str = r#"{"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"__metadata__":{"format":"pt"}}"#;

#[test]
fn a_header_is_read() {
    let header = parse(&file(TWO, 24)).unwrap();
    let at = (8 + TWO.len()) as u64;
    assert_eq!(header.data_offset, at);
    assert_eq!(header.metadata, BTreeMap::from([("format".to_owned(), "pt".to_owned())]));
    let [a, b] = &header.tensors[..] else { panic!("{header:?}") };
    assert_eq!((a.name.as_str(), a.dtype, &a.data), ("a", Dtype::F32, &(at..at + 16)));
    assert_eq!((b.name.as_str(), b.dtype, &b.data), ("b", Dtype::Bf16, &(at + 16..at + 24)));
    assert_eq!((a.shape.as_slice(), b.shape.as_slice()), ([2, 2].as_slice(), [4].as_slice()));
    assert_eq!(header.tensor("b"), Some(b));
    assert_eq!((header.tensor("c"), b.len_bytes()), (None, 8));
    assert_eq!(header.file_len_bytes(), at + 24);
    assert_eq!(format!("{:>6}|", b.dtype), "  BF16|");
}

#[test]
fn padding_and_tensors_without_data_are_accepted() {
    let empty = r#"{"x":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}}"#;
    let header = parse(&file(&format!(" \n{empty}\t \r\n"), 4)).unwrap();
    let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["w", "y", "x"]);
    assert_eq!(parse(&file("{}   ", 0)).unwrap().tensors, []);
}

#[test]
fn an_impossible_header_length_is_refused() {
    refused(b"", "it has 0 bytes, and the length of its header alone takes 8");
    refused(b"1234567", "it has 7 bytes, and the length of its header alone takes 8");
    header_refused("", 0, "its header has no bytes");
    for len in [1 << 63, u64::MAX, HEADER_LEN_MAX_BYTES + 1] {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(TWO.as_bytes());
        refused(
            &bytes,
            &format!(
                "its first 8 bytes declare a header of {}, more than the limit of 100.00 MB",
                ByteSize(len)
            ),
        );
    }
    let mut bytes = HEADER_LEN_MAX_BYTES.to_le_bytes().to_vec();
    bytes.extend_from_slice(TWO.as_bytes());
    refused(
        &bytes,
        &format!(
            "it was cut short in its header, which ends at byte 100000008: it has {}; fetch or \
             copy it again",
            bytes.len()
        ),
    );
}

#[test]
fn an_incomplete_header_is_refused() {
    let bytes = file(TWO, 24);
    let error = Header::parse(&bytes[..50], bytes.len() as u64).unwrap_err();
    let expected = format!("only 50 of the {} bytes before its data were given", 8 + TWO.len());
    assert_eq!(error.to_string(), format!("not a valid safetensors file: {expected}"));
}

#[test]
fn an_error_names_the_format_that_the_file_has() {
    for (bytes, what) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"[..], "git lfs pull"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"{\"weight_map\": {}}", ".index.json"),
        (b"GGUF\x03\0\0\0\x01\x01\x01\x01", "GGUF"),
        (b"PK\x03\x04\0\0\x08\x08", "zip"),
        (b"\x80\x02\x8a\nl\xfc\x9cF", "pickle"),
    ] {
        let reason = parse(bytes).unwrap_err();
        assert!(reason.contains(what) && reason.contains("100.00 MB"), "{reason}");
    }
}

#[test]
fn text_that_is_not_a_header_is_refused() {
    let mut bytes = file(TWO, 24);
    bytes[10] = 0xff;
    refused(&bytes, "its header is not UTF-8 at byte 10 of the file");
    header_refused("[]", 0, "its header begins with the byte 0x5b and not with '{'");
    header_refused("\0\0\0\0", 0, "its header begins with the byte 0x00 and not with '{'");
    for (header, reason) in [
        ("   ", "EOF while parsing a value at line 1 column 3"),
        ("{\"a\"", r#"tensor "a": EOF while parsing an object at line 1 column 4"#),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("{}\0", "trailing characters at line 1 column 3"),
        (
            r#"{"a":[[1]]}"#,
            r#"tensor "a": expected an object with dtype, shape and data_offsets, found a list at line 1 column 6"#,
        ),
        (
            r#"{"a":"U8"}"#,
            r#"tensor "a": expected an object with dtype, shape and data_offsets, found a string at line 1 column 9"#,
        ),
        (r#"{"a":{}}"#, r#"tensor "a" has no dtype"#),
        (r#"{"a":{"dtype":"U8"}}"#, r#"tensor "a" has no shape"#),
        (r#"{"a":{"dtype":"U8","shape":[]}}"#, r#"tensor "a" has no data_offsets"#),
        (r#"{"a":{"dtype":"U8","dtype":"U8"}}"#, r#"tensor "a" has its dtype twice"#),
        (
            r#"{"a":{"dtype":{"U8":null}}}"#,
            r#"tensor "a": expected the name of a dtype, found an object at line 1 column 15"#,
        ),
        (
            r#"{"a":{"shape":[-1]}}"#,
            r#"tensor "a": expected a whole number below 2^64, found -1 at line 1 column 17"#,
        ),
        (
            r#"{"a":{"shape":[1.5]}}"#,
            r#"tensor "a": expected a whole number below 2^64, found 1.5 at line 1 column 18"#,
        ),
        (
            r#"{"a":{"data_offsets":[1]}}"#,
            r#"tensor "a": data_offsets must be two numbers, the begin and the end at line 1 column 24"#,
        ),
        (
            r#"{"a":{"data_offsets":[1,2,3]}}"#,
            r#"tensor "a": data_offsets must be two numbers, the begin and the end at line 1 column 28"#,
        ),
        (
            r#"{"__metadata__":{"k":1}}"#,
            r#"__metadata__ "k": expected a string, found 1 at line 1 column 22"#,
        ),
        (
            r#"{"__metadata__":[]}"#,
            "__metadata__: expected an object of strings, found a list at line 1 column 18",
        ),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, "__metadata__ occurs twice"),
        (r#"{"__metadata__":{"k":"","\u006b":""}}"#, r#"__metadata__ has the key "k" twice"#),
    ] {
        header_refused(header, 0, &format!("its header cannot be read: {reason}"));
    }
}

#[test]
fn the_error_of_an_unknown_dtype_lists_the_known_ones() {
    let reason = parse(&file(r#"{"a":{"dtype":"F128\n"}}"#, 0)).unwrap_err();
    let expected =
        r#"tensor "a" has the unknown dtype "F128\n" (expected BOOL, F4, F6_E2M3, F6_E3M2, U8"#;
    assert!(reason.contains(expected), "{reason}");
}

#[test]
fn deep_nesting_is_refused_before_the_stack_overflows() {
    for nested in [
        format!(r#"{{"a":{}1{}}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20)),
        format!(r#"{{"a":{{"x":{}{}}}}}"#, r#"{"y":"#.repeat(1 << 20), "}".repeat(1 << 20)),
        format!(r#"{{"a":{{"x":{}"#, "[".repeat(1 << 20)),
        format!(r#"{{"__metadata__":{{"k":{}"#, "[".repeat(1 << 20)),
    ] {
        let reason = parse(&file(&nested, 0)).unwrap_err();
        let refused = reason.contains("recursion limit") || reason.contains("found a list");
        assert!(refused && reason.len() < 200, "{reason}");
    }
}

#[test]
fn tensors_must_fill_the_data_exactly() {
    header_refused(
        r#"{"a":{"dtype":"U8","shape":[24],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[8],"data_offsets":[16,24]}}"#,
        24,
        r#"tensor "b" (bytes 16 to 24 of the data) overlaps tensor "a" (bytes 0 to 24)"#,
    );
    header_refused(
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#,
        8,
        r#"tensor "b" (bytes 0 to 8 of the data) overlaps tensor "a" (bytes 0 to 8)"#,
    );
    header_refused(
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[9,17]}}"#,
        17,
        r#"bytes 8 to 9 of the data, before tensor "b", belong to no tensor"#,
    );
    header_refused(
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[1,9]}}"#,
        9,
        r#"bytes 0 to 1 of the data, before tensor "a", belong to no tensor"#,
    );
    header_refused(
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}}"#,
        8,
        r#"tensor "a" begins at byte 8 of the data but ends at 0"#,
    );
    let bytes = file(TWO, 20);
    refused(
        &bytes,
        &format!(
            "it was cut short: with 24 bytes of data it would have {} bytes, but it has {} bytes, \
             which is 4 bytes too few; fetch or copy it again",
            bytes.len() + 4,
            bytes.len()
        ),
    );
    let bytes = file(TWO, 30);
    refused(
        &bytes,
        &format!(
            "its tensors end at byte {}, but the file ends at byte {}: the bytes between belong to \
             no tensor",
            bytes.len() - 6,
            bytes.len()
        ),
    );
    header_refused(
        "{}",
        1,
        "its tensors end at byte 10, but the file ends at byte 11: the bytes between belong to no \
         tensor",
    );
    let most = u64::MAX;
    header_refused(
        &format!(
            r#"{{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}}"#,
            most / 8,
            most / 8
        ),
        0,
        "it was cut short: with 2.31 EB of data it would have 2.31 EB, but it has 97 bytes, which is \
         2.31 EB too few; fetch or copy it again",
    );
}

#[test]
fn a_name_that_occurs_twice_is_refused() {
    for again in ["a", r"\u0061"] {
        let header = format!(
            r#"{{"a":{{"dtype":"U8","shape":[8],"data_offsets":[0,8]}},"{again}":{{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}}}"#
        );
        header_refused(&header, 16, r#"its header describes the tensor "a" twice"#);
    }
}

#[test]
fn a_shape_must_match_the_data() {
    let one = |dtype: &str, shape: &str, end: u64| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    header_refused(
        &one("F32", "[2,2]", 15),
        15,
        r#"tensor "a" of shape [2, 2] and dtype F32 has 16 bytes, but its data_offsets span 15"#,
    );
    header_refused(
        &one("F4", "[3]", 2),
        2,
        r#"tensor "a" of shape [3] and dtype F4 has 12 bits, which is not a whole number of bytes"#,
    );
    for shape in ["[18446744073709551615,2]", "[2305843009213693952]", "[4294967296,4294967296,0]"]
    {
        let reason = parse(&file(&one("U8", shape, 0), 0)).unwrap_err();
        assert!(reason.ends_with("and dtype U8 has more than 2^64 bits"), "{reason}");
    }
    let dimensions = |count: usize| format!("[{}]", vec!["1"; count].join(","));
    parse(&file(&one("U8", &dimensions(DIMENSIONS_MAX), 1), 1)).unwrap();
    header_refused(
        &one("U8", &dimensions(DIMENSIONS_MAX + 1), 1),
        1,
        r#"its header cannot be read: tensor "a" has more than 64 dimensions"#,
    );
    header_refused(
        &one("U8", "[18446744073709551616]", 1),
        1,
        r#"its header cannot be read: tensor "a": expected a whole number below 2^64, found 18446744073709552000 at line 1 column 48"#,
    );
}
