#!/usr/bin/env python3
"""Writes the GGUF files of this folder with the Python package gguf, and their content to `expected.json`.

The files are committed, so that tests need no Python. To write them again, for example when ggml has
new types:

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0
    venv/bin/python crates/models/load/tests/gguf/make.py
"""

import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

FOLDER = Path(__file__).parent


def content(len_bytes, seed):
    return np.random.default_rng(seed).integers(0, 256, len_bytes, dtype=np.uint8)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def every_dtype(path):
    """A tensor for each type, of two by three rows of one block."""
    writer = gguf.GGUFWriter(path, "llama")
    for dtype in Type:
        _, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
        data = content(6 * block_bytes, dtype.value).reshape(2, 3, block_bytes)
        writer.add_tensor(f"of.{dtype.name}", data, raw_dtype=dtype)
    write(writer)


def every_value(path):
    """Every type of value, alone and in arrays, and nested arrays."""
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        Kind.UINT8: [0, 255],
        Kind.INT8: [-128, 127],
        Kind.UINT16: [0, 65535],
        Kind.INT16: [-32768, 32767],
        Kind.UINT32: [0, 2**32 - 1],
        Kind.INT32: [-(2**31), 2**31 - 1],
        Kind.FLOAT32: [1e-5, -3.5],
        Kind.BOOL: [False, True],
        Kind.STRING: ["", "ä \"quoted\" \u202e\x1b[2J\n"],
        Kind.UINT64: [0, 2**64 - 1],
        Kind.INT64: [-(2**63), 2**63 - 1],
        Kind.FLOAT64: [-0.375, 2.0**60],
    }
    for kind, values in numbers.items():
        writer.add_key_value(f"one.{kind.name}", values[1], kind)
        writer.add_key_value(f"many.{kind.name}", values * 2, Kind.ARRAY, sub_type=kind)
    writer.add_array("nested.numbers", [[1, 2], [3], [4, 5, 6]])
    writer.add_array("nested.deeper", [[["a", "b"]], [["c"]]])
    writer.add_tensor("scalar", np.array(7, dtype=np.float32))
    write(writer)


def aligned(path):
    """Another alignment, and tensors that need padding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    writer.add_name("aligned to 256 bytes")
    writer.add_tensor("a", content(100, 1).view(np.int8))
    writer.add_tensor("b", np.arange(30, dtype=np.float16).reshape(2, 3, 5))
    writer.add_tensor("empty", np.zeros((0, 4), dtype=np.float32))
    writer.add_tensor("c", np.arange(4, dtype=np.int64).reshape(1, 2, 1, 2))
    write(writer)


def version_2(path):
    """A file of version 2. Version 3 differs only in that it permits big-endian files."""
    writer = gguf.GGUFWriter(path, "gptneox")
    writer.add_tensor("a", np.arange(8, dtype=np.float64))
    write(writer)
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)


def vocabulary(path):
    """A file without tensors."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list([f"[tok{number}]" for number in range(200)] + [b"\xff\xfe"])
    writer.add_token_scores([number / 8 for number in range(201)])
    writer.add_token_types([gguf.TokenType.NORMAL] * 201)
    writer.add_bos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def split(path):
    """Three splits, whose names gguf chooses."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=2)
    writer.add_block_count(5)
    for number in range(5):
        writer.add_tensor(f"blk.{number}.w", content(64 + number, number).view(np.int8))
    write(writer)


def value_of(field):
    """Returns the value that gguf reads, with strings that are not UTF-8 in hexadecimal."""
    try:
        return field.contents()
    except UnicodeDecodeError:
        parts = [bytes(field.parts[index]) for index in field.data]
        return [part.decode() if part.isascii() else {"hex": part.hex()} for part in parts]


def read(path):
    reader = gguf.GGUFReader(path)
    fields = [field for name, field in reader.fields.items() if not name.startswith("GGUF.")]
    return {
        "version": int(reader.fields["GGUF.version"].contents()),
        "alignment": int(reader.alignment),
        "data_offset": int(reader.data_offset),
        "metadata": [
            [field.name, [kind.name for kind in field.types], value_of(field)]
            for field in fields
        ],
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.tensor_type.name,
                "number": tensor.tensor_type.value,
                "shape": [int(size) for size in reversed(tensor.shape.tolist())],
                "offset": int(tensor.data_offset),
                "bytes": int(tensor.n_bytes),
                "sha256": hashlib.sha256(tensor.data.tobytes()).hexdigest(),
            }
            for tensor in reader.tensors
        ],
    }


def main():
    for old in FOLDER.glob("*.gguf"):
        old.unlink()
    for make in [every_dtype, every_value, aligned, version_2, vocabulary, split]:
        make(FOLDER / f"{make.__name__}.gguf")
    expected = {
        "dtypes": {
            dtype.name: [dtype.value, *gguf.GGML_QUANT_SIZES[dtype]] for dtype in Type
        },
        "value_types": {kind.name: kind.value for kind in Kind},
        "files": {path.name: read(path) for path in sorted(FOLDER.glob("*.gguf"))},
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
