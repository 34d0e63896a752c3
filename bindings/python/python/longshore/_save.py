"""Writing safetensors files.

The same tensors give the same bytes as the package `safetensors` writes, but for metadata, which
that writes in an order of chance.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longshore._dtypes import BITS
from longshore.errors import SafetensorError

_ORDER = {dtype: order for order, dtype in enumerate(BITS)}


class Entry(NamedTuple):
    """A tensor to write."""

    name: str
    dtype: str
    shape: Sequence[int]
    data: memoryview


def to_bytes(entries: Iterable[Entry], metadata: dict[str, str] | None) -> bytes:
    """A file in memory."""
    return b"".join(_parts(entries, metadata))


def to_file(
    entries: Iterable[Entry],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None,
) -> None:
    """A file under that name once it is whole, and none where writing fails."""
    parts = _parts(entries, metadata)
    target = os.path.realpath(os.fspath(filename))
    # Beside its place, since it cannot be renamed across file systems. And a file that is mapped,
    # perhaps by who saves what was loaded from it, is replaced, not written to.
    folder, name = os.path.split(target)
    descriptor, beside = _create(folder, name)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            with contextlib.suppress(FileNotFoundError):
                # Of what is replaced, the permissions stay.
                os.fchmod(file.fileno(), os.stat(target).st_mode & 0o777)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _create(folder: str, name: str) -> tuple[int, str]:
    """A new file in that folder, with the permissions of any other; its descriptor and path."""
    # The kernel applies the umask, which is the whole process's, and must not be changed to be seen.
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
            raise SafetensorError(None, "no tensor can be named __metadata__: it is the file's own")
        begin, end = end, end + data.nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    # Who only loads does without it.
    import json

    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # Data begins at a multiple of 8.
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(entry.data for entry in ordered)]


def _strings(metadata: dict[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata are strings by strings, not {value!r} by {key!r}")
    return metadata
