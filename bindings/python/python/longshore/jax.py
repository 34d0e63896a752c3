"""Safetensors files as JAX arrays: the functions of `safetensors.flax`.

Tensors are placed at multiples of 64 bytes while they are read, so that JAX on a CPU shares them
instead of copying them. If JAX's default device is not the CPU, arrays are copied to it.

>>> from longshore.jax import load_file
>>> arrays = load_file(example)
>>> arrays["weight"].shape, arrays["weight"].dtype.name
((3, 4), 'float32')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from longshore import _core, numpy as _numpy
from longshore._attach import attached
from longshore._safetensors import safe_open
from longshore._stream import converted

if TYPE_CHECKING:
    import os

    from longshore._load import Files, Options, StrPath
    from longshore._stream import StreamOptions, TensorStream

__all__ = ["asarray", "load", "load_file", "safe_open", "save", "save_file", "stream", "tensors"]

ALIGNMENT_BYTES = 64
"""The alignment that XLA on a CPU requires of memory that it shares."""


def load_file(
    filename: StrPath,
    *,
    backend: str = "mmap",
    attach: bool = False,
    socket: StrPath | None = None,
    **options: Unpack[Options],
) -> dict[str, jax.Array]:
    """Load a safetensors file, or all shards of an index, as arrays by name.

    `backend` is ignored, and accepted because `safetensors` accepts it; `options` are the arguments
    of `longshore.load`. With `attach=True`, `longshore serve` loads the file if it does not hold it
    yet, and arrays that are aligned there share its memory; `socket` is as for `longshore.attach`.
    """
    if (buffer := attached(attach, filename, socket, options)) is not None:
        return tensors(buffer)
    with safe_open(filename, framework="jax", backend=backend, **options) as file:
        return file.get_tensors()


def tensors(buffer: _core.Buffer) -> dict[str, jax.Array]:
    """Return all tensors of a buffer as arrays by name, on JAX's default device.

    Arrays on a CPU share the buffer's memory if they are aligned to 64 bytes.
    """
    return {name: placed(tensor) for name, tensor in buffer.tensors.items()}


def stream(path_or_paths: Files, **options: Unpack[StreamOptions]) -> TensorStream:
    """Return an iterator over the tensors of files as pairs of a name and an array, read one after the other
    into bounded memory; `options` are the arguments of `longshore.stream`.

    An array on the CPU shares the memory of the stream if it is aligned to 64 bytes in the file; others are
    copied.
    """
    return converted(placed, path_or_paths, options)


def load(data: bytes) -> dict[str, jax.Array]:
    """Return the tensors of a safetensors file that is in memory, copied."""
    return {name: jnp.array(array) for name, array in _numpy.from_file(data, memoryview(data)).items()}


def save(tensors: dict[str, jax.Array], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these arrays."""
    return _numpy.save(_as_numpy(tensors), metadata)


def save_file(
    tensors: dict[str, jax.Array],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write arrays into a safetensors file."""
    _numpy.save_file(_as_numpy(tensors), filename, metadata)


def asarray(tensor: _core.Tensor) -> jax.Array:
    """Return a tensor as an array, which shares the buffer's memory if it is aligned to 64 bytes.

    JAX copies unaligned tensors, and tensors that it converts: without `jax_enable_x64`, it converts
    64-bit numbers to 32 bits.
    """
    if tensor.address % ALIGNMENT_BYTES == 0 and tensor.nbytes > 0:
        return jax.dlpack.from_dlpack(tensor)
    return jnp.array(_numpy.asarray(tensor))


def placed(tensor: _core.Tensor) -> jax.Array:
    """Return a tensor as an array on JAX's default device: shared on a CPU, copied to others."""
    if _default_device() == jax.local_devices(backend="cpu")[0]:
        return asarray(tensor)
    return jnp.array(_numpy.asarray(tensor))


def part(tensor: _core.Tensor, index: Any) -> jax.Array:
    """Return a part of a tensor, copied from the buffer; the rest is not touched."""
    return jnp.array(_numpy.asarray(tensor)[index])


def _default_device() -> jax.Device:
    device = jax.config.jax_default_device
    if isinstance(device, str):
        return jax.local_devices(backend=device)[0]
    return device or jax.local_devices()[0]


def _as_numpy(tensors: dict[str, jax.Array]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    return {name: np.asarray(array) for name, array in tensors.items()}
