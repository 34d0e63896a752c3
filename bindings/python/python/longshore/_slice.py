"""Checks indices as `safetensors` does: it accepts fewer than numpy, and none out of bounds."""

from __future__ import annotations

import operator

from longshore._dtypes import BITS
from longshore.errors import SafetensorError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Index = tuple[int | slice, ...]


def check_index(index: Any, shape: Sequence[int], dtype: str) -> Index:
    """Return the equivalent index for numpy, with one entry for each dimension that it selects from.

    It raises an error for the same indices as `safetensors`: steps that are not positive, indices out
    of bounds, more than one `...`, and lists.
    """
    entries = _entries(index, shape)
    if len(entries) > len(shape):
        raise _refused(entries, shape, "more slicing indexes than dimensions in tensor")
    for place in reversed(range(len(entries))):
        _check_bounds(entries, place, shape)
    _check_whole_bytes(entries, shape, dtype)
    return tuple(entries)


def part_of(
    index: Any, shape: Sequence[int], dtype: str
) -> tuple[tuple[int, int] | None, Any] | None:
    """Return the rows (indices of the first dimension) that an index selects from, as the first and the one
    after the last, and the index that selects the same from these rows. Return None if the index selects the
    whole tensor.

    The rows are None if they are all, or if they are not known before: for other indices than integers and
    slices, and for elements that are smaller than a byte.
    """
    entries = index if isinstance(index, tuple) else (index,)
    whole = (slice(None), slice(None, None, 1))
    if all(entry is Ellipsis or isinstance(entry, slice) and entry in whole for entry in entries):
        return None
    first, rest = entries[0], entries[1:]
    if not shape or BITS.get(dtype, 8) % 8:
        return None, index
    within: int | slice
    if type(first) is int and -shape[0] <= first < shape[0]:
        start = first % shape[0]
        stop, within = start + 1, 0
    elif isinstance(first, slice):
        try:
            start, stop, step = first.indices(shape[0])
        except (TypeError, ValueError):
            return None, index
        if step < 1:
            return None, index
        stop = max(start, stop)
        within = slice(0, stop - start, step)
    else:
        return None, index
    if (start, stop) != (0, shape[0]):
        return (start, stop), (within, *rest)
    is_whole = step == 1 and not rest if isinstance(within, slice) else False
    return None if is_whole else (None, index)


def _entries(index: Any, shape: Sequence[int]) -> list[int | slice]:
    if isinstance(index, list):
        if index:
            raise SafetensorError(None, "Non empty lists are not implemented")
        return [slice(0, 0)]
    items = index if isinstance(index, tuple) else (index,)
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise SafetensorError(None, "Only one ellipsis (...) is allowed in slice index")
    entries: list[int | slice] = []
    for item in items:
        if item is Ellipsis:
            entries += [slice(None)] * max(len(shape) - (len(items) - 1), 0)
        elif isinstance(item, slice):
            entries.append(_slice(item))
        else:
            entries.append(_select(item, len(entries), shape))
    return entries


def _slice(item: slice) -> slice:
    start, stop = _bound(item.start), _bound(item.stop)
    step = 1 if item.step is None else operator.index(item.step)
    if step <= 0:
        raise SafetensorError(None, f"Slice step must be a positive integer, got {step}")
    return slice(start, stop, step)


def _bound(bound: Any) -> int | None:
    if bound is None:
        return None
    bound = operator.index(bound)
    if bound < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return int(bound)


def _select(item: Any, place: int, shape: Sequence[int]) -> int:
    try:
        index = operator.index(item)
    except TypeError:
        raise SafetensorError(
            None,
            f"Unsupported slice index at position {place}: expected slice, int, or ellipsis",
        ) from None
    length = shape[place] if place < len(shape) else 0
    if index < -length:
        raise SafetensorError(None, f"Invalid index {index} for dimension {place} of size {length}")
    return index + length if index < 0 else index


def _range(entry: int | slice, length: int) -> tuple[int, int, int]:
    """Return the start, the stop and the step."""
    if isinstance(entry, int):
        return entry, entry + 1, 1
    stop = length if entry.stop is None else entry.stop
    return entry.start or 0, stop, entry.step or 1


def _check_bounds(entries: list[int | slice], place: int, shape: Sequence[int]) -> None:
    length = shape[place]
    start, stop, _ = _range(entries[place], length)
    if start < length and stop <= length:
        # If the start is greater than the stop, the slice is empty, as in Python.
        return
    asked = start if start >= length else stop - 1
    raise _refused(
        entries,
        shape,
        f"index {asked} out of bounds for tensor dimension #{place} of size {length}",
    )


def _check_whole_bytes(entries: list[int | slice], shape: Sequence[int], dtype: str) -> None:
    """Raise an error if elements smaller than a byte are cut inside a byte."""
    bits = BITS.get(dtype, 8)
    if bits % 8 == 0:
        return
    for place in reversed(range(len(shape))):
        if place < len(entries):
            start, stop, step = _range(entries[place], shape[place])
            cut = (start, stop) if step == 1 else (1,)
            if any(at * bits % 8 for at in cut):
                raise _refused(entries, shape, "the slice does not consist of whole bytes")
        bits *= shape[place]


def _refused(entries: list[int | slice], shape: Sequence[int], why: str) -> SafetensorError:
    shown = ", ".join(_shown(entry) for entry in entries)
    return SafetensorError(None, f"Error during slicing [{shown}] with shape {list(shape)}: {why}")


def _shown(entry: int | slice) -> str:
    if isinstance(entry, int):
        return str(entry)
    start = "" if entry.start is None else entry.start
    stop = "" if entry.stop is None else entry.stop
    return f"{start}:{stop}" if entry.step in (None, 1) else f"{start}:{stop}:{entry.step}"
