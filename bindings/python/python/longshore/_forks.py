"""Loads open files before a fork, so that the children share one copy of their tensors.

A `torch.utils.data.DataLoader` forks its workers. If the data set has an open file that is not loaded
yet, each worker would load it into memory of its own.
"""

from __future__ import annotations

import os
from threading import Lock
from _weakrefset import WeakSet  # The module of `weakref`, which takes longer to import.

from longshore import _core

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from typing import Protocol

    class Forkable(Protocol):
        """An open file that is loaded before a fork."""

        def before_fork(self) -> None:
            """Load the file if it is not loaded. It may raise an exception."""

        def after_fork_in_child(self) -> None:
            """Replace the locks, which threads that the child does not have may hold."""


_open: WeakSet[Forkable] = WeakSet()
_lock = Lock()


def add(file: Forkable) -> None:
    """Register an open file."""
    with _lock:
        _open.add(file)


def _files() -> list[Forkable]:
    # A thread may hold the lock only while it adds an element. A signal handler that forks can run in
    # the thread that holds it, so do not wait for it forever.
    if not _lock.acquire(timeout=1):
        return []
    try:
        return list(_open)
    finally:
        _lock.release()


def _before() -> None:
    for file in _files():
        try:
            file.before_fork()
        except KeyboardInterrupt:
            # Python ignores exceptions of this function.
            _core.defer_interrupt()
            return
        except Exception:
            # The child reports the error when it requests a tensor.
            continue


def _after_in_child() -> None:
    global _lock
    _lock = Lock()
    _core.forget_interrupt()
    for file in list(_open):
        file.after_fork_in_child()


os.register_at_fork(
    before=_before, after_in_parent=_core.raise_interrupt, after_in_child=_after_in_child
)
