"""Safetensors files as torch tensors: the functions of `safetensors.torch`.

Tensors are views of one buffer, which lives as long as any of them. torch has no read-only tensors,
so the buffer is writable, and each load has a buffer of its own, as in `safetensors`.

The package `safetensors` itself writes the files, with its rules about tensors that share memory. It
must be installed for that.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Unpack

import torch

from longshore import _core, _dtypes
from longshore._safetensors import safe_open
from longshore.errors import SafetensorError

if TYPE_CHECKING:
    import os

    from longshore._load import Options, StrPath

__all__ = ["asarray", "load", "load_file", "load_model", "safe_open", "save", "save_file", "save_model"]


def load_file(
    filename: StrPath,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Load a safetensors file, or all shards of an index, as tensors by name.

    `backend` is ignored, and accepted because `safetensors` accepts it; `options` are the arguments
    of `longshore.load`.
    """
    with safe_open(filename, framework="pt", device=device, backend=backend, **options) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """Return the tensors of a safetensors file that is in memory, copied once."""
    tensors = _core.parse_safetensors(data)
    view = memoryview(bytearray(data))
    return {
        name: _from_bytes(view[begin:end], name, dtype, shape)
        for name, dtype, shape, begin, end in tensors
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

    A name that the file lacks is not missing if its tensor shares memory with a loaded one.
    """
    state = load_file(filename, device, backend=backend, **options)
    own = model.state_dict()
    missing, unexpected = model.load_state_dict(state, strict=False)
    loaded = {_place(own[name]) for name in state if name in own}
    # `safetensors` returns a set here, although its annotation differs.
    missing = {name for name in missing if _place(own[name]) not in loaded}
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
    content: bytes = _writer().save(tensors, metadata)
    return content


def save_file(
    tensors: dict[str, Any],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write tensors into a safetensors file."""
    _writer().save_file(tensors, filename, metadata)


def save_model(
    model: Any, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Write a module's tensors into a safetensors file, each once."""
    _writer().save_model(model, filename, metadata, force_contiguous)


def asarray(tensor: _core.Tensor) -> Any:
    """Return a tensor as a torch tensor, which shares the buffer's memory and keeps it alive.

    Do not write to it unless the buffer is writable: `longshore.load` returns a read-only buffer by
    default, torch does not check that, and a write ends the process.
    """
    return _from_bytes(tensor.data, tensor.name, tensor.dtype, tensor.shape)


def moved(tensor: Any, device: str | int) -> Any:
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


def _place(tensor: Any) -> tuple[int, int, int]:
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.numel()


def _writer() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "saving torch tensors needs the package safetensors: pip install safetensors"
        ) from error
    return safetensors.torch
