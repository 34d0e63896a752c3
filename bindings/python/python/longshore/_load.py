"""`longshore.load` and `longshore.load_async`."""

from __future__ import annotations

import operator
import os

from longshore import _core
from longshore._progress import observer
from longshore._servers import access, connection_count
from longshore._source import absolute, named, remember

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal, TypedDict, Unpack

    from longshore._servers import StorageOptions
    from longshore._source import HasDescriptor, Name

    StrPath = str | os.PathLike[str]
    File = StrPath | int | HasDescriptor
    Files = File | bytes | bytearray | memoryview | Sequence[File]
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
        storage_options: StorageOptions
        timeout: float | None
        connections: int | None
        cancel: _core.CancelToken | None


_DIGESTS = ("crc32c", "xxh3", "sha256")


def load(
    path_or_paths: Files,
    heap: str = "auto",
    mode: str = "auto",
    align: int | None = None,
    verify: Verify = None,
    progress: Progress = None,
    *,
    format: Format = "auto",
    writable: bool = False,
    storage_options: StorageOptions = None,
    timeout: float | None = None,
    connections: int | None = None,
    cancel: _core.CancelToken | None = None,
) -> _core.Buffer:
    """Load a file, or several one after another, into memory that can be shared.

    Other Python threads run during the load. Ctrl-C and exceptions that `progress` raises stop it. If
    it fails, it leaves neither a descriptor nor memory behind.

    Args:
        path_or_paths: The file, or a sequence of files: paths, file descriptors, or file objects, whose
            unwritten data is written first. They are loaded whole, whatever their position. A
            `*.safetensors.index.json` stands for its shards, a directory for the model in it, and
            `hf://ORG/NAME` for a repository of the Hugging Face Hub; `find_files` selects a variant.
            `https://HOST/FILE` is a file of an HTTP server; `s3://BUCKET/KEY`, `gs://BUCKET/KEY` and
            `az://CONTAINER/KEY` are objects, and directories if they end with `/`. Bytes-like objects
            are copied.
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
        format: The format of the files; "auto" chooses it by their names, by the first bytes if a name
            has no extension, and for bytes by the magic number: GGUF, or else safetensors.
        cancel: A token that stops the load from another thread.
        writable: Do not seal the content: this process can write to the arrays, and other processes
            that have the descriptor can write to the memory.
        storage_options: Options of object stores, which replace those of the environment, such as
            `aws_endpoint_url`, `google_service_account` or `azure_storage_account_name`. The names are
            those of the Rust crate `object_store`. Errors never show the values, and a buffer that was
            loaded with them cannot be pickled.
        timeout: The seconds that all requests to servers together may take, after which the call raises
            TimedOutError. None: no limit, but a server that sends nothing for 30 seconds is given up.
        connections: The number of connections to servers, up to 256. None: 16, and up to 128 while more
            are faster.

    Returns:
        The buffer, complete, and verified if `verify` is given. Unless `writable` is set, its content
        is sealed: no process can change it, even through `Buffer.path`. The dma-bufs of the heaps
        "udmabuf" and "dma-heap" cannot be sealed.

    >>> import longshore
    >>> buffer = longshore.load(example, verify="crc32c")
    >>> buffer.files[0].digests["crc32c"] == crc32c(bytes(buffer))
    True
    >>> memoryview(buffer).readonly, "weight" in buffer, len(buffer)
    (True, True, 2)
    """
    with named(path_or_paths, format) as (names, kind):
        buffer = load_only(
            None,
            names,
            heap=heap,
            mode=mode,
            align=align,
            verify=verify,
            progress=progress,
            format=kind,
            writable=writable,
            storage_options=storage_options,
            timeout=timeout,
            connections=connections,
            cancel=cancel,
        )
    # The values of the options can be secret, so they are in no pickle.
    if not storage_options and (paths := absolute(names)):
        options: Options = {"heap": heap, "mode": mode, "align": align, "writable": writable}
        options |= {"timeout": timeout, "connections": connections}
        remember(buffer, load, paths, {"format": format, **options})
    return buffer


def find_files(
    source: StrPath,
    *,
    include: str | Sequence[str] = (),
    variant: str | None = None,
    format: Format = "auto",
    storage_options: StorageOptions = None,
    timeout: float | None = None,
) -> list[str]:
    """Return the files of a model, for `longshore.load`, `longshore.stream` and the others.

    These functions take a directory, a name of the Hugging Face Hub or a prefix of an object store
    themselves. This one selects a variant or certain files.

    Args:
        source: A directory with a model; `hf://ORG/NAME[@REVISION][/FILE]`, a repository of the Hugging
            Face Hub; a prefix of an object store, such as `s3://BUCKET/PREFIX/`; or a file or a URL, which
            is returned as it is. Of a directory, the
            result is the index of its safetensors files; else `model.safetensors`; else its only
            safetensors file; else its only GGUF file; else that of the only folder in it with a model. A
            diffusers model has the files of each component.
        include: One or more patterns, in which `*` stands for any characters and `?` for one: return all
            files with weights that match, instead of the model.
        variant: Return the files of this variant: "fp16" is `model.fp16.safetensors`, and "Q4_K_M" a
            GGUF file with this word in its name.
        format: Return only files of this format.
        storage_options: Options of object stores, as for `longshore.load`.
        timeout: The seconds that all requests to servers together may take.

    Raises:
        NotFoundError: There is no model, or the repository is not in the cache.
        PermissionDeniedError: A server refuses access.
        TimedOutError: A server did not answer in time.
        LongshoreError: There are several models. The message lists them.

    >>> import longshore
    >>> longshore.find_files(example) == [str(example)]
    True
    """
    patterns = [include] if isinstance(include, str) else list(include)
    return _core.find_files(
        source,
        include=patterns,
        variant=variant,
        format=format,
        **access(storage_options, timeout),
    )


async def load_async(
    path_or_paths: Files, *, format: Format = "auto", **options: Unpack[Options]
) -> _core.Buffer:
    """Load files in a thread, as `longshore.load` does, while the event loop runs.

    Cancelling the task that awaits it stops the load. The task ends when the load has ended and has
    freed its memory. `progress` is called in the thread.

    >>> import asyncio
    >>> import longshore
    >>> buffer = asyncio.run(longshore.load_async(example))
    >>> sorted(buffer)
    ['bias', 'weight']
    """
    # Programs that do not use asyncio do not need this import.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    if "cancel" in options:
        raise TypeError("load_async() has no argument 'cancel': cancel the task that awaits it")
    token = _core.CancelToken()
    # The executor of the loop may be full of other work.
    executor = ThreadPoolExecutor(1, "longshore.load_async")
    arguments: dict[str, Any] = {"format": format, **options, "cancel": token}
    loading = asyncio.wrap_future(executor.submit(load, path_or_paths, **arguments))
    executor.shutdown(wait=False)
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        token.cancel()
        while not loading.done():
            try:
                await asyncio.wait([loading])
            except asyncio.CancelledError:
                # Cancelled again: the load is about to end.
                continue
        if not loading.cancelled():
            # Marks the exception of the load as seen.
            loading.exception()
        raise


def load_only(
    tensor: str | None,
    names: list[Name],
    opened: _core.OpenedFiles | None = None,
    *,
    heap: str = "auto",
    mode: str = "auto",
    align: int | None = None,
    verify: Verify = None,
    progress: Progress = None,
    format: Format = "auto",
    writable: bool = False,
    storage_options: StorageOptions = None,
    timeout: float | None = None,
    connections: int | None = None,
    cancel: _core.CancelToken | None = None,
    private: bool = False,
    rows: tuple[int, int] | None = None,
) -> _core.Buffer:
    """Load whole files, or only the safetensors tensor of that name, or the rows of it from the first to
    before the second number; from `opened` if it is given, with the access to servers of that.

    With `private`, no other process can get the memory, so it uses no descriptor, and up to 1 MiB no
    mapping either.
    """
    digests, manifest = verification(verify)
    if align is not None and not 0 < operator.index(align) < 1 << 63:
        raise ValueError(f"align={align} is not a power of two (such as 64 or 4096)")
    with observer(progress, names) as observe:
        return _core.load(
            names if opened is None else opened,
            heap=heap,
            mode=mode,
            format=format,
            align=align,
            tensor=tensor,
            rows=rows,
            digests=digests,
            manifest=manifest,
            writable=writable,
            private=private,
            connections=connection_count(connections),
            observe=observe,
            cancel=cancel,
            **access(storage_options, timeout),
        )


def verification(verify: Verify) -> tuple[list[str], str | None]:
    """Return the checksums to compute, and the path of the manifest to compare them with."""
    if verify is None:
        return [], None
    if isinstance(verify, (str, os.PathLike)):
        word = os.fspath(verify)
        if word in _DIGESTS:
            return [word], None
        if isinstance(verify, str) and word.isalnum() and not os.path.exists(word):
            raise ValueError(
                f"unknown checksum '{word}' (expected crc32c, xxh3, sha256, or the path of a manifest)"
            )
        return [], word
    return list(verify), None
