"""The arguments of sources on servers, and warnings about them."""

from __future__ import annotations

import operator
import os
import sys

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypedDict

    StorageOptions = Mapping[str, str] | None

    class Access(TypedDict):
        """The access to servers, as the extension module takes it."""

        storage_options: list[tuple[str, str]]
        timeout: float | None


SCHEMES = ("hf:/", "https:/", "http:/", "s3:/", "gs:/", "az:/")
"""How names of files on servers begin, also with the one slash that `pathlib` leaves."""

CONNECTIONS_MAX = 256


def access(storage_options: StorageOptions, timeout: float | None) -> Access:
    """Return the checked access to servers."""
    if not hasattr(storage_options or {}, "items"):
        raise TypeError(f"storage_options must be a mapping, not {type(storage_options).__name__}")
    options = list((storage_options or {}).items())
    for name, value in options:
        if not isinstance(name, str):
            raise TypeError(f"storage_options: the names must be str, not {type(name).__name__}")
        if not isinstance(value, str):
            # The value can be secret.
            raise TypeError(f"storage_options: the value of {name!r} must be a str, not {type(value).__name__}")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ValueError(f"timeout={timeout} is not a number of seconds above 0")
    return {"storage_options": options, "timeout": timeout}


def connection_count(connections: int | None) -> int | None:
    """Return the checked number of connections."""
    if connections is not None and not 1 <= operator.index(connections) <= CONNECTIONS_MAX:
        raise ValueError(f"connections={connections} is not a number from 1 to {CONNECTIONS_MAX}")
    return connections


def absolute_name(name: str) -> str:
    """Return the absolute path of a file, or the name of a file on a server as it is."""
    return name if name.startswith(SCHEMES) else os.path.abspath(name)


def shown(name: Any) -> str:
    """Return a name for messages: without the query of a URL, which can be a signature."""
    text = str(name)
    return text.split("?", 1)[0] if text.startswith(SCHEMES) else text


def warn(note: str) -> None:
    """Show a note as a warning at the line of the program that called this package."""
    # Most programs need no warning.
    import warnings

    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "longshore":
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(note, stacklevel=level)
