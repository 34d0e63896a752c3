"""Reads the weights of an engine: the part that the plugins and `patch_safetensors` share."""

from __future__ import annotations

import errno
import os
import sys
import threading
import types

from longshore import _core
from longshore._attach import attach
from longshore._safetensors import _Opened, safe_open
from longshore.errors import FileChangedError, LongshoreError, ServerError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    from longshore._load import Options, StrPath

    Attach = Literal["auto", "require", "never"]

ATTACH = ("auto", "require", "never")
_NO_SERVER = (errno.ENOENT, errno.ECONNREFUSED)


class Reader:
    """The options of an engine for reading files, and the statistics of the files that it read.

    Several threads may use one reader.
    """

    def __init__(
        self,
        attach: Attach = "never",
        socket: StrPath | None = None,
        verify: StrPath | None = None,
        **options: Any,
    ) -> None:
        if attach not in ATTACH:
            raise ValueError(f"attach is {attach!r} (expected {', '.join(ATTACH)})")
        if attach == "never" and socket is not None:
            raise ValueError("socket is given, but attach is 'never' (expected 'auto' or 'require')")
        if attach != "never" and (verify is not None or options):
            names = ", ".join([*options, *(["verify"] if verify is not None else [])])
            if attach == "require":
                raise ValueError(f"{names}: a server loads by its own options; use attach 'never'")
            attach = "never"
        self.attach: Attach = attach
        self.socket = socket
        self.options = options if verify is None else {**options, "verify": verify}
        self.verify = verify
        self.files = 0
        self.bytes_read = 0
        self.bytes_attached = 0
        self.refusal: str | None = None
        """The reason of the first server that answered and did not lend a file."""
        self._lock = threading.Lock()

    def open(
        self,
        filename: StrPath,
        framework: str = "pt",
        device: str | int | None = "cpu",
        *,
        backend: str = "mmap",
        whole: bool = True,
        **options: Any,
    ) -> EngineFile:
        """Open a file, in the memory of a server or in memory of this process."""
        # A manifest has the checksums of whole files.
        whole = whole or self.verify is not None
        options = {**self.options, **options}
        return EngineFile(
            self, filename, framework, device, backend=backend, whole=whole, **options
        )

    def attached(self, filename: StrPath) -> _core.Buffer | None:
        """Attach the file of a server; return None if `attach` permits to load it instead."""
        if self.attach == "never":
            return None
        try:
            # A relative path would be a name below the server's directory.
            path = os.path.abspath(os.fspath(filename))
            return attach(path, socket=self.socket, format="safetensors")
        except LongshoreError as error:
            if self.attach == "require":
                raise
            no_server = isinstance(error, ServerError) and error.errno in _NO_SERVER
            if self.refusal is None and not no_server:
                self.refusal = str(error)
            return None

    def count(self, files: int = 0, read: int = 0, attached: int = 0) -> None:
        """Add to the statistics."""
        with self._lock:
            self.files += files
            self.bytes_read += read
            self.bytes_attached += attached

    def summary(self) -> str:
        """Describe the files that were read."""
        said = f"{self.files} safetensors files, {size(self.bytes_read)} read"
        if self.attach != "never":
            said += f", {size(self.bytes_attached)} attached"
        if self.refusal is not None:
            said += f" (the server did not lend a file: {self.refusal})"
        return said


class EngineFile(safe_open):
    """An open file of an engine. Its tensors stay valid after the file is closed."""

    def __init__(
        self,
        reader: Reader,
        filename: StrPath,
        framework: str,
        device: str | int | None = "cpu",
        *,
        backend: str = "mmap",
        whole: bool = True,
        **options: Any,
    ) -> None:
        self._reader = reader
        super().__init__(filename, framework, device, backend=backend, whole=whole, **options)

    def _open(self, filename: StrPath, whole: bool, options: Options) -> _Opened:
        opened = _CountedOpened(filename, whole, options)
        opened.reader = self._reader
        buffer = self._reader.attached(filename)
        if buffer is not None:
            opened.lend(buffer)
        self._reader.count(files=1)
        return opened


class _CountedOpened(_Opened):
    """An open file whose reader counts the bytes that are read."""

    reader: Reader
    _lent = False

    def lend(self, buffer: _core.Buffer) -> None:
        """Use this buffer of a server instead of loading the file."""
        # The header was read by path, and the server may have opened a file that replaced it.
        theirs = {name: (t.dtype, list(t.shape)) for name, t in buffer.tensors.items()}
        if theirs != {name: (i.dtype, list(i.shape)) for name, i in self.infos.items()}:
            raise FileChangedError(None, f"{self.path} was replaced while it was opened")
        self._whole, self._buffer, self._loads, self._lent = True, buffer, 1, True
        self.reader.count(attached=buffer.nbytes)

    def reads_parts(self) -> bool:
        return not self._lent and super().reads_parts()

    def _load(self, name: str | None, rows: tuple[int, int] | None = None) -> _core.Buffer:
        # The program let go of the whole buffer, and wants a tensor again.
        if self._lent and (lent := self.reader.attached(self.path)) is not None:
            return lent
        buffer = super()._load(name, rows)
        self.reader.count(read=buffer.nbytes)
        return buffer


def size(nbytes: int) -> str:
    """Format a number of bytes in decimal units."""
    amount = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.2f} GB"


def rebound(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    """Return a copy of a function of an engine that finds other objects under these global names.

    The engine's module is not changed, so other loaders and other threads are not affected.
    """
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"{function!r} is not a Python function, but a {type(function).__name__}")
    missing = [name for name in names if name not in function.__globals__]
    unused = [name for name in names if name not in function.__code__.co_names]
    if missing or unused:
        raise LookupError(
            f"{function.__module__}.{function.__qualname__} does not use {', '.join(missing or unused)}"
        )
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def ranks() -> tuple[int, int]:
    """Return this process's rank in torch's process group, and the number of ranks."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def announce(engine: str, source: str, reader: Reader) -> None:
    """Print the line of a start, in the first rank only."""
    rank, count = ranks()
    if rank == 0:
        each = f"{count} ranks, in this one " if count > 1 else "1 rank, "
        say(f"{engine}, source {source}, {each}{reader.summary()}")


def say(text: str) -> None:
    """Print a line on standard error."""
    print(f"longshore {_core.__version__}: {text}", file=sys.stderr, flush=True)


def is_release(version: str, tested: tuple[str, ...]) -> bool:
    """Return True if the version is one of these releases, such as "0.32.1+cpu" for "0.32"."""
    return ".".join(version.split("+")[0].split(".")[:2]) in tested
