"""`longshore.load`."""

from __future__ import annotations

import os

from longshore import _core
from longshore._progress import observer

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypedDict

    StrPath = str | os.PathLike[str]
    Progress = bool | Callable[[int, int], object] | None
    Verify = StrPath | Sequence[str] | None
    Format = Literal["auto", "raw", "safetensors", "gguf"]

    class Options(TypedDict, total=False):
        """The arguments of `load` other than the paths and their format."""

        heap: str
        mode: str
        align: int | None
        verify: Verify
        progress: Progress
        writable: bool


_DIGESTS = ("crc32c", "xxh3", "sha256")


def load(
    path_or_paths: StrPath | Sequence[StrPath],
    heap: str = "auto",
    mode: str = "auto",
    align: int | None = None,
    verify: Verify = None,
    progress: Progress = None,
    *,
    format: Format = "auto",
    writable: bool = False,
) -> _core.Buffer:
    """Load a file, or several one after another, into memory that can be shared.

    Other Python threads run during the load. Ctrl-C and exceptions that `progress` raises stop it. If
    it fails, it leaves neither a descriptor nor memory behind.

    Args:
        path_or_paths: The file or files. A `*.safetensors.index.json` stands for its shards.
        heap: The source of the memory: "memfd" with the largest available pages, "memfd:4k",
            "hugetlb", "udmabuf" or "dma-heap:NAME". "auto" takes "memfd", which can be sealed.
        mode: How files are read: "direct", "buffered" or "uncached". "auto" copies resident pages
            from the page cache and reads the rest from the disk.
        align: Place every tensor at a multiple of this number of bytes, a power of two. From 64 on,
            JAX shares the memory instead of copying it. None leaves the content as it is in the file.
        verify: One or more checksums to compute, "crc32c", "xxh3" or "sha256", which `File.digests`
            then returns; or the path of a manifest in the format of `sha256sum`: a file that differs
            raises ChecksumError.
        progress: True shows a progress bar if tqdm is installed, and prints lines on standard error
            if not. A callable is called with the bytes done and the total, about twenty times a
            second.
        format: The format of the files; "auto" chooses it by their names.
        writable: Do not seal the content: this process can write to the arrays, and other processes
            that have the descriptor can write to the memory.

    Returns:
        The buffer, complete, and verified if `verify` is given. Unless `writable` is set, its content
        is sealed: no process can change it, even through `Buffer.path`. The dma-bufs of the heaps
        "udmabuf" and "dma-heap" cannot be sealed.

    >>> import longshore
    >>> buffer = longshore.load(example, verify="crc32c")
    >>> buffer.files[0].digests["crc32c"] == crc32c(bytes(buffer))
    True
    >>> memoryview(buffer).readonly, buffer.stats.nbytes == len(buffer)
    (True, True)
    """
    return load_only(
        None,
        _paths(path_or_paths),
        heap=heap,
        mode=mode,
        align=align,
        verify=verify,
        progress=progress,
        format=format,
        writable=writable,
    )


def load_only(
    tensor: str | None,
    paths: list[str],
    opened: _core.OpenedFiles | None = None,
    *,
    heap: str = "auto",
    mode: str = "auto",
    align: int | None = None,
    verify: Verify = None,
    progress: Progress = None,
    format: Format = "auto",
    writable: bool = False,
) -> _core.Buffer:
    """Load whole files, or only the safetensors tensor of that name; from `opened` if it is given."""
    digests, manifest = _verify(verify)
    with observer(progress, paths) as observe:
        return _core.load(
            paths if opened is None else opened,
            heap=heap,
            mode=mode,
            format=format,
            align=align,
            tensor=tensor,
            digests=digests,
            manifest=manifest,
            writable=writable,
            observe=observe,
        )


def _paths(path_or_paths: StrPath | Sequence[StrPath]) -> list[str]:
    if isinstance(path_or_paths, (str, os.PathLike)):
        return [os.fspath(path_or_paths)]
    return [os.fspath(path) for path in path_or_paths]


def _verify(verify: Verify) -> tuple[list[str], str | None]:
    """Return the checksums to compute, and the path of the manifest to compare them with."""
    if verify is None:
        return [], None
    if isinstance(verify, (str, os.PathLike)):
        word = os.fspath(verify)
        return ([word], None) if word in _DIGESTS else ([], word)
    return list(verify), None
