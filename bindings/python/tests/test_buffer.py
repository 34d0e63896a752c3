"""`longshore.Buffer` as a mapping and a context manager, and its tensors as dictionaries of arrays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import longshore
import longshore.numpy
import numpy as np
import pytest


def test_a_buffer_is_a_mapping_from_names_to_tensors(example: str) -> None:
    buffer = longshore.load(example)
    assert list(buffer) == list(buffer.tensors) == buffer.keys()
    assert len(buffer) == 2 and buffer.nbytes > 64
    assert "bias" in buffer and "nothing" not in buffer and 3 not in buffer
    assert buffer["bias"] is buffer.tensors["bias"]
    assert dict(buffer) == dict(buffer.tensors)
    with pytest.raises(KeyError):
        buffer["nothing"]
    assert bytes(buffer) == Path(example).read_bytes()


def test_a_buffer_without_tensors_is_true(example: str) -> None:
    buffer = longshore.load(example, format="raw")
    assert len(buffer) == 0 and list(buffer) == [] and bool(buffer)


def test_an_opened_file_is_a_container_of_names(example: str) -> None:
    file = longshore.safe_open(example, "np")
    assert list(file) == file.keys() == ["bias", "weight"]
    assert len(file) == 2 and "bias" in file and "nothing" not in file and 3 not in file
    with file:
        pass
    for use in (len, list, lambda file: "bias" in file):
        with pytest.raises(longshore.SafetensorError, match="closed"):
            use(file)


def test_weak_references_end_with_their_objects(example: str) -> None:
    buffer = longshore.load(example)
    references = [weakref.ref(thing) for thing in (buffer, buffer.files[0], buffer["bias"])]
    assert references[0]() is buffer
    del buffer
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_the_end_of_a_block_leaves_arrays_valid(
    example: str, descriptors: Callable[[], set[str]]
) -> None:
    before = descriptors()
    with longshore.load(example) as buffer:
        arrays = longshore.numpy.tensors(buffer)
    assert buffer.closed and arrays["weight"].sum() == 66
    with pytest.raises(ValueError, match="closed"):
        memoryview(buffer)
    del arrays
    assert descriptors() == before


def test_the_end_of_a_block_passes_on_the_exception_of_the_block(example: str) -> None:
    with pytest.raises(RuntimeError, match="of the user") as raised, longshore.load(example) as buffer:
        array = np.asarray(buffer["bias"])
        raise RuntimeError("of the user")
    assert raised.value.__context__ is None and array.sum() == 4


def test_a_closed_buffer_can_be_closed_by_a_block(example: str) -> None:
    with longshore.load(example) as buffer:
        buffer.close()
    assert buffer.closed


def test_all_tensors_in_one_call(example: str) -> None:
    buffer = longshore.load(example, align=64)
    arrays = longshore.numpy.tensors(buffer)
    assert sorted(arrays) == ["bias", "weight"]
    assert arrays["weight"].ctypes.data == buffer["weight"].address
    jax = pytest.importorskip("longshore.jax", reason="jax is not installed")
    assert {name: array.tolist() for name, array in jax.tensors(buffer).items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_jax_converts_tensors_of_unsigned_types(tmp_path: Path) -> None:
    jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
    path = f"{tmp_path}/unsigned.safetensors"
    kinds = (np.uint8, np.uint16, np.uint32, np.int8, np.float32)
    arrays = {np.dtype(kind).name: np.arange(5).astype(kind) for kind in kinds}
    longshore.numpy.save_file(arrays, path)
    for align in (None, 64):
        buffer = longshore.load(path, align=align)
        for name, array in arrays.items():
            converted = jnp.asarray(buffer[name])
            assert converted.dtype == name and converted.tolist() == array.tolist()
