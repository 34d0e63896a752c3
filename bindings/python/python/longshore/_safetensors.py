"""`longshore.safe_open`: the class of the package `safetensors`, on memory that longshore loads."""

from __future__ import annotations

import os
from threading import RLock

from longshore import _core
from longshore._frameworks import framework_of
from longshore._load import load_only
from longshore._slice import check_index
from longshore.errors import SafetensorError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Literal, Self, Unpack

    from longshore._frameworks import Framework
    from longshore._load import Options, StrPath


class safe_open:  # noqa: N801, the name in `safetensors`
    """An open safetensors file, or all shards of an index.

    Opening reads the header. The first request for a tensor loads the whole file at the disk's speed
    into a buffer. All tensors are views of that buffer, which lives as long as any of them, even
    after the end of the `with` block. If only a few tensors are needed, `whole=False` loads each by
    itself.

    The file stays open until it is loaded, or until the end of the block. The content is therefore
    that of the opened file, even if that was renamed or replaced since; if it was written to since,
    FileChangedError is raised. Several threads may request tensors; the file is loaded once.

    Args:
        filename: The file.
        framework: The type of the tensors: "np", "numpy"; "pt", "torch", "pytorch"; "jax", "flax".
        device: The device for torch tensors.
        backend: Ignored; accepted because `safetensors` accepts it.
        whole: True to load all tensors with the first one, False to load each by itself.
        options: The arguments of `longshore.load`.

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
        self._framework.defaults(options)
        self._options = options
        self._file: _Opened | None = _Opened(filename, whole)

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
        return self._framework.tensor(self._opened().tensor(name, self._options))

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors by name."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> PySafeSlice:
        """Return an object whose indexing returns parts of the tensor of that name."""
        opened = self._opened()
        return PySafeSlice(opened, opened.info(name), self._framework, self._options)

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

    def _opened(self) -> _Opened:
        if self._file is None:
            raise SafetensorError(None, "File is closed")
        return self._file


class PySafeSlice:
    """A tensor whose parts are loaded by indexing with integers, slices and `...`."""

    def __init__(
        self, opened: _Opened, info: _Info, framework: Framework, options: Options
    ) -> None:
        self._opened = opened
        self._info = info
        self._framework = framework
        self._options = options

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Return the type in the file, such as "F32"."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        if self._framework.checks_index:
            index = check_index(index, self._info.shape, self._info.dtype)
        return self._framework.part(self._opened.tensor(self._info.name, self._options), index)


class _Info:
    """The description of a tensor in the header."""

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, name: str, dtype: str, shape: list[int]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape


class _Opened:
    """An open file whose header was read, and whose data is loaded on demand."""

    def __init__(self, filename: StrPath, whole: bool) -> None:
        self._filename = os.fspath(filename)
        self._whole = whole
        # Reentrant, because a progress callable may request a tensor.
        self._lock = RLock()
        self._buffer: _core.Buffer | None = None
        opened = _core.open_safetensors(filename)
        self._files: _core.OpenedFiles | None = opened
        self.metadata = opened.metadata
        self.infos = {name: _Info(name, dtype, shape) for name, dtype, shape in opened.tensors}

    def info(self, name: str) -> _Info:
        info = self.infos.get(name)
        if info is None:
            raise SafetensorError(None, f"File does not contain tensor {name}")
        return info

    def tensor(self, name: str, options: Options) -> _core.Tensor:
        self.info(name)
        if self._whole:
            return self._all(options).tensors[name]
        return self._load(name, options).tensors[name]

    def _all(self, options: Options) -> _core.Buffer:
        """Return the whole file in memory; the first call loads it."""
        if self._buffer is None:
            with self._lock:
                if self._buffer is None:
                    self._buffer = self._load(None, options)
                    # Closes the files.
                    self._files = None
        return self._buffer

    def _load(self, name: str | None, options: Options) -> _core.Buffer:
        assert self._files is not None
        paths = [self._filename]
        return load_only(name, paths, self._files, format="safetensors", **options)
