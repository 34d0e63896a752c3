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
from longshore._core import Buffer, File, Stats, Tensor, __version__
from longshore._load import load
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
    UnavailableError,
)

__all__ = [
    "Buffer",
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
    "Tensor",
    "UnavailableError",
    "__version__",
    "attach",
    "errors",
    "load",
    "safe_open",
]
