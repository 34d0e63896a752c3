"""The files that a caller names: paths, descriptors, file objects and bytes. Pickles buffers by them."""

from __future__ import annotations

import errno
import io
import os
from contextlib import contextmanager

from longshore._servers import absolute_name, shown
from longshore.errors import FileChangedError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import Any, Protocol

    from longshore import _core
    from longshore._load import Files, Format, StrPath

    Name = str | int
    """A path or a descriptor."""

    class HasDescriptor(Protocol):
        """A file object."""

        def fileno(self) -> int:
            """Return the descriptor."""


@contextmanager
def named(files: Files, format: Format) -> Generator[tuple[list[Name], Format]]:
    """Yield the paths and descriptors of the files, and their format."""
    if (content := _content(files)) is None:
        yield _names(files), format
        return
    if format == "auto":
        # There is no name to choose by. Safetensors files have no magic number.
        format = "gguf" if bytes(content[:4]) == b"GGUF" else "safetensors"
    descriptor = os.memfd_create("bytes in memory", os.MFD_CLOEXEC)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        yield [descriptor], format
    finally:
        os.close(descriptor)


def _content(files: Any) -> memoryview | None:
    """Return the bytes of a bytes-like object, or None for anything else."""
    if isinstance(files, (str, os.PathLike)) or hasattr(files, "fileno"):
        return None
    try:
        view = memoryview(files)
    except TypeError:
        return None
    if view.nbytes == 0 or not view.c_contiguous:
        return memoryview(bytes(view))
    return view.cast("B")


def _names(files: Any) -> list[Name]:
    one = _name(files)
    if one is not None:
        return [one]
    wrong = TypeError(
        "expected a path, a file descriptor, a file object, bytes, or a sequence of paths, "
        f"descriptors and file objects, not {type(files).__name__}"
    )
    try:
        items = list(files)
    except TypeError:
        raise wrong from None
    names = []
    for item in items:
        name = _name(item)
        if name is None:
            raise TypeError(
                "expected a path, a file descriptor or a file object in the sequence of files, not "
                f"{type(item).__name__}"
            )
        names.append(name)
    return names


def _name(file: Any) -> Name | None:
    """Return the path or the descriptor of a file, or None for an object of another type."""
    if isinstance(file, bool):
        return None
    if isinstance(file, int):
        return file
    if isinstance(file, (str, os.PathLike)):
        path = os.fspath(file)
        return os.fsdecode(path)
    return _descriptor(file) if hasattr(file, "fileno") else None


def _descriptor(file: HasDescriptor) -> int:
    """Return the descriptor of a file object, whose unwritten data is written first."""
    if hasattr(file, "flush"):
        file.flush()
    raw = file
    while isinstance(raw, io.TextIOWrapper):
        raw = raw.buffer
    plain = (io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.BytesIO)
    if isinstance(raw, io.BufferedIOBase) and not isinstance(raw, plain):
        # Such as gzip.GzipFile, whose descriptor is that of the compressed file.
        raise TypeError(f"{type(raw).__name__} decodes its file; pass the bytes that its read() returns")
    try:
        return file.fileno()
    except OSError as error:
        raise TypeError(
            f"{type(file).__name__} has no file descriptor; pass its bytes, such as file.getbuffer() or "
            "file.read()"
        ) from error


def remember(
    buffer: _core.Buffer, load: Callable[..., _core.Buffer], files: Any, options: dict[str, Any]
) -> None:
    """Keep the arguments of the call that returned the buffer, so that it can be pickled."""
    buffer._set_source((load, files, options))


def absolute(names: Iterable[Name]) -> list[str] | None:
    """Return absolute paths, or None if there is a descriptor among the names."""
    paths = [absolute_name(name) for name in names if isinstance(name, str)]
    return paths if len(paths) == len(list(names)) else None


def reduce(buffer: _core.Buffer) -> tuple[Any, ...]:
    """Implement `Buffer.__reduce__`."""
    if buffer.closed:
        raise ValueError("the buffer is closed")
    if buffer._source is None:
        raise TypeError(
            "cannot pickle a buffer of descriptors or bytes, because another process cannot load them "
            "again, or one that was loaded with storage_options, because their values can be secret; send "
            "the descriptor of the buffer, or its path"
        )
    identities = [file._identity for file in buffer.files]
    return _again, (*buffer._source, identities, buffer.nbytes)


def _again(
    load: Callable[..., _core.Buffer],
    files: Any,
    options: dict[str, Any],
    identities: list[Any],
    nbytes: int,
) -> _core.Buffer:
    """Load or attach the files of a pickled buffer."""
    buffer = load(files, **options)
    check_unchanged(files, identities, [file._identity for file in buffer.files])
    if buffer.nbytes != nbytes:
        raise _changed(files)
    return buffer


def check_unchanged(files: Any, pickled: list[Any], found: list[Any]) -> None:
    """Raise FileChangedError if the files have been replaced or written to since they were pickled."""
    if pickled != found:
        raise _changed(files)


def _changed(files: StrPath | int | list[str]) -> FileChangedError:
    names = files if isinstance(files, list) else [files]
    name = ", ".join(map(shown, names))
    error = FileChangedError(
        errno.ESTALE,
        f"{name} was replaced or written to since it was pickled: pickle it again",
    )
    error.filename = files if isinstance(files, int) else name
    return error
