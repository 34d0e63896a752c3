"""Tensors by their address: the functions of `safetensors` that its modules for frameworks use."""

from __future__ import annotations

import math

from longshore import _core
from longshore._dtypes import BITS, ML_DTYPES, NUMPY, TORCH
from longshore._saving.files import Entry, to_bytes, to_file
from longshore.errors import SafetensorError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any

_CODES = {name: code for code, name in (NUMPY | ML_DTYPES | TORCH).items()}


class TensorSpec:
    """A tensor in memory, by its address, for `serialize` and `serialize_file`.

    The memory must stay valid until these functions return: a wrong address ends the process, or writes
    other bytes of it to the file.

    Args:
        dtype: The type by its name in numpy or torch, such as "float32".
        shape: The dimensions, as the framework counts them.
        data_ptr: The address of the elements, which are in row-major order.
        data_len: The length of the elements in bytes.
    """

    __slots__ = ("data_len", "data_ptr", "dtype", "shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        code = _CODES.get(dtype)
        if code is None:
            raise SafetensorError(None, f"dtype {dtype} is not covered")
        self.dtype = code
        """The type by its name in the file, such as "F32"."""
        self.shape = [int(length) for length in shape]
        """The dimensions in the file."""
        if code == "F4" and self.shape:
            # torch counts pairs of elements.
            self.shape[-1] *= 2
        if min(self.shape, default=0) < 0 or data_ptr < 0 or data_len < 0:
            raise OverflowError("can't convert negative int to unsigned")
        self.data_ptr = int(data_ptr)
        self.data_len = int(data_len)

    def __repr__(self) -> str:
        return (
            f"TensorSpec(dtype='{self.dtype}', shape={self.shape}, data_ptr={self.data_ptr}, "
            f"data_len={self.data_len})"
        )


def serialize(
    tensor_dict: Mapping[str, TensorSpec], metadata: dict[str, str] | None = None
) -> bytes:
    """Return the bytes of a safetensors file with these tensors."""
    return to_bytes(_entries(tensor_dict), metadata)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write a safetensors file with these tensors, which appears only when it is complete."""
    to_file(_entries(tensor_dict), filename, metadata)


def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the name, type, shape and bytes of each tensor of a safetensors file that is in memory."""
    return [
        (name, {"shape": shape, "dtype": dtype, "data": bytearray(bytes[begin:end])})
        for name, dtype, shape, begin, end in _core.parse_safetensors(bytes)
    ]


def _entries(tensors: Mapping[str, TensorSpec]) -> list[Entry]:
    return [_entry(name, spec) for name, spec in tensors.items()]


def _entry(name: str, spec: TensorSpec) -> Entry:
    if not isinstance(name, str) or not isinstance(spec, TensorSpec):
        raise TypeError(f"expected TensorSpec objects by name, not {name!r}: {type(spec).__name__}")
    bits = math.prod(spec.shape) * BITS[spec.dtype]
    if bits != 8 * spec.data_len:
        raise SafetensorError(
            None,
            f"tensor '{name}' is {spec.dtype} of shape {spec.shape}, which does not have "
            f"{spec.data_len} bytes",
        )
    if spec.data_len == 0:
        return Entry(name, spec.dtype, spec.shape, memoryview(b""))
    # Programs that only load do not need this import.
    import ctypes

    data = (ctypes.c_ubyte * spec.data_len).from_address(spec.data_ptr)
    return Entry(name, spec.dtype, spec.shape, memoryview(data).cast("B"))
