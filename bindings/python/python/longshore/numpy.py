"""Safetensors files as numpy arrays: the functions of `safetensors.numpy`.

Arrays are views of one buffer, which lives as long as any of them. They are read-only unless
`writable` is set. The package `ml_dtypes` provides the types that numpy lacks.

>>> from longshore.numpy import load_file, save_file
>>> arrays = load_file(example)
>>> arrays["weight"].shape, arrays["weight"].dtype.name, arrays["weight"].flags.writeable
((3, 4), 'float32', False)
>>> save_file({"half": arrays["weight"] / 2}, target)
>>> load_file(target)["half"][0, 1]
np.float32(0.5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from longshore import _core, _dtypes
from longshore._attach import attached
from longshore._safetensors import safe_open
from longshore._saving.files import Entry, to_bytes, to_file
from longshore._stream import converted
from longshore.errors import SafetensorError

if TYPE_CHECKING:
    import os

    from longshore._load import Files, Options, StrPath
    from longshore._stream import StreamOptions, TensorStream

__all__ = ["asarray", "load", "load_file", "safe_open", "save", "save_file", "stream", "tensors"]

Array = np.ndarray[Any, np.dtype[Any]]


def load_file(
    filename: StrPath,
    *,
    backend: str = "mmap",
    attach: bool = False,
    socket: StrPath | None = None,
    **options: Unpack[Options],
) -> dict[str, Array]:
    """Load a safetensors file, or all shards of an index, as arrays by name.

    `backend` is ignored, and accepted because `safetensors` accepts it; `options` are the arguments
    of `longshore.load`. With `attach=True`, `longshore serve` loads the file if it does not hold it
    yet, and the arrays are views of its memory; `socket` is as for `longshore.attach`.
    """
    if (buffer := attached(attach, filename, socket, options)) is not None:
        return tensors(buffer)
    with safe_open(filename, framework="numpy", backend=backend, **options) as file:
        return file.get_tensors()


def tensors(buffer: _core.Buffer) -> dict[str, Array]:
    """Return all tensors of a buffer as arrays by name, which share its memory and keep it alive.

    >>> import longshore, longshore.numpy
    >>> sorted(longshore.numpy.tensors(longshore.load(example)))
    ['bias', 'weight']
    """
    return {name: asarray(tensor) for name, tensor in buffer.tensors.items()}


def stream(path_or_paths: Files, **options: Unpack[StreamOptions]) -> TensorStream:
    """Return an iterator over the tensors of files as pairs of a name and an array, read one after the other
    into bounded memory; `options` are the arguments of `longshore.stream`.

    An array can be written to. It shares the memory of the stream, until it and all its views are deleted.

    >>> import longshore.numpy
    >>> for name, array in longshore.numpy.stream(example, select="weight", rows=(0, 3)):
    ...     print(name, array.shape, array[0, 1])
    weight (1, 4) 1.0
    """
    return converted(asarray, path_or_paths, options)


def load(data: bytes) -> dict[str, Array]:
    """Return the tensors of a safetensors file that is in memory, copied once and writable."""
    return from_file(data, memoryview(bytearray(data)))


def from_file(data: bytes, view: memoryview) -> dict[str, Array]:
    """Return the tensors of a safetensors file that is in memory, as views of `view`.

    `view` has the same content as `data`.
    """
    return {
        name: _from_bytes(view[begin:end], name, dtype, shape)
        for name, dtype, shape, begin, end in _core.parse_safetensors(data)
    }


def save(tensor_dict: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these arrays."""
    return to_bytes(_entries(tensor_dict), metadata)


def save_file(
    tensor_dict: dict[str, Array],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write arrays into a safetensors file, which appears only when it is complete."""
    to_file(_entries(tensor_dict), filename, metadata)


def asarray(tensor: _core.Tensor) -> Array:
    """Return a tensor as an array, which shares the buffer's memory and keeps it alive.

    >>> import longshore, longshore.numpy
    >>> tensor = longshore.load(example).tensors["bias"]
    >>> array = longshore.numpy.asarray(tensor)
    >>> array.ctypes.data == tensor.address, array.flags.writeable
    (True, False)
    """
    return _from_bytes(tensor.data, tensor.name, tensor.dtype, tensor.shape)


def _array(tensor: _core.Tensor, dtype: Any, copy: bool | None) -> Array:
    """Implement `Tensor.__array__`."""
    array = asarray(tensor)
    if dtype is not None and np.dtype(dtype) != array.dtype:
        if copy is False:
            raise ValueError(
                f"tensor '{tensor.name}' is {tensor.dtype}: converting it to {dtype} needs a copy"
            )
        return array.astype(dtype)
    return array.copy() if copy else array


def _from_bytes(data: memoryview, name: str, dtype: str, shape: Any) -> Array:
    kind = _dtype(dtype, name)
    if data.nbytes == 0:
        array = np.empty(shape, kind)
        array.flags.writeable = not data.readonly
        return array
    return np.frombuffer(data, kind).reshape(shape)


def _dtype(dtype: str, name: str) -> np.dtype[Any]:
    if dtype in _dtypes.NUMPY:
        return np.dtype(_dtypes.NUMPY[dtype])
    if dtype not in _dtypes.ML_DTYPES:
        raise SafetensorError(
            None,
            f"tensor '{name}' is {dtype}, for which numpy has no type; "
            f"longshore.load(…).tensors['{name}'].data has its bytes",
        )
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            f"tensor '{name}' is {dtype}, for which numpy needs the package ml_dtypes: "
            "pip install ml_dtypes"
        ) from error
    kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _dtypes.ML_DTYPES[dtype]))
    return kind


_NAMES = {name: dtype for dtype, name in (_dtypes.NUMPY | _dtypes.ML_DTYPES).items()}


def _entries(tensors: dict[str, Array]) -> list[Entry]:
    return [_entry(name, array) for name, array in tensors.items()]


def _entry(name: str, array: Array) -> Entry:
    dtype = _NAMES.get(array.dtype.name)
    if dtype is None:
        raise SafetensorError(
            None, f"tensor '{name}' is {array.dtype.name}, which safetensors files cannot hold"
        )
    # The format is little-endian and row-major.
    dense = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = memoryview(dense.reshape(-1).view(np.uint8).data)
    return Entry(name, dtype, array.shape, data)
