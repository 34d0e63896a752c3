"""The exceptions of longshore.

Failures of files, memory and servers raise a `LongshoreError`, which is an `OSError`. `errno` is the
error of the kernel if there was one, and the nearest number if not: ENOMEM, ECANCELED, EBADMSG for a
malformed file, ESTALE for a file that changed. It is None if the call failed without reading the
file, for example for a slice that the tensor does not have. `filename` is the file, if the error is
about one. Some of the classes are also one of Python's built-in exceptions:

>>> import longshore
>>> try:
...     longshore.load("no such file")
... except FileNotFoundError as error:
...     print(error, error.errno, error.filename, sep="; ")
cannot open no such file: No such file or directory (os error 2); 2; no such file

Wrong arguments raise the exceptions that Python's own functions raise: ValueError for an invalid word
or number and for a closed buffer, TypeError, KeyError for the name of a missing tensor, BufferError
for memory that cannot be exported in this way or that still has exports, and ImportError for a
package that is not installed. KeyboardInterrupt and the exceptions of a progress callable are passed
on unchanged.
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
    "SafetensorNotFoundError",
    "SafetensorPermissionError",
    "ServerError",
    "StreamFullError",
    "TimedOutError",
    "UnavailableError",
]


class LongshoreError(OSError):
    """The base class: an operation failed, and left neither a descriptor nor memory behind."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class NotFoundError(LongshoreError, FileNotFoundError):
    """The file, model or attachment does not exist."""


class PermissionDeniedError(LongshoreError, PermissionError):
    """The file may not be read, a server refuses access to it, or the server may not be used."""


class ReadError(LongshoreError):
    """The disk or the file system failed, or a server that sends the file."""


class TimedOutError(LongshoreError, TimeoutError):
    """A server that has the file did not send it in time."""


class FileChangedError(LongshoreError):
    """The file was written to or cut short while it was read."""


class FormatError(LongshoreError, ValueError):
    """The file is not valid in its format."""


class ChecksumError(LongshoreError):
    """The content does not match the manifest."""


class OutOfMemoryError(LongshoreError, MemoryError):
    """The content does not fit into the available memory."""


class UnavailableError(LongshoreError):
    """The machine, heap, file or server cannot do this; the message says what to do."""


class CancelledError(LongshoreError):
    """The load was stopped."""


class StreamFullError(LongshoreError, MemoryError):
    """The memory of a stream is full of tensors that the program holds. The stream can go on when some were
    deleted."""


class ServerError(LongshoreError, ConnectionError):
    """No server listens for `longshore.attach`, or it ended, did not answer in time, or sent an invalid
    reply."""


class SafetensorError(LongshoreError):
    """The exception that code written for the package `safetensors` catches."""


class SafetensorFormatError(SafetensorError, FormatError):
    """The file is not a valid safetensors file."""


class SafetensorNotFoundError(SafetensorError, NotFoundError):
    """The folder of the file to save does not exist."""


class SafetensorPermissionError(SafetensorError, PermissionDeniedError):
    """The file to save may not be written."""


def save_error(error: OSError, filename: str) -> SafetensorError:
    """Return the exception for a file that cannot be saved, which names that file and no other."""
    kind: type[SafetensorError] = SafetensorError
    if isinstance(error, FileNotFoundError):
        kind = SafetensorNotFoundError
    elif isinstance(error, PermissionError):
        kind = SafetensorPermissionError
    found = kind(error.errno, f"cannot save {filename}: {error.strerror or error}")
    found.filename = filename
    return found
