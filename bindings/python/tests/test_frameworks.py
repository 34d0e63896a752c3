"""The import of tensors into numpy, JAX and torch without a copy."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import longshore
import longshore.jax
import longshore.numpy
import ml_dtypes
import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy
from conftest import header
from test_safetensors import INDICES, outcome

SHARED = ["uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "bool"]
SHARED += ["complex64", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"]
SHARED += ["float8_e5m2fnuz", "float8_e8m0fnu"]
NARROWED = ["int64", "uint64", "float64"]


@pytest.fixture
def model(tmp_path: Any) -> str:
    """A tensor of each type that numpy and ml_dtypes have."""
    random = np.random.default_rng(1)
    arrays = {}
    for name in [*SHARED, *NARROWED]:
        kind = np.dtype(getattr(ml_dtypes, name, None) or name)
        integers = random.integers(0, 2 if name == "bool" else 100, (5, 7))
        arrays[name] = integers.astype(kind)
    path = str(tmp_path / "model.safetensors")
    longshore.numpy.save_file(arrays, path)
    return path


def capsule_name(capsule: Any) -> bytes:
    ctypes.pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
    ctypes.pythonapi.PyCapsule_GetName.argtypes = [ctypes.py_object]
    name: bytes = ctypes.pythonapi.PyCapsule_GetName(capsule)
    return name


@pytest.mark.parametrize("writable", [False, True])
def test_numpy_imports_by_dlpack(model: str, writable: bool) -> None:
    buffer = longshore.load(model, writable=writable)
    for name in [*SHARED[:10], *NARROWED]:
        tensor = buffer.tensors[name]
        array = np.from_dlpack(tensor)
        assert array.ctypes.data == tensor.address and array.dtype == name
        assert array.shape == tensor.shape and array.flags.writeable == writable
        assert np.array_equal(array, longshore.numpy.asarray(tensor))


def test_a_requested_copy_has_its_own_memory(model: str) -> None:
    tensor = longshore.load(model).tensors["int32"]
    array = np.from_dlpack(tensor, copy=True)
    assert array.ctypes.data != tensor.address and array.ctypes.data % 64 == 0
    assert array.flags.writeable
    array[0, 0] += 1
    assert array[0, 0] == longshore.numpy.asarray(tensor)[0, 0] + 1
    assert np.from_dlpack(tensor, copy=False).ctypes.data == tensor.address


def test_the_dlpack_version_is_negotiated(model: str) -> None:
    tensor = longshore.load(model).tensors["int32"]
    for version in ((1, 0), (1, 3), (2, 0)):
        assert capsule_name(tensor.__dlpack__(max_version=version)) == b"dltensor_versioned"
    for old in (None, (0, 8)):
        assert capsule_name(tensor.__dlpack__(max_version=old)) == b"dltensor"
    assert tensor.__dlpack_device__() == (1, 0)
    tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="does not move it"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="no stream"):
        tensor.__dlpack__(stream=1)


def test_a_capsule_keeps_the_memory_until_it_is_dropped(
    model: str, descriptors: Callable[[], set[str]]
) -> None:
    before = descriptors()
    buffer = longshore.load(model)
    kept = [
        buffer.tensors["int8"].__dlpack__(max_version=(1, 0)),
        buffer.tensors["int8"].__dlpack__(),
        np.from_dlpack(buffer.tensors["float32"]),
    ]
    with pytest.raises(BufferError, match="3 views"):
        buffer.close()
    del buffer
    gc.collect()
    assert len(descriptors() - before) == 2
    while kept:
        assert descriptors() != before
        kept.pop()
    gc.collect()
    assert descriptors() == before


def test_types_that_dlpack_lacks_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "packed.safetensors"
    entry = {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}
    path.write_bytes(header({"t": entry}, b"12"))
    with pytest.raises(BufferError, match="no type for F4"):
        longshore.load(path).tensors["t"].__dlpack__()


def test_numpy_arrays_of_types_that_dlpack_import_lacks(model: str) -> None:
    tensor = longshore.load(model).tensors["bfloat16"]
    array = np.asarray(tensor)
    assert array.dtype == ml_dtypes.bfloat16 and array.ctypes.data == tensor.address
    assert np.array(tensor).ctypes.data != tensor.address
    assert np.asarray(tensor, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="needs a copy"):
        np.asarray(tensor, np.float32, copy=False)


@pytest.mark.parametrize("align", [64, 4096])
def test_jax_imports_without_a_copy(model: str, align: int) -> None:
    buffer = longshore.load(model, align=align)
    for name in SHARED:
        tensor = buffer.tensors[name]
        array = longshore.jax.asarray(tensor)
        assert array.dtype == name and array.shape == (5, 7)
        assert array.unsafe_buffer_pointer() == tensor.address, name
        assert np.asarray(array).tobytes() == bytes(tensor.data)
        assert jnp.from_dlpack(tensor).unsafe_buffer_pointer() == tensor.address


def test_jax_narrows_64_bit_types(model: str) -> None:
    arrays = longshore.jax.load_file(model)
    for name in NARROWED:
        assert arrays[name].dtype == name.replace("64", "32")
    with jax.enable_x64(True):
        buffer = longshore.load(model, align=64)
        for name in NARROWED:
            array = longshore.jax.asarray(buffer.tensors[name])
            assert array.dtype == name
            assert array.unsafe_buffer_pointer() == buffer.tensors[name].address


def test_jax_arrays_equal_those_of_safetensors(model: str, tmp_path: Any) -> None:
    # Of the types of ml_dtypes, safetensors supports only bfloat16.
    known = {
        name: array
        for name, array in longshore.numpy.load_file(model).items()
        if "float8" not in name
    }
    path = str(tmp_path / "known.safetensors")
    safetensors.numpy.save_file(known, path)
    theirs = safetensors.flax.load_file(path)
    ours = longshore.jax.load_file(path)
    assert set(ours) == set(theirs) == set(known)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype and ours[name].shape == array.shape
        assert np.asarray(ours[name]).tobytes() == np.asarray(array).tobytes()
        assert isinstance(ours[name], jax.Array)
    with longshore.safe_open(path, framework="jax") as file:
        for name in known:
            whole = file.get_tensor(name)
            part = file.get_slice(name)[1:4, ::2]
            assert np.asarray(part).tobytes() == np.asarray(whole[1:4, ::2]).tobytes()


def test_jax_arrays_are_on_the_default_device(model: str) -> None:
    # The number of CPU devices is fixed when a process starts.
    code = """
import sys, jax, longshore, longshore.flax, numpy, safetensors.numpy, safetensors.flax
first, second = jax.devices()
def arrays(module):
    with module.safe_open(sys.argv[2], framework="flax") as file:
        whole, part = file.get_tensor("int32"), file.get_slice("int32")[1:3]
    return [module.flax.load_file(sys.argv[2])["int32"], whole, part]
expected = numpy.asarray(longshore.numpy.load_file(sys.argv[1])["int32"])
safetensors.numpy.save_file({"int32": expected}, sys.argv[2])
for default in (None, second, first, "cpu"):
    jax.config.update("jax_default_device", default)
    for ours, theirs in zip(arrays(longshore), arrays(safetensors), strict=True):
        assert ours.devices() == theirs.devices() == {second if default is second else first}
        assert numpy.array_equal(ours, theirs)
    assert numpy.array_equal(arrays(longshore)[0], expected)
"""
    subprocess.run(
        [sys.executable, "-c", code, model, f"{model}.small"],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        check=True,
    )


def test_modules_have_the_functions_of_safetensors() -> None:
    import longshore.flax

    for ours, theirs in (
        (longshore.numpy, safetensors.numpy),
        (longshore.flax, safetensors.flax),
        (longshore.jax, safetensors.flax),
    ):
        for name in ("load", "load_file", "safe_open", "save", "save_file"):
            assert hasattr(theirs, name) and name in ours.__all__ and hasattr(ours, name)
    assert longshore.flax.safe_open is longshore.safe_open


def test_jax_arrays_keep_the_memory(model: str, descriptors: Callable[[], set[str]]) -> None:
    arrays = longshore.jax.load_file(model)
    kept = arrays["float32"]
    expected = longshore.numpy.load_file(model)["float32"].copy()
    before_use = descriptors()
    del arrays
    gc.collect()
    assert np.array_equal(np.asarray(jax.jit(lambda array: array * 2)(kept)), expected * 2)
    assert descriptors() <= before_use and np.array_equal(np.asarray(kept), expected)


def test_unaligned_memory_is_copied(tmp_path: Any) -> None:
    path = tmp_path / "odd.safetensors"
    data = np.arange(6, dtype=np.float32).tobytes()
    entries = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [6], "data_offsets": [1, 25]},
    }
    path.write_bytes(header(entries, b"!" + data))
    tensor = longshore.load(path).tensors["b"]
    array = longshore.jax.asarray(tensor)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    assert array.unsafe_buffer_pointer() != tensor.address
    assert longshore.numpy.asarray(tensor).tolist() == [0, 1, 2, 3, 4, 5]
    aligned = longshore.load(path, align=64).tensors["b"]
    assert longshore.jax.asarray(aligned).unsafe_buffer_pointer() == aligned.address


def imported_torch() -> Any:
    return pytest.importorskip(
        "torch", reason="torch is not installed (LONGSHORE_TORCH=1 installs it)"
    )


def test_torch_views_the_memory(model: str) -> None:
    torch = imported_torch()
    import longshore.torch
    from safetensors.torch import load_file

    buffer = longshore.load(model, writable=True)
    theirs = load_file(model)
    for name, tensor in buffer.tensors.items():
        view = longshore.torch.asarray(tensor)
        assert view.data_ptr() == tensor.address
        assert view.dtype == theirs[name].dtype and view.shape == theirs[name].shape
        assert torch.equal(view.view(torch.uint8), theirs[name].view(torch.uint8))
    view.zero_()
    assert not any(bytes(tensor.data))
    loaded = longshore.torch.load_file(model)
    assert set(loaded) == set(theirs)
    loaded["float32"].add_(1)
    assert torch.equal(loaded["float32"], theirs["float32"] + 1)


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (3, 4, 5), (2, 0, 3)])
@pytest.mark.parametrize("whole", [True, False])
def test_torch_slices_equal_those_of_safetensors(
    tmp_path: Any, shape: tuple[int, ...], whole: bool
) -> None:
    imported_torch()
    path = str(tmp_path / "part.safetensors")
    values = np.arange(int(np.prod(shape, dtype=int)), dtype=np.int16).reshape(shape)
    safetensors.numpy.save_file({"t": values}, path)
    theirs: Any = safetensors.safe_open(path, "pt")
    with longshore.safe_open(path, "pt", whole=whole) as ours:
        given = 0
        for index in INDICES:
            expected = outcome(theirs.get_slice("t"), index)
            assert outcome(ours.get_slice("t"), index) == expected, index
            given += isinstance(expected, tuple)
        assert given > 0


@pytest.mark.parametrize("name", ["pt", "torch", "pytorch"])
def test_torch_loads_tensors_one_by_one(
    model: str, name: str, descriptors: Callable[[], set[str]]
) -> None:
    torch = imported_torch()
    from safetensors.torch import load_file

    theirs = load_file(model)
    with longshore.safe_open(model, framework=name, whole=False) as file:
        before = descriptors()
        for tensor, expected in theirs.items():
            found = file.get_tensor(tensor)
            assert found.dtype == expected.dtype and found.shape == expected.shape
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), tensor
            # The memory is writable, and no other tensor shares it.
            found.zero_()
            assert descriptors() == before
            del found
        assert descriptors() == before
        again = file.get_tensor("float32")
    assert torch.equal(again, theirs["float32"])
