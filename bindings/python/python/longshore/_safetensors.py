"""`longshore.safe_open`: the class of the package `safetensors`, on memory that longshore loads."""

from __future__ import annotations

import os
from threading import RLock

from longshore import _core, _forks
from longshore._frameworks import framework_of
from longshore._load import load_only
from longshore._servers import absolute_name, access, connection_count
from longshore._slice import check_index, part_of
from longshore._source import check_unchanged
from longshore.errors import SafetensorError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, Literal, Self, Unpack

    from longshore._frameworks import Framework
    from longshore._load import Options, StrPath


FORK_WAIT_SECONDS = 10
"""The longest time that a fork waits for a load of another thread."""


class safe_open:  # noqa: N801, the name in `safetensors`
    """An open safetensors file, or all shards of an index.

    Opening reads the header. The first request for a tensor loads the whole file at the disk's speed
    into a buffer. All tensors are views of that buffer, which lives as long as any of them, even
    after the end of the `with` block. If only a few tensors are needed, `whole=False` loads each by
    itself, and each lives by itself.

    A slice of some rows (indices of the first dimension) reads only these rows, and any other part of a
    tensor only that tensor, unless the file is in memory. With `verify`, whose checksums are of whole files,
    the file is loaded.

    The open file keeps the buffer until every tensor was requested, so a program that converts the
    tensors of many open files one by one needs the memory of one file at a time. If a tensor is
    requested after that, and no other tensor of the file exists, the file is loaded once more and kept
    until the end of the block. Slices of at most 1 MiB are copied and do not keep the buffer; longer
    slices are views of it.

    A fork loads the file first if it is not loaded (not with `whole=False`), so that all children share
    one copy. They share it as long as they do not write to it. Writes to a torch tensor of a file of
    more than 1 MiB are visible to all of them.

    The file stays open until it is loaded, or until the end of the block. The content is therefore
    that of the opened file, even if that was renamed or replaced since; if it was written to since,
    FileChangedError is raised. Several threads may request tensors; the file is loaded once.

    Args:
        filename: The file.
        framework: The type of the tensors: "np", "numpy"; "pt", "torch", "pytorch"; "jax", "flax".
        device: The device for torch tensors.
        backend: Ignored; accepted because `safetensors` accepts it.
        whole: True to load all tensors with the first one, False to load each by itself.
        options: The arguments of `longshore.load`. `timeout` limits the opening, and each load by itself.

    >>> from longshore import safe_open
    >>> with safe_open(example, framework="np") as file:
    ...     print(file.keys(), file.metadata())
    ...     weight = file.get_tensor("weight")
    ...     column = file.get_slice("weight")[:, 1]
    ['bias', 'weight'] {'format': 'np'}
    >>> weight.shape, column.tolist()
    ((3, 4), [1.0, 5.0, 9.0])
    """

    def __init__(
        self,
        filename: StrPath,
        framework: str,
        device: str | int | None = "cpu",
        *,
        backend: str = "mmap",
        whole: bool = True,
        **options: Unpack[Options],
    ) -> None:
        self._framework: Framework = framework_of(framework, device, backend)
        self._arguments = (framework, device, whole, options.copy())
        self._framework.defaults(options)
        self._file: _Opened | None = self._open(filename, whole, options)

    def keys(self) -> list[str]:
        """Return the names of the tensors, sorted."""
        return sorted(self._opened().infos)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors, in the order of their data."""
        return list(self._opened().infos)

    def metadata(self) -> dict[str, str] | None:
        """Return the file's metadata, or None if it has none."""
        return dict(self._opened().metadata) or None

    def get_tensor(self, name: str) -> Any:
        """Return the tensor of that name."""
        return self._opened().use(name, self._framework.tensor)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Return type, shape and place of the tensor of that name. Reads no data."""
        meta = self._opened().info(name)
        return TensorMeta(meta.dtype, list(meta.shape), meta.data_offsets)

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors by name."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> PySafeSlice:
        """Return an object whose indexing returns parts of the tensor of that name."""
        return PySafeSlice(self._opened(), name, self._framework)

    def __contains__(self, name: object) -> bool:
        return name in self._opened().infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._opened().infos)

    def __reduce__(self) -> tuple[Any, ...]:
        opened = self._opened()
        framework, device, whole, options = self._arguments
        if options.get("storage_options"):
            raise TypeError(
                "cannot pickle a file that was opened with storage_options, because their values can be secret"
            )
        # A function or a token of this process has no meaning in another.
        options = {key: value for key, value in options.items() if key not in ("progress", "cancel")}  # type: ignore[assignment]
        return _again, (opened.path, opened.identities, framework, device, whole, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        self._file = None
        return False

    def _open(self, filename: StrPath, whole: bool, options: Options) -> _Opened:
        return _Opened(filename, whole, options)

    def _opened(self) -> _Opened:
        if self._file is None:
            raise SafetensorError(None, "File is closed")
        return self._file


def _again(
    path: str,
    identities: list[Any],
    framework: str,
    device: str | int | None,
    whole: bool,
    options: dict[str, Any],
) -> safe_open:
    """Open the file of a pickled `safe_open`."""
    opened = safe_open(path, framework, device, whole=whole, **options)
    check_unchanged(path, identities, opened._opened().identities)
    return opened


class PySafeSlice:
    """A tensor whose parts are loaded by indexing with integers, slices and `...`."""

    def __init__(self, opened: _Opened, name: str, framework: Framework) -> None:
        self._opened = opened
        self._name = name
        self._info = opened.info(name)
        self._framework = framework

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Return the type in the file, such as "F32"."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        if self._framework.checks_index:
            index = check_index(index, self._info.shape, self._info.dtype)
        part = part_of(index, self._info.shape, self._info.dtype)
        if part is not None and self._opened.reads_parts():
            rows, within = part
            return self._framework.part(self._opened.part(self._name, rows), within)
        return self._opened.use(
            self._name, lambda tensor: self._framework.part(tensor, index)
        )


class TensorMeta:
    """A tensor's entry in the header of its file."""

    __slots__ = ("data_offsets", "dtype", "shape")

    dtype: str
    """The type, such as "F32"."""
    shape: list[int]
    data_offsets: tuple[int, int]
    """The start and the end of the tensor's bytes in the data section of its file."""

    def __init__(self, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data_offsets = data_offsets

    def __repr__(self) -> str:
        return (
            f"TensorMeta(dtype='{self.dtype}', shape={self.shape}, "
            f"data_offsets={self.data_offsets})"
        )


class _Opened:
    """An open file whose header was read, and whose data is loaded on demand."""

    def __init__(self, filename: StrPath, whole: bool, options: Options) -> None:
        self._filename = os.fsdecode(filename)
        self._whole = whole
        self._options = options
        # Reentrant, because a progress callable may request a tensor.
        self._lock = RLock()
        self._loading = False
        self._buffer: _core.Buffer | None = None
        self._loads = 0
        self._users = 0
        connection_count(options.get("connections"))
        self._files = _core.open_safetensors(
            filename, **access(options.get("storage_options"), options.get("timeout"))
        )
        # Another process may have another working directory.
        self.path = absolute_name(self._filename)
        self.identities = self._files.identities
        self.metadata = self._files.metadata
        self.infos = {
            name: TensorMeta(dtype, shape, place)
            for name, dtype, shape, place in self._files.tensors
        }
        self._unused = set(self.infos)
        if whole:
            _forks.add(self)

    def info(self, name: str) -> TensorMeta:
        info = self.infos.get(name)
        if info is None:
            raise SafetensorError(None, f"File does not contain tensor {name}")
        return info

    def use(self, name: str, convert: Callable[[_core.Tensor], Any]) -> Any:
        """Return the result of `convert` for the tensor of that name."""
        self.info(name)
        if not self._whole:
            return convert(self._load(name).tensors[name])
        with self._lock:
            buffer = self._all()
            self._users += 1
        try:
            result = convert(buffer.tensors[name])
        finally:
            with self._lock:
                self._users -= 1
        with self._lock:
            self._unused.discard(name)
            if not self._unused and not self._users and self._loads == 1 and self._buffer:
                # The views of the buffer keep the memory.
                self._buffer._let_go()
        return result

    def reads_parts(self) -> bool:
        """Return True if parts of a tensor are read alone, because the file is not in memory."""
        # The checksums are of whole files.
        if self._options.get("verify") is not None:
            return False
        with self._lock:
            return self._buffer is None or not self._buffer._is_alive()

    def part(self, name: str, rows: tuple[int, int] | None) -> _core.Tensor:
        """Load only these rows of the tensor of that name, or all of them, but no other tensor."""
        part = self._load(name, rows).tensors[name]
        with self._lock:
            self._unused.discard(name)
        return part

    def before_fork(self) -> None:
        """Load the file if it is not loaded."""
        # A thread whose progress callable waits for a lock of the forking thread would never finish,
        # so do not wait for it forever. The child then loads the file itself.
        if not self._lock.acquire(timeout=FORK_WAIT_SECONDS):
            return
        try:
            # A progress callable can fork.
            if not self._loading and self._loads == 0:
                self._all()
        finally:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which a thread that the child does not have may hold."""
        self._lock = RLock()
        self._loading = False

    def _all(self) -> _core.Buffer:
        """Return the whole file in memory, and load it if it is not there. Needs the lock."""
        if self._buffer is None or not self._buffer._is_alive():
            self._loading = True
            try:
                self._buffer = self._load(None)
            finally:
                self._loading = False
            self._loads += 1
        return self._buffer

    def _load(self, name: str | None, rows: tuple[int, int] | None = None) -> _core.Buffer:
        return load_only(
            name,
            [self._filename],
            self._files,
            format="safetensors",
            private=True,
            rows=rows,
            **self._options,
        )
