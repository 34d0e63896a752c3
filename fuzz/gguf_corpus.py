#!/usr/bin/env python3
"""Writes the handmade cases of corpus/gguf_header: one file for each case, named after it. The folder
also has inputs that fuzzers found; those are not changed.

    python3 fuzz/gguf_corpus.py
"""

import struct
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus" / "gguf_header"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
DTYPE_F32, DTYPE_Q4_0, DTYPE_Q4_K = 0, 2, 12


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def entry(key, kind, value):
    return text(key) + u32(kind) + value


def array(kind, *elements, count=None):
    return u32(kind) + u64(len(elements) if count is None else count) + b"".join(elements)


def tensor(name, shape=(8,), dtype=DTYPE_F32, offset=0):
    """Describes a tensor; the innermost dimension comes first, as in the file."""
    sizes = b"".join(u64(size) for size in shape)
    return text(name) + u32(len(shape)) + sizes + u32(dtype) + u64(offset)


def file(entries=(), tensors=(), data=0, version=3, alignment=32, counts=None):
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    head = b"GGUF" + u32(version) + u64(tensor_count) + u64(entry_count)
    head += b"".join(entries) + b"".join(tensors)
    head += bytes(-len(head) % alignment)
    return head + bytes([0xDA]) * data


ARCHITECTURE = entry("general.architecture", STRING, text("llama"))


def aligned(value, kind=U32):
    return entry("general.alignment", kind, value)


def nested(depth):
    value = array(U8, b"\1", b"\2")
    for _ in range(depth - 1):
        value = array(ARRAY, value)
    return entry("nested", ARRAY, value)


def cases():
    two = [tensor("a"), tensor("b", (32, 2), DTYPE_Q4_0, 32)]
    whole = file([ARCHITECTURE], two, 32 + 36)
    yield "sound_two_tensors", whole
    yield "sound_version_2", file([ARCHITECTURE], two, 68, version=2)
    yield "sound_empty", file()
    yield "sound_no_tensors_no_padding", file([ARCHITECTURE])[:69]
    yield "sound_padded_behind", file([ARCHITECTURE], two, 96)
    yield "sound_gap", file([], [tensor("a"), tensor("b", offset=96)], 128)
    yield "sound_order", file([], [tensor("b", offset=32), tensor("a")], 64)
    yield "sound_without_data", file(
        [], [tensor("b", (0, 3)), tensor("a"), tensor("c", (3, 0)), tensor("d", (), offset=32)], 36
    )
    yield "sound_alignment_4096", file(
        [aligned(u32(4096))], [tensor("a"), tensor("b", offset=4096)], 4128, alignment=4096
    )
    yield "sound_alignment_8", file(
        [aligned(u32(8))], [tensor("a", (2,)), tensor("b", (2,), offset=8)], 16, alignment=8
    )
    yield "sound_every_value", file(
        [
            entry("u8", U8, b"\xff"), entry("i8", I8, b"\xff"), entry("u16", U16, b"\1\2"),
            entry("i16", I16, b"\xff\xff"), entry("u32", U32, u32(7)), entry("i32", I32, u32(7)),
            entry("f32", F32, struct.pack("<f", float("nan"))), entry("bool", BOOL, b"\1"),
            entry("string", STRING, text("ä")), entry("u64", U64, u64(2**63)),
            entry("i64", I64, u64(2**63)), entry("f64", F64, struct.pack("<d", float("inf"))),
            entry("strings", ARRAY, array(STRING, text(""), text(b"\xff"), text("c"))),
            entry("bools", ARRAY, array(BOOL, b"\0", b"\1")), entry("none", ARRAY, array(F64)),
        ]
    )
    yield "sound_depth_4", file([nested(4)])
    yield "sound_names", file([entry("", U8, b"\0")], [tensor(""), tensor("\x1b[2J" * 20, offset=32)], 64)
    yield "empty", b""
    yield "magic_alone", b"GGUF"
    yield "cut_in_counts", whole[:20]
    yield "cut_in_key", whole[:40]
    yield "cut_in_tensor", whole[:80]
    yield "cut_in_data", whole[:-1]
    yield "zeros", bytes(64)
    yield "safetensors", struct.pack("<Q", 60) + b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}' + bytes(11)
    yield "git_lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
    yield "web_page", b"<!DOCTYPE html><html><body></body></html>"
    yield "ggjt", b"tjgg" + bytes(40)
    yield "version_0", file(version=0)
    yield "version_1", b"GGUF" + u32(1) + u32(0) + u32(0) + bytes(16)
    yield "version_4", file(version=4)
    yield "big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8)
    yield "tensors_ten_million", file(counts=(10_000_000, 0))
    yield "tensors_2_63", file(counts=(2**63, 0))
    yield "tensors_too_many_for_it", file(counts=(1_000_000, 0))
    yield "entries_2_64", file(counts=(0, 2**64 - 1))
    yield "entries_too_many_for_it", file(counts=(0, 1000))
    yield "key_2_63", file(counts=(0, 1))[:24] + u64(2**63) + bytes(16)
    yield "key_not_utf8", file([entry(b"\xff\xfe", U8, b"\0")])
    yield "key_twice", file([ARCHITECTURE, entry("x", U8, b"\0"), ARCHITECTURE])
    yield "key_control", file([entry("\x1b[2J\n", 99, b"\0")])
    yield "string_2_63", file([entry("x", STRING, u64(2**63))])
    yield "string_2_64", file([entry("x", STRING, u64(2**64 - 1))])
    yield "value_type_13", file([entry("x", 13, bytes(8))])
    yield "bool_2", file([entry("x", BOOL, b"\2")])
    yield "array_of_bool_2", file([entry("x", ARRAY, array(BOOL, b"\0", b"\2"))])
    yield "array_of_type_13", file([entry("x", ARRAY, array(13))])
    yield "array_overflow", file([entry("x", ARRAY, array(U64, count=2**61))])
    yield "array_of_2_63_strings", file([entry("x", ARRAY, array(STRING, count=2**63))])
    yield "array_of_arrays_2_63", file([entry("x", ARRAY, array(ARRAY, count=2**63))])
    yield "depth_5", file([nested(5)])
    yield "depth_100000", file([nested(100_000)])[:2000]
    yield "alignment_0", file([aligned(u32(0))])
    yield "alignment_4", file([aligned(u32(4))])
    yield "alignment_48", file([aligned(u32(48))])
    yield "alignment_u64", file([aligned(u64(32), U64)])
    yield "alignment_2_31", file([aligned(u32(2**31))], [tensor("a")], 32)
    yield "tensor_name_2_63", file([], counts=(1, 0))[:24] + u64(2**63) + bytes(40)
    yield "tensor_name_not_utf8", file([], [tensor(b"\xc3(")], 32)
    yield "tensor_twice", file([], [tensor("a"), tensor("a", offset=32)], 64)
    yield "dimensions_5", file([], [tensor("a", (1, 1, 1, 1, 1))], 32)
    yield "dimensions_2_32", file([], [text("a") + u32(2**32 - 1) + bytes(64)], 32)
    yield "shape_overflow", file([], [tensor("a", (2**32, 2**32))], 32)
    yield "shape_overflow_before_zero", file([], [tensor("a", (0, 2**32, 2**32))], 32)
    yield "shape_zero_before_overflow", file([], [tensor("a", (2**32, 2**32, 0))], 32)
    yield "bytes_overflow", file([], [tensor("a", (2**62,))], 32)
    yield "half_a_block", file([], [tensor("a", (48, 2), DTYPE_Q4_0)], 64)
    yield "rows_shorter_than_a_block", file([], [tensor("a", (128, 2), DTYPE_Q4_K)], 160)
    yield "scalar_of_blocks", file([], [tensor("a", (), DTYPE_Q4_0)], 32)
    yield "dtype_removed", file([], [tensor("a", (32,), 4)], 32)
    yield "dtype_repacked", file([], [tensor("a", (32,), 31)], 32)
    yield "dtype_unknown", file([], [tensor("a", (32,), 43)], 32)
    yield "dtype_2_32", file([], [tensor("a", (32,), 2**32 - 1)], 32)
    yield "offset_unaligned", file([], [tensor("a", offset=16)], 64)
    yield "offset_2_64", file([], [tensor("a", offset=2**64 - 32)], 32)
    yield "offset_past_the_end", file([], [tensor("a", offset=64)], 64)
    yield "overlap", file([], [tensor("a", (16,)), tensor("b", offset=32)], 64)
    yield "overlap_same", file([], [tensor("a"), tensor("b")], 32)
    yield "tensor_control_name", file([], [tensor("\x1b]0;x\x07\u202e", (48,), DTYPE_Q4_0)], 64)


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, content in cases():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
