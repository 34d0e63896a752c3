"""Safetensors files as torch tensors: the functions of `safetensors.torch`.

Tensors are views of one buffer, which lives as long as any of them. torch has no read-only tensors,
so the buffer is writable, and each load has a buffer of its own, as in `safetensors`.

Saving has the rules of `safetensors` about tensors that share memory.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Unpack

import torch

from longshore import _core, _dtypes
from longshore._attach import attached
from longshore._safetensors import safe_open
from longshore._saving import torch as _saving
from longshore._saving.raw import serialize, serialize_file
from longshore._saving.torch import storage_ptr, storage_size
from longshore._stream import converted
from longshore.errors import SafetensorError

if TYPE_CHECKING:
    import os

    from longshore._load import Files, Options, StrPath
    from longshore._stream import StreamOptions, TensorStream

__all__ = [
    "asarray",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "storage_ptr",
    "storage_size",
    "stream",
    "tensors",
]


def load_file(
    filename: StrPath,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
    attach: bool = False,
    socket: StrPath | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Load a safetensors file, or all shards of an index, as tensors by name.

    `backend` is ignored, and accepted because `safetensors` accepts it; `options` are the arguments
    of `longshore.load`. With `attach=True`, `longshore serve` loads the file if it does not hold it
    yet, and tensors on the CPU are copy-on-write views of its memory; `socket` is as for `longshore.attach`.
    """
    if (buffer := attached(attach, filename, socket, options)) is not None:
        return tensors(buffer, device)
    with safe_open(filename, framework="pt", device=device, backend=backend, **options) as file:
        return file.get_tensors()


def stream(
    path_or_paths: Files, device: str | int = "cpu", **options: Unpack[StreamOptions]
) -> TensorStream:
    """Return an iterator over the tensors of files as pairs of a name and a torch tensor, read one after the
    other into bounded memory; `options` are the arguments of `longshore.stream`.

    A tensor on the CPU can be written to. It shares the memory of the stream, until it and all its views
    are deleted.
    """
    place = device_of(device)
    return converted(lambda tensor: moved(asarray(tensor), place), path_or_paths, options)


def tensors(buffer: _core.Buffer, device: str | int = "cpu", *, writable: bool = True) -> dict[str, Any]:
    """Return all tensors of a buffer as torch tensors by name, as `asarray` does, on that device."""
    place = device_of(device)
    return {name: moved(asarray(tensor, writable=writable), place) for name, tensor in buffer.tensors.items()}


def load(data: bytes) -> dict[str, Any]:
    """Return the tensors of a safetensors file that is in memory, copied once."""
    view = memoryview(bytearray(data))
    return {
        name: _from_bytes(view[begin:end], name, dtype, shape)
        for name, dtype, shape, begin, end in _core.parse_safetensors(data)
    }


def load_model(
    model: Any,
    filename: StrPath,
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
    **options: Unpack[Options],
) -> tuple[set[str], list[str]]:
    """Load a file into a module; return the missing and the unexpected names.

    A name that the file lacks is not missing if its tensor shares memory with a loaded one. If the file
    has both, the second is unexpected.
    """
    state = load_file(filename, device, backend=backend, **options)
    duplicates = _saving.duplicates(model.state_dict(), state.keys())
    found, unexpected = model.load_state_dict(state, strict=False)
    # `safetensors` returns a set here, although its annotation differs.
    missing = set(found)
    for name in (name for others in duplicates.values() for name in others):
        if name in missing:
            missing.remove(name)
        else:
            # The file has two values for the same memory.
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                listed = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {listed}")
        raise RuntimeError("\n".join(lines))
    return missing, list(unexpected)


def save(tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these tensors."""
    specs, _kept = _saving.specs(tensors)
    return serialize(specs, metadata)


def save_file(
    tensors: dict[str, Any],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write tensors into a safetensors file, which appears only when it is complete."""
    specs, _kept = _saving.specs(tensors)
    serialize_file(specs, filename, metadata)


def save_model(
    model: Any, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Write a module's tensors into a safetensors file, each once.

    The metadata gets the names of those that are not written, each with the name of the tensor that has
    its memory.
    """
    state = model.state_dict()
    for kept, others in _saving.duplicates(state).items():
        for name in others:
            del state[name]
            # As in `safetensors`, the caller's own metadata wins.
            metadata = {name: kept} | (metadata or {})
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        save_file(state, filename, metadata)
    except ValueError as error:
        raise ValueError(f"{error}. Or use save_model(..., force_contiguous=True)") from error


def asarray(tensor: _core.Tensor, *, writable: bool = True) -> Any:
    """Return a tensor as a torch tensor, which shares the buffer's memory and keeps it alive.

    torch has no read-only tensors. If the content of the buffer is sealed, as that of `longshore.load`
    and `longshore.attach` is, the tensor is a copy-on-write view: the first write to a page copies that
    page (4 KiB) for this process, and changes neither the buffer nor other processes. All tensors of a
    buffer share these copies. Memory of the hugetlb pool has no such views: the call raises BufferError.

    Args:
        tensor: The tensor of a buffer.
        writable: False to map sealed memory as it is, for a GPU with unified memory, for which the
            copy-on-write view is slow, or for the hugetlb pool. Do not write to the tensor then: torch
            does not check that, and a write ends the process.
    """
    data = tensor._data_to_write() if writable else tensor.data
    return _from_bytes(data, tensor.name, tensor.dtype, tensor.shape)


def device_of(device: Any) -> Any:
    """Return the device of that name; raise SafetensorError if torch does not know it."""
    if device == "cpu":
        return device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SafetensorError(None, f"device {device} is invalid") from error


def moved(tensor: Any, device: Any) -> Any:
    """Return the tensor on that device."""
    return tensor if device == "cpu" else tensor.to(device)


def _from_bytes(data: memoryview, name: str, dtype: str, shape: Any) -> Any:
    kind = getattr(torch, _dtypes.TORCH.get(dtype, ""), None)
    if kind is None:
        raise SafetensorError(None, f"tensor '{name}' is {dtype}, for which this torch has no type")
    shape = list(shape)
    if dtype == "F4":
        # torch counts pairs of elements, one byte each.
        if not shape or shape[-1] % 2:
            raise SafetensorError(
                None,
                "f4_x2 dtype requires that the last dim be divisible by 2 in torch: "
                f"got {shape}",
            )
        shape[-1] //= 2
    if data.nbytes == 0:
        return torch.empty(shape, dtype=kind)
    with warnings.catch_warnings():
        # torch warns that the memory is read-only; see `asarray`.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)
