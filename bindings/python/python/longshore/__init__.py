"""Loads models from disk into memory that devices and processes share, at the disk's speed.

>>> import pathlib
>>> import longshore
>>> with longshore.load(example) as buffer:
...     print(sorted(buffer.tensors), buffer.readonly)
...     print(pathlib.Path(buffer.path).read_bytes() == pathlib.Path(example).read_bytes())
['bias', 'weight'] True
True

A drop-in replacement for the package `safetensors`: change the import to `longshore.safe_open`,
`longshore.numpy`, `longshore.torch`, `longshore.jax` or `longshore.flax`. `longshore.gguf` loads GGUF
files.

Large packages are imported only when they are needed: numpy, torch and jax by the modules of these
names, tqdm by `progress=True`.
"""

from __future__ import annotations

from longshore import errors
from longshore._attach import attach
from longshore._core import Buffer, CancelToken, File, Stats, Tensor, __version__
from longshore._load import find_files, load, load_async
from longshore._safetensors import safe_open
from longshore.errors import (
    CancelledError,
    ChecksumError,
    FileChangedError,
    FormatError,
    LongshoreError,
    NotFoundError,
    OutOfMemoryError,
    PermissionDeniedError,
    ReadError,
    SafetensorError,
    ServerError,
    StreamFullError,
    TimedOutError,
    UnavailableError,
)

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from longshore._patch import patch_safetensors
    from longshore._saving.raw import TensorSpec, deserialize, serialize, serialize_file
    from longshore._stream import TensorStream, stream

__all__ = [
    "Buffer",
    "CancelToken",
    "CancelledError",
    "ChecksumError",
    "File",
    "FileChangedError",
    "FormatError",
    "LongshoreError",
    "NotFoundError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "ReadError",
    "SafetensorError",
    "ServerError",
    "Stats",
    "StreamFullError",
    "Tensor",
    "TensorStream",
    "TensorSpec",
    "TimedOutError",
    "UnavailableError",
    "__version__",
    "attach",
    "deserialize",
    "errors",
    "find_files",
    "load",
    "load_async",
    "patch_safetensors",
    "safe_open",
    "serialize",
    "serialize_file",
    "stream",
]


def __getattr__(name: str) -> object:
    """Import the functions that few programs need when they are used."""
    if name in ("TensorSpec", "deserialize", "serialize", "serialize_file"):
        from longshore._saving import raw

        return getattr(raw, name)
    if name in ("TensorStream", "stream"):
        from longshore import _stream

        return getattr(_stream, name)
    if name == "patch_safetensors":
        from longshore._patch import patch_safetensors

        return patch_safetensors
    raise AttributeError(f"module 'longshore' has no attribute '{name}'")
