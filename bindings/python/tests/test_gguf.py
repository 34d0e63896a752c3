"""Compares GGUF files with the package `gguf`, which also writes them."""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import Path
from typing import Any

import gguf
import longshore
import longshore.gguf
import longshore.numpy
import numpy as np
import pytest
from longshore.gguf import GGMLQuantizationType, GGUFValueType


def write(
    path: Path, tensors: dict[str, tuple[Any, Any]], big_alignment: int | None = None
) -> None:
    """Write a file with every type of metadata and these tensors, each with its type."""
    writer = gguf.GGUFWriter(str(path), "llama")
    if big_alignment:
        writer.add_custom_alignment(big_alignment)
    for kind, low, high in (("uint", 0, 1), ("int", -1, 1)):
        for bits in (8, 16, 32, 64):
            value = (low << bits - 1) + (1 << bits - high) - 1 if low == 0 else -(1 << bits - 1)
            getattr(writer, f"add_{kind}{bits}")(f"test.{kind}{bits}", value)
    writer.add_float32("test.float32", 1.5)
    writer.add_float64("test.float64", 1e300)
    writer.add_bool("test.yes", True)
    writer.add_bool("test.no", False)
    writer.add_string("test.text", "πάντα ῥεῖ")
    writer.add_string("test.nothing", "")
    writer.add_array("test.words", ["<s>", "", "Ġthe", "▁"])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.scores", [0.5, -1.25])
    writer.add_array("test.truths", [True, False])
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def every_type() -> dict[str, tuple[Any, Any]]:
    """Return a tensor of each type, of random bytes."""
    random = np.random.default_rng(3)
    tensors: dict[str, tuple[Any, Any]] = {}
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64):
        name = np.dtype(dtype).name
        tensors[f"{name}.2d"] = (random.integers(0, 100, (3, 5)).astype(dtype), None)
        tensors[f"{name}.1d"] = (random.integers(0, 100, 7).astype(dtype), None)
    for kind, (_, nbytes) in gguf.GGML_QUANT_SIZES.items():
        if kind.name in ("F16", "F32", "F64", "I8", "I16", "I32", "I64"):
            continue
        rows = random.integers(0, 256, (2, 3, 2 * nbytes), np.uint8)
        tensors[f"{kind.name}.weight"] = (rows, kind)
    return tensors


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with a tensor of each type."""
    write(tmp_path / "model.gguf", every_type())
    return tmp_path / "model.gguf"


def test_type_numbers_are_those_of_the_package() -> None:
    ours = {kind.name: kind.value for kind in GGMLQuantizationType}
    theirs = {kind.name: kind.value for kind in gguf.GGMLQuantizationType}
    # The package lacks the newest types of ggml.
    assert theirs.items() <= ours.items()
    assert ours["Q2_0"] == 42
    assert {kind.name: kind.value for kind in GGUFValueType} == {
        kind.name: kind.value for kind in gguf.GGUFValueType
    }


def patched(path: Path, number: int) -> bytes:
    """Write a file with a tensor of 36 bytes and that type number; return the tensor's bytes."""
    data = np.arange(36, dtype=np.uint8)
    write(path, {"packed": (data.view(np.int8), None)})
    content = path.read_bytes()
    # The name, the number of dimensions, the number of elements, the type.
    said = b"packed" + struct.pack("<IQI", 1, 36, GGMLQuantizationType.I8)
    assert content.count(said) == 1
    path.write_bytes(content.replace(said, b"packed" + struct.pack("<IQI", 1, 128, number)))
    return data.tobytes()


def test_a_type_that_the_package_lacks(tmp_path: Path) -> None:
    # Two blocks of 64 elements.
    data = patched(tmp_path / "new.gguf", 42)
    tensor = longshore.gguf.load(tmp_path / "new.gguf")["packed"]
    assert (tensor.tensor_type, tensor.tensor_type.name) == (42, "Q2_0")
    assert (tensor.n_elements, tensor.n_bytes, tensor.data.shape) == (128, 36, (36,))
    assert tensor.data.tobytes() == data


def test_unknown_types_raise_a_format_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(tmp_path / "newer.gguf", 4242)
    with pytest.raises(longshore.FormatError, match="type 4242, which is not known"):
        longshore.gguf.load(tmp_path / "newer.gguf")
    # A type that only the module in Rust supports.
    patched(tmp_path / "new.gguf", 42)
    fewer = IntEnum("fewer", {"F32": 0})
    monkeypatch.setattr(longshore.gguf, "GGMLQuantizationType", fewer)
    with pytest.raises(longshore.FormatError, match="'packed' is Q2_0, which longshore.gguf"):
        longshore.gguf.load(tmp_path / "new.gguf")


@pytest.mark.parametrize("align", [None, 64, 4096])
def test_every_tensor_is_the_same(model: Path, align: int | None) -> None:
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(model).tensors}
    ours = longshore.gguf.load(model, align=align)
    assert set(ours) == set(theirs) and len(ours) == len(ours.tensors) >= 14 + 20
    for name, tensor in theirs.items():
        mine = ours[name]
        assert mine.tensor_type == tensor.tensor_type
        assert mine.tensor_type.name == tensor.tensor_type.name
        assert (
            mine.shape.tolist() == tensor.shape.tolist() and mine.shape.dtype == tensor.shape.dtype
        )
        assert (mine.n_elements, mine.n_bytes) == (tensor.n_elements, tensor.n_bytes)
        assert mine.data.dtype == tensor.data.dtype and mine.data.shape == tensor.data.shape
        assert mine.data.tobytes() == tensor.data.tobytes()
        assert not mine.data.flags.writeable
        if align:
            assert mine.data.ctypes.data % align == 0
        else:
            assert mine.data_offset == tensor.data_offset
    assert [tensor.name for tensor in ours.tensors] == list(theirs) or align
    assert ours.get_tensor(0) is ours.tensors[0]


def same_parts(ours: Any, theirs: Any) -> None:
    assert [part.dtype for part in ours.parts] == [part.dtype for part in theirs.parts]
    assert [part.tolist() for part in ours.parts] == [part.tolist() for part in theirs.parts]
    assert not any(part.flags.writeable for part in ours.parts)


def test_fields_and_tensors_are_the_tuples_of_the_package(model: Path) -> None:
    ours, theirs = longshore.gguf.GGUFReader(model), gguf.GGUFReader(model)
    assert ours.tensors[0]._fields == theirs.tensors[0]._fields
    name, tensor_type, *_rest, field = ours.tensors[0]
    assert (name, tensor_type, field.name) == (*theirs.tensors[0][:2], theirs.tensors[0].field.name)
    for mine, other in zip(ours.fields.values(), theirs.fields.values(), strict=True):
        assert isinstance(mine, tuple) and mine._fields == other._fields
        offset, key, parts, data, types = mine
        assert (offset, key, data, types) == (other[0], other[1], other[3], other[4])
        assert [part.tolist() for part in parts] == [part.tolist() for part in other[2]]


def test_the_attributes_of_the_reader_are_those_of_the_package(model: Path) -> None:
    ours, theirs = longshore.gguf.GGUFReader(model), gguf.GGUFReader(model)
    assert (ours.byte_order, ours.endianess) == (theirs.byte_order, theirs.endianess)
    assert ours.endianess.name == theirs.endianess.name
    assert ours.gguf_scalar_to_np == theirs.gguf_scalar_to_np
    assert ours.data.tobytes() == theirs.data.tobytes() and ours.data.dtype == theirs.data.dtype
    assert ours.data_offset == theirs.data_offset and ours.alignment == theirs.alignment


def test_the_modes_of_the_reader(model: Path) -> None:
    assert not longshore.gguf.GGUFReader(model).tensors[0].data.flags.writeable
    content = model.read_bytes()
    private = longshore.gguf.GGUFReader(model, "c")
    private.tensors[0].data[:] = 0
    private.fields["test.uint32"].parts[-1][0] = 7
    assert model.read_bytes() == content
    with pytest.raises(ValueError, match="does not write to files"):
        longshore.gguf.GGUFReader(model, "r+")


def test_the_last_metadata_entry_may_be_of_any_type(tmp_path: Path) -> None:
    values: list[tuple[str, Any]] = [
        ("add_array", ["", "word", "πάντα"]),
        ("add_array", [1, 2]),
        ("add_array", [True]),
        ("add_string", "text"),
        ("add_bool", True),
        ("add_float64", 1.5),
    ]
    for add, value in values:
        path = tmp_path / "last.gguf"
        writer = gguf.GGUFWriter(str(path), "llama")
        getattr(writer, add)("last", value)
        writer.add_tensor("t", np.ones(3, np.float32))
        for write in ("header", "kv_data", "tensors"):
            getattr(writer, f"write_{write}_to_file")()
        writer.close()
        ours, theirs = longshore.gguf.load(path)["t"].field, gguf.GGUFReader(path).tensors[0].field
        assert ours.offset == theirs.offset
        same_parts(ours, theirs)


def test_the_header_entry_of_every_tensor_is_the_same(model: Path) -> None:
    ours = longshore.gguf.load(model)
    for theirs in gguf.GGUFReader(model).tensors:
        field = ours[theirs.name].field
        assert (field.name, field.offset) == (theirs.field.name, theirs.field.offset)
        assert (field.data, field.types) == (theirs.field.data, theirs.field.types)
        same_parts(field, theirs.field)


def test_parts_are_views_of_the_aligned_layout(model: Path) -> None:
    ours = longshore.gguf.load(model, align=4096)
    content = bytes(ours.buffer)
    for field in [*ours.fields.values(), *(tensor.field for tensor in ours.tensors)]:
        parts = b"".join(part.tobytes() for part in field.parts)
        assert content[field.offset : field.offset + len(parts)] == parts
    text = ours.fields["test.text"]
    assert str(bytes(text.parts[text.data[0]]), "utf-8") == ours.metadata["test.text"]


def test_every_field_is_the_same(model: Path) -> None:
    theirs = gguf.GGUFReader(model)
    ours = longshore.gguf.load(model)
    assert list(ours.fields) == list(theirs.fields)
    for name, field in theirs.fields.items():
        mine = ours.get_field(name)
        assert mine is not None and mine.name == field.name
        assert mine.types == field.types, name
        assert mine.contents() == field.contents() and type(mine.contents()) is type(
            field.contents()
        )
        assert (mine.offset, mine.data) == (field.offset, field.data)
        same_parts(mine, field)
        if mine.types[0] == GGUFValueType.ARRAY:
            assert mine.contents(0) == field.contents(0)
            assert mine.contents(slice(1, 3)) == field.contents(slice(1, 3))
    assert ours.get_field("nothing") is None
    assert (ours.version, ours.alignment, ours.data_offset) == (
        3,
        theirs.alignment,
        theirs.data_offset,
    )
    assert ours.metadata["test.text"] == "πάντα ῥεῖ"
    assert "GGUF.version" not in ours.metadata


def test_a_file_that_declares_its_alignment(tmp_path: Path) -> None:
    write(
        tmp_path / "wide.gguf",
        {"a": (np.ones(3, np.float32), None), "b": (np.ones(5, np.int8), None)},
        256,
    )
    ours = longshore.gguf.load(tmp_path / "wide.gguf")
    assert ours.alignment == 256
    assert [tensor.data.ctypes.data % 256 for tensor in ours.tensors] == [0, 0]


def test_frameworks_import_tensors_of_types_that_they_have(model: Path) -> None:
    buffer = longshore.load(model, align=64)
    assert buffer.files[0].format == "gguf"
    for name in ("float32.2d", "int16.2d", "float64.1d"):
        tensor = buffer.tensors[name]
        array = np.from_dlpack(tensor)
        assert array.ctypes.data == tensor.address and array.dtype == name[:-3]
        assert longshore.numpy.asarray(tensor).tobytes() == array.tobytes()
    assert longshore.numpy.asarray(buffer.tensors["BF16.weight"]).dtype == "bfloat16"
    with pytest.raises(BufferError, match="no type for Q4_K"):
        buffer.tensors["Q4_K.weight"].__dlpack__()
    with pytest.raises(longshore.LongshoreError, match="numpy has no type"):
        longshore.numpy.asarray(buffer.tensors["Q4_K.weight"])
    assert buffer.tensors["Q4_K.weight"].block == (256, 144)


def test_unmodified_readers_open_the_memory(model: Path) -> None:
    expected = gguf.GGUFReader(model)
    for align in (None, 4096):
        with longshore.load(model, align=align) as buffer:
            read = gguf.GGUFReader(buffer.path)
            tensors = {tensor.name: tensor.data.tobytes() for tensor in read.tensors}
            del read
        assert tensors == {tensor.name: tensor.data.tobytes() for tensor in expected.tensors}


@pytest.mark.parametrize("cut", [0, 3, 4, 8, 23, 24, 100, -2000])
def test_malformed_files_are_refused(model: Path, cut: int) -> None:
    content = model.read_bytes()
    model.write_bytes(content[:cut])
    with pytest.raises(longshore.FormatError, match="model.gguf is not a valid GGUF file"):
        longshore.gguf.load(model)


def test_files_of_another_format_are_refused(example: str) -> None:
    with pytest.raises(longshore.FormatError, match="GGUF"):
        longshore.gguf.load(example)
