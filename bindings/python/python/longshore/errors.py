"""What can go wrong.

What fails with files, memory and servers is a `LongshoreError`, and so an `OSError`. `errno` is what
the kernel said, or else what comes nearest: ENOMEM, ECANCELED, EBADMSG for what is not of its
format, ESTALE for a file that changed. It is None where a call is refused that would not touch the
file, such as a slice that the tensor does not have. `filename` is the file it is about, where it is
about one. The names that Python has for some of them catch them too:

>>> import longshore
>>> try:
...     longshore.load("no such file")
... except FileNotFoundError as error:
...     print(error, error.errno, error.filename, sep="; ")
cannot open no such file: No such file or directory (os error 2); 2; no such file

Other exceptions say that a call was wrong, and are those that Python's own functions raise:
ValueError for words and numbers that mean nothing and for a buffer that is closed, TypeError,
KeyError for names of tensors that are not there, BufferError for memory that cannot be lent so or is
lent still, ImportError for a package that is not installed. What a progress callable raises, and
KeyboardInterrupt, are raised as they are.
"""

from __future__ import annotations

__all__ = [
    "CancelledError",
    "ChecksumError",
    "FileChangedError",
    "FormatError",
    "LongshoreError",
    "NotFoundError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "ReadError",
    "SafetensorError",
    "SafetensorFormatError",
    "ServerError",
    "UnavailableError",
]


class LongshoreError(OSError):
    """Something failed, and nothing is left of it: no descriptor, no memory."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class NotFoundError(LongshoreError, FileNotFoundError):
    """There is no such file."""


class PermissionDeniedError(LongshoreError, PermissionError):
    """The file may not be read."""


class ReadError(LongshoreError):
    """The disk or the file system failed."""


class FileChangedError(LongshoreError):
    """The file was written to or cut short while it was read."""


class FormatError(LongshoreError, ValueError):
    """The file is not of the format that it is meant to be of."""


class ChecksumError(LongshoreError):
    """The content is not what the manifest says."""


class OutOfMemoryError(LongshoreError, MemoryError):
    """The content does not fit into the memory that is left."""


class UnavailableError(LongshoreError):
    """This machine, heap or file has no such way; the message says what to do."""


class CancelledError(LongshoreError):
    """The load was stopped."""


class ServerError(LongshoreError, ConnectionError):
    """The server of `longshore.attach` went away, or cannot be trusted."""


class SafetensorError(LongshoreError):
    """What code written for the package `safetensors` catches."""


class SafetensorFormatError(SafetensorError, FormatError):
    """The file is no valid safetensors file."""
