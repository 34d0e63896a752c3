"""Shows the progress of a load, or passes it to the caller's function."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager

from longshore._servers import shown

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from longshore._load import Progress

    Observe = Callable[[int, int], object]

LINE_SECONDS = 1.0
"""The seconds between two lines if tqdm is not installed."""


@contextmanager
def observer(progress: Progress, names: Sequence[str | int]) -> Generator[Observe | None]:
    """Yield the function to call with the bytes done and the total, or None."""
    if callable(progress):
        yield progress
    elif not progress:
        yield None
    else:
        label = shown(names[0]) if len(names) == 1 else f"{len(names)} files"
        bar = _new_bar(label)
        if bar is None:
            yield _lines(label)
            return
        try:
            yield _bar(bar)
        finally:
            bar.close()


def _new_bar(label: str) -> Any:
    """Return a progress bar of tqdm, or None if tqdm is not installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(desc=label, unit="B", unit_scale=True, leave=False)


def _bar(bar: Any) -> Observe:
    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return show


def _lines(label: str) -> Observe:
    began = shown = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if done < total and now - shown < LINE_SECONDS:
            return
        shown = now
        percent = 100 * done // total if total else 100
        rate = done / max(now - began, 1e-9) / 1e9
        print(f"{label}: {percent}% of {total / 1e9:.2f} GB, {rate:.2f} GB/s", file=sys.stderr)

    return show
