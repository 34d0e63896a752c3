"""Writing safetensors files.

The files have the same bytes as those that the package `safetensors` writes, except for the order of
metadata, which is random there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longshore._dtypes import BITS
from longshore.errors import SafetensorError, save_error

_ORDER = {dtype: order for order, dtype in enumerate(BITS)}


class Entry(NamedTuple):
    """A tensor to write."""

    name: str
    dtype: str
    shape: Sequence[int]
    data: memoryview


def to_bytes(entries: Iterable[Entry], metadata: dict[str, str] | None) -> bytes:
    """Return the bytes of a file with these tensors."""
    return b"".join(_parts(entries, metadata))


def to_file(
    entries: Iterable[Entry],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None,
) -> None:
    """Write a file that appears under its name only when it is complete."""
    parts = _parts(entries, metadata)
    try:
        _write(parts, os.path.realpath(os.fspath(filename)))
    except OSError as error:
        raise save_error(error, os.fspath(filename)) from error


def _write(parts: list[bytes | memoryview], target: str) -> None:
    # The temporary file is in the same folder, because it cannot be renamed across file systems. An
    # existing file is replaced and not written to: a caller that saves tensors that it loaded from
    # this file may have the file mapped.
    folder, name = os.path.split(target)
    descriptor, beside = _create(folder, name)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            with contextlib.suppress(FileNotFoundError):
                # Keep the permissions of the file that is replaced.
                os.fchmod(file.fileno(), os.stat(target).st_mode & 0o777)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _create(folder: str, name: str) -> tuple[int, str]:
    """Create a temporary file with the default permissions; return its descriptor and path."""
    # Let the kernel apply the umask. Reading it would mean to change it, for all threads.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    while True:
        beside = os.path.join(folder, f".{name}.{os.urandom(4).hex()}.part")
        with contextlib.suppress(FileExistsError):
            return os.open(beside, flags, 0o666), beside


def _parts(entries: Iterable[Entry], metadata: dict[str, str] | None) -> list[bytes | memoryview]:
    ordered = sorted(entries, key=lambda entry: (-_ORDER[entry.dtype], entry.name.encode()))
    header: dict[str, object] = {}
    if metadata is not None:
        header["__metadata__"] = _strings(metadata)
    end = 0
    for name, dtype, shape, data in ordered:
        if name == "__metadata__":
            raise SafetensorError(None, "no tensor can be named __metadata__: the name is reserved")
        begin, end = end, end + data.nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    # Programs that only load do not need this import.
    import json

    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # The data begins at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(entry.data for entry in ordered)]


def _strings(metadata: dict[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must map strings to strings, not {key!r} to {value!r}")
    return metadata
