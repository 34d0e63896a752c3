"""Stopping loads from other threads and from asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import longshore
import pytest

WAIT_SECONDS = 60


def sparse(path: Path) -> Path:
    """Make a file that takes a while to load."""
    with path.open("wb") as file:
        file.truncate(1 << 30)
    return path


def test_a_cancelled_token_stops_each_load(
    example: str, descriptors: Callable[[], set[str]]
) -> None:
    token = longshore.CancelToken()
    before = descriptors()
    assert longshore.load(example, cancel=token) and not token.cancelled
    token.cancel()
    assert token.cancelled and "cancelled" in repr(token)
    for _ in range(2):
        with pytest.raises(longshore.CancelledError):
            longshore.load(example, cancel=token)
    assert descriptors() == before


def test_another_thread_cancels_a_load(
    tmp_path: Path, descriptors: Callable[[], set[str]]
) -> None:
    path = sparse(tmp_path / "sparse")
    before = descriptors()
    token, begun, cancelled = longshore.CancelToken(), threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        assert cancelled.wait(WAIT_SECONDS)

    def cancel() -> None:
        assert begun.wait(WAIT_SECONDS)
        token.cancel()
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(longshore.CancelledError, match="cancelled after"):
            longshore.load(path, progress=progress, cancel=token)
    finally:
        begun.set()
        thread.join(WAIT_SECONDS)
    assert descriptors() == before


def test_an_exception_in_one_load_does_not_stop_others(tmp_path: Path, example: str) -> None:
    token = longshore.CancelToken()

    def progress(done: int, total: int) -> None:
        raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        longshore.load(sparse(tmp_path / "sparse"), progress=progress, cancel=token)
    assert not token.cancelled and longshore.load(example, cancel=token)


def test_a_token_ends_the_wait_for_a_server(example: str, tmp_path: Path) -> None:
    token = longshore.CancelToken()
    token.cancel()
    with pytest.raises((longshore.CancelledError, ConnectionError)):
        longshore.attach(example, socket=tmp_path / "socket", cancel=token)


def test_loading_in_a_task(example: str) -> None:
    async def both() -> tuple[longshore.Buffer, longshore.Buffer]:
        return await asyncio.gather(
            longshore.load_async(example, align=64), longshore.load_async([example], verify="crc32c")
        )

    one, other = asyncio.run(both())
    assert one["weight"].address % 64 == 0 and other.files[0].digests["crc32c"]
    with pytest.raises(FileNotFoundError):
        asyncio.run(longshore.load_async("no such file"))


def test_cancelling_the_task_stops_its_load(
    tmp_path: Path, descriptors: Callable[[], set[str]]
) -> None:
    path = sparse(tmp_path / "sparse")
    begun, go_on = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        assert go_on.wait(WAIT_SECONDS)

    async def cancelled() -> bool:
        task = asyncio.create_task(longshore.load_async(path, progress=progress))
        assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        task.cancel()
        # The task cancels the load, and waits for it.
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        # A second request changes nothing.
        task.cancel()
        go_on.set()
        await asyncio.wait([task], timeout=WAIT_SECONDS)
        return task.cancelled()

    before = descriptors()
    try:
        assert asyncio.run(cancelled())
    finally:
        go_on.set()
    assert {name for name in descriptors() - before if "memfd" in name} == set()


def test_load_async_refuses_a_token(example: str) -> None:
    options: dict[str, Any] = {"cancel": longshore.CancelToken()}
    with pytest.raises(TypeError, match="no argument 'cancel': cancel the task"):
        asyncio.run(longshore.load_async(example, **options))
