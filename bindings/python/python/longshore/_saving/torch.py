"""Writing torch tensors, with the rules of `safetensors` about tensors that share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from longshore import _dtypes
from longshore._saving.raw import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_KINDS = {getattr(torch, name, None) for name in _dtypes.TORCH.values()} - {None}


def specs(tensors: dict[str, Any]) -> tuple[dict[str, TensorSpec], list[Any]]:
    """Return the tensors by address, and the objects that keep the memory valid.

    It raises ValueError and RuntimeError for the same tensors as `safetensors`: sparse ones, those that
    are not contiguous, and those that share memory.
    """
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}"
            )
    if sparse := [name for name, tensor in tensors.items() if tensor.layout != torch.strided]:
        raise ValueError(
            f"You are trying to save sparse tensors: `{sparse}`, which safetensors files cannot hold. "
            "`.to_dense()` makes them dense, and the file much larger"
        )
    if shared := [names for names in sharing(tensors) if len(names) > 1]:
        raise RuntimeError(
            f"Some tensors share memory, and would be written twice: {shared}. `save_model` writes the "
            "tensors of a module, each once"
        )
    found, kept = {}, []
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}`. Save the tensor that it is a "
                "part of, or call `.contiguous()`"
            )
        # Conjugate and negative views are contiguous, but their memory has other values.
        memory = tensor.detach().resolve_conj().resolve_neg().to("cpu")
        kept.append(memory)
        found[name] = TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tensor.shape,
            data_ptr=memory.data_ptr(),
            data_len=memory.nelement() * memory.element_size(),
        )
    return found, kept


def sharing(tensors: dict[str, Any]) -> list[set[str]]:
    """Group the names of tensors whose memory overlaps."""
    by_storage: dict[tuple[Any, int, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or storage_ptr(tensor) == 0 or storage_size(tensor) == 0:
            continue
        key = (tensor.device, storage_ptr(tensor), storage_size(tensor))
        by_storage.setdefault(key, []).append((tensor.data_ptr(), _end(tensor), name))
    groups: list[set[str]] = []
    for ranges in by_storage.values():
        last_end = -1
        for begin, end, name in sorted(ranges):
            if begin >= last_end:
                groups.append(set())
            groups[-1].add(name)
            last_end = max(end, last_end)
    return groups


def duplicates(
    tensors: dict[str, Any], preferred: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return for each tensor to keep the names of those that share its memory.

    A tensor is kept if it covers its whole storage; among several, one of the preferred names.
    """
    found = {}
    for names in sharing(tensors):
        whole = [name for name in sorted(names) if _is_whole(tensors[name])]
        if not whole:
            raise RuntimeError(
                f"None of the tensors {sorted(names)}, which share memory, covers all of it, so none can be "
                "saved for the others. Call `.clone()` on them"
            )
        kept = next(_preferred(whole, preferred), whole[0])
        if others := sorted(names - {kept}):
            found[kept] = others
    return found


def storage_ptr(tensor: Any) -> int:
    """Return the address of the memory that the tensor is a view of."""
    address: int = tensor.untyped_storage().data_ptr()
    return address


def storage_size(tensor: Any) -> int:
    """Return the length of the memory that the tensor is a view of, in bytes."""
    nbytes: int = tensor.untyped_storage().nbytes()
    return nbytes


def _preferred(whole: Iterable[str], preferred: Collection[str]) -> Any:
    return (name for name in whole if name in preferred)


def _end(tensor: Any) -> int:
    if tensor.nelement() == 0:
        end: int = tensor.data_ptr()
    else:
        # The last element of a view with any strides.
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((length - 1) * stride for length, stride in steps)
        end = tensor.data_ptr() + (last + 1) * tensor.element_size()
    return end


def _is_whole(tensor: Any) -> bool:
    nbytes = tensor.nelement() * tensor.element_size()
    return bool(tensor.data_ptr() == storage_ptr(tensor) and nbytes == storage_size(tensor))
