"""`longshore.load`."""

from __future__ import annotations

import os

from longshore import _core
from longshore._progress import observer

TYPE_CHECKING = False  # As in typing, which takes longer to import than all of this.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypedDict

    StrPath = str | os.PathLike[str]
    Progress = bool | Callable[[int, int], object] | None
    Verify = StrPath | Sequence[str] | None
    Format = Literal["auto", "raw", "safetensors", "gguf"]

    class Options(TypedDict, total=False):
        """What `load` takes beside paths and their format."""

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
    """Load a file, or several behind each other, into memory that can be shared.

    Other Python threads run meanwhile. Ctrl-C stops it, as does anything that `progress` raises;
    whatever goes wrong, neither a descriptor nor memory is left.

    Args:
        path_or_paths: What to load. A `*.safetensors.index.json` stands for its shards.
        heap: Where the memory comes from: "memfd" in the largest pages there are, "memfd:4k",
            "hugetlb", "udmabuf", "dma-heap:NAME". "auto" takes "memfd", which can be sealed.
        mode: How files are read: "direct", "buffered", "uncached". "auto" takes from the page cache
            what is there, and the rest from the disk.
        align: Place every tensor at a multiple of so many bytes, a power of two. JAX shares memory
            from 64 on, instead of copying it. None leaves the content as it is in the file.
        verify: Checksums to compute, "crc32c", "xxh3" or "sha256", one or several: `File.digests`
            has them. Or a manifest as `sha256sum` writes them: what differs raises ChecksumError.
        progress: True shows a bar of tqdm if that is installed, else lines on standard error. A
            callable gets the bytes done and in all, some twenty times a second.
        format: What the files are taken to be; "auto" goes by their names.
        writable: Do not seal the content: arrays can be written to, and so can whoever is given the
            descriptor.

    Returns:
        The buffer, complete, and verified if that was asked for. Its content is sealed: nobody can
        change it, not even who opens `Buffer.path` (heaps of dma-bufs cannot do that).

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
    """`load`, or of safetensors files the one tensor of that name; of what is open, if it is."""
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
    """The checksums to compute, and the manifest to hold them against."""
    if verify is None:
        return [], None
    if isinstance(verify, (str, os.PathLike)):
        word = os.fspath(verify)
        return ([word], None) if word in _DIGESTS else ([], word)
    return list(verify), None
