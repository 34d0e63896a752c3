"""`longshore.stream`: tensors one after the other, in bounded memory."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping

from longshore import _core
from longshore._load import verification
from longshore._servers import access, connection_count
from longshore._source import named

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any, Literal, Self, TypedDict

    from longshore._load import Files, Format, StrPath, Verify
    from longshore._servers import StorageOptions

    Rows = slice | tuple[int, int]
    """Rows: a slice, or (rank, ranks) for the part of one of several ranks."""

    class StreamOptions(TypedDict, total=False):
        """The arguments of `stream` other than the files."""

        select: str | Sequence[str] | None
        files: StrPath | Sequence[StrPath] | None
        rows: Rows | Mapping[str, Rows] | None
        memory: int | str | None
        order: Literal["file", "completion"]
        wait: float
        on_full: Literal["raise", "grow"]
        mode: str
        format: Format
        verify: Verify
        storage_options: StorageOptions
        timeout: float | None
        connections: int | None
        cancel: _core.CancelToken | None


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class TensorStream:
    """An iterator over the tensors of a stream, as pairs of a name and a tensor.

    Several threads may use one stream: each tensor goes to one of them. Deleting the stream, `close`, or
    the end of a `with` block stops the reads; tensors stay valid.

    >>> import longshore
    >>> with longshore.stream(example) as tensors:
    ...     print({name: tensor.shape for name, tensor in tensors})
    {'bias': (4,), 'weight': (3, 4)}
    """

    def __init__(self, stream: _core.Stream, convert: Callable[[_core.Tensor], Any] | None = None) -> None:
        self._stream = stream
        self._convert = convert

    @property
    def stats(self) -> dict[str, Any]:
        """The numbers of the stream: "tensors" and "nbytes" are selected, "tensors_yielded" and
        "bytes_read" are done so far, and "memory" is the limit."""
        return self._stream.stats

    @property
    def digests(self) -> dict[str, dict[str, str]]:
        """The requested checksums of the files that are complete, by path and name."""
        return self._stream.digests

    def close(self) -> None:
        """Stop the reads."""
        self._stream.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        tensor = self._stream.next()
        if tensor is None:
            raise StopIteration
        return tensor.name, tensor if self._convert is None else self._convert(tensor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        self.close()
        return False


def stream(
    path_or_paths: Files,
    *,
    select: str | Sequence[str] | None = None,
    files: StrPath | Sequence[StrPath] | None = None,
    rows: Rows | Mapping[str, Rows] | None = None,
    memory: int | str | None = None,
    order: Literal["file", "completion"] = "file",
    wait: float = 10.0,
    on_full: Literal["raise", "grow"] = "raise",
    mode: str = "auto",
    format: Format = "auto",
    verify: Verify = None,
    storage_options: StorageOptions = None,
    timeout: float | None = None,
    connections: int | None = None,
    cancel: _core.CancelToken | None = None,
) -> TensorStream:
    """Return an iterator over the tensors of files, which are read while the program uses others.

    Only the selected tensors and rows are read. A tensor of 1 MiB or more is in the memory of the stream,
    which is used again when the tensor, and all arrays that share its memory, are deleted; the variable of a
    `for` loop keeps one until the next is there. A smaller tensor is a copy.

    Args:
        path_or_paths: The files, as for `longshore.load`.
        select: The names of the tensors, or patterns, in which `*` stands for any characters and `?` for
            one. None selects all.
        files: Select only the tensors of these files, by path or by name.
        rows: The rows of each tensor, indices of its first dimension: a slice, or (rank, ranks) for one of
            several parts, whose lengths differ by at most one row; or a mapping of names (not patterns) to
            these, for some tensors.
        memory: The memory for tensors of 1 MiB and more, in bytes, or as text such as "2GiB". It must hold
            the largest; a `for` loop that does not delete its variable needs room for two. None: 1 GiB, or
            twice the largest tensor and 128 MiB, if that is more.
        order: "file": by file and offset, so that the tensors of a layer stay together; "completion": as
            their reads are complete.
        wait: The seconds to wait for other threads if the program holds so many tensors that the next one
            does not fit.
        on_full: "raise" StreamFullError after that time, or "grow": take more memory.
        mode: How files are read, as for `longshore.load`.
        format: The format of the files, as for `longshore.load`.
        verify: Checksums or a manifest, as for `longshore.load`, if whole files are selected. The last
            tensors of a file are yielded only if its checksum is right.
        storage_options: Options of object stores, as for `longshore.load`.
        timeout: The seconds that all requests to servers together may take, from the call to the last
            tensor, with the time in which the program uses tensors.
        connections: The number of connections to servers, as for `longshore.load`.
        cancel: A token that stops the stream from another thread.

    >>> import longshore
    >>> for name, tensor in longshore.stream(example, select="w*", rows=slice(0, 2)):
    ...     print(name, tensor.shape)
    weight (2, 4)
    """
    if order not in ("file", "completion"):
        raise ValueError(f"unknown order '{order}' (expected file or completion)")
    if on_full not in ("raise", "grow"):
        raise ValueError(f"unknown on_full '{on_full}' (expected raise or grow)")
    wanted = [select] if isinstance(select, str) else list(select or ())
    if select is not None and not wanted:
        raise ValueError("select is empty: pass None for all tensors")
    in_files = [files] if isinstance(files, (str, os.PathLike)) else list(files or ())
    if files is not None and not in_files:
        raise ValueError("files is empty: pass None for all files")
    patterns = [name for name in wanted if "*" in name or "?" in name]
    rows_of: dict[str, Any] = {}
    rows_of_all = None
    if isinstance(rows, (slice, tuple)):
        rows_of_all = _rows(rows)
    elif isinstance(rows, Mapping):
        rows_of = {name: _rows(of_tensor) for name, of_tensor in rows.items()}
    elif rows is not None:
        raise TypeError(f"rows={rows!r}: expected a slice, a pair (rank, ranks), or a mapping of names to these")
    if not wait >= 0:
        raise ValueError(f"wait={wait} is not a number of seconds")
    digests, manifest = verification(verify)
    with named(path_or_paths, format) as (names, kind):
        return TensorStream(
            _core.stream(
                names,
                mode=mode,
                format=kind,
                names=[name for name in wanted if name not in patterns],
                patterns=patterns,
                in_files=[os.fspath(file) for file in in_files],
                rows=rows_of_all,
                rows_of=rows_of,
                digests=digests,
                manifest=manifest,
                memory=_bytes(memory),
                by_file=order == "file",
                wait=wait,
                grow=on_full == "grow",
                connections=connection_count(connections),
                cancel=cancel,
                **access(storage_options, timeout),
            )
        )


def converted(
    convert: Callable[[_core.Tensor], Any], path_or_paths: Files, options: StreamOptions
) -> TensorStream:
    """Return a stream whose tensors are converted to those of a framework."""
    return TensorStream(stream(path_or_paths, **options)._stream, convert)


def _rows(rows: Rows) -> tuple[str, int, int]:
    """Return rows as the extension module takes them."""
    if isinstance(rows, slice):
        if rows.step not in (None, 1) or rows.stop is None:
            raise ValueError(f"rows={rows}: a slice needs an end, and no step")
        start, stop = operator.index(rows.start or 0), operator.index(rows.stop)
        if start < 0 or stop < 0:
            raise ValueError(f"rows={rows}: negative indices are not possible")
        return "range", start, stop
    index, count = rows
    if operator.index(index) < 0 or operator.index(count) < 1:
        raise ValueError(f"rows={rows}: expected (rank, ranks)")
    return "share", operator.index(index), operator.index(count)


def _bytes(memory: int | str | None) -> int | None:
    """Return a number of bytes, such as 2147483648 for "2GiB"."""
    if memory is None:
        return None
    if isinstance(memory, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", memory.strip())
        unit = _UNITS.get(found[2].upper()) if found else None
        if found is None or unit is None:
            raise ValueError(f"memory='{memory}' is not a size, such as 2GiB or 500MB")
        return int(float(found[1]) * unit)
    size = operator.index(memory)
    if not 0 <= size < 1 << 63:
        raise ValueError(f"memory={size} is not a number of bytes")
    return size
