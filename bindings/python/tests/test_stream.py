"""Streams: content, selection, memory, threads, and what ends a stream."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import numpy as np
import pytest
from safetensors.numpy import save_file

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A file with large and small tensors."""
    random = np.random.default_rng(1)
    tensors = {f"large.{at}": random.integers(0, 255, (6, 500_000), np.uint8) for at in range(5)}
    tensors |= {f"small.{at}": random.random((8, at + 1), np.float32) for at in range(4)}
    tensors["scalar"] = np.array(7, np.int64)
    tensors["empty"] = np.zeros((0, 3), np.float32)
    path = str(tmp_path / "model.safetensors")
    save_file(tensors, path)
    return path


def same(one: Any, other: Any) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and bool(np.array_equal(one, other))


def test_a_stream_yields_every_tensor_once(model: str) -> None:
    whole = longshore.numpy.load_file(model)
    every: list[dict[str, Any]] = [
        {},
        {"order": "completion"},
        {"memory": "7MiB"},
        {"mode": "buffered"},
    ]
    for options in every:
        found = {}
        with longshore.numpy.stream(model, **options) as tensors:
            for name, array in tensors:
                assert name not in found and array.flags.writeable
                found[name] = array.copy()
            assert tensors.stats["tensors_yielded"] == len(whole)
            assert tensors.stats["bytes_read"] >= tensors.stats["nbytes"]
        assert found.keys() == whole.keys()
        assert all(same(found[name], whole[name]) for name in whole)


def test_tensors_and_rows_are_selected(model: str) -> None:
    whole = longshore.numpy.load_file(model)

    def names(**options: Any) -> list[str]:
        return [name for name, _ in longshore.stream(model, **options)]

    assert sorted(names(select="small.?")) == [f"small.{at}" for at in range(4)]
    assert sorted(names(select=["scalar", "large.1"])) == ["large.1", "scalar"]
    assert len(names(files="model.safetensors")) == len(whole)
    parts: list[tuple[Any, slice]] = [(slice(2, 5), slice(2, 5)), ((1, 3), slice(2, 4))]
    for rows, part in parts:
        [(_, array)] = longshore.numpy.stream(model, select="large.2", rows=rows)
        assert same(array, whole["large.2"][part])
    arrays = dict(longshore.numpy.stream(model, select="large.*", rows={"large.0": slice(0, 1)}))
    assert (arrays["large.0"].shape, arrays["large.1"].shape) == ((1, 500_000), (6, 500_000))

    with pytest.raises(ValueError, match="no tensor"):
        longshore.stream(model, select="other")
    with pytest.raises(ValueError, match="6 rows"):
        longshore.stream(model, select="large.1", rows=slice(5, 7))
    every: list[dict[str, Any]] = [
        {"rows": slice(0, 4, 2)},
        {"rows": slice(-1, 2)},
        {"rows": (0, 0)},
        {"memory": "2 gigs"},
        {"memory": -1},
        {"order": "name"},
        {"on_full": "wait"},
        {"wait": -1.0},
        {"select": []},
        {"files": []},
    ]
    for wrong in every:
        with pytest.raises(ValueError):
            longshore.stream(model, **wrong)
    with pytest.raises(TypeError, match="slice"):
        longshore.stream(model, rows=range(2))  # type: ignore[arg-type]


def test_a_slice_of_rows_reads_only_its_bytes(model: str) -> None:
    stream = longshore.stream(model, select="large.*", rows=(0, 6))
    assert len(list(stream)) == 5
    assert stream.stats["nbytes"] == 5 * 500_000
    assert stream.stats["bytes_read"] <= 5 * (500_000 + 8192)


def test_memory_that_the_program_holds_is_an_error(model: str) -> None:
    stream = longshore.numpy.stream(model, select="large.*", memory="7MiB", wait=0.05)
    held = [next(stream), next(stream)]
    with pytest.raises(longshore.StreamFullError, match=r"large\.\d.*drop tensors"):
        next(stream)
    del held[0]
    gc.collect()
    held.append(next(stream))
    with pytest.raises(longshore.OutOfMemoryError, match="give the stream more"):
        longshore.stream(model, memory=MIB)
    grown = dict(longshore.numpy.stream(model, memory="4MiB", on_full="grow"))
    whole = longshore.numpy.load_file(model)
    assert all(same(grown[name], whole[name]) for name in whole)


def test_tensors_outlive_their_stream(model: str, descriptors: Any) -> None:
    whole = longshore.numpy.load_file(model)
    before = descriptors()
    stream = longshore.numpy.stream(model, select="large.*")
    name, array = next(stream)
    view = array[1:3]
    del array
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        next(stream)
    assert stream.stats["tensors_yielded"] == 1
    del stream
    assert descriptors() == before
    view += 0
    assert same(view, whole[name][1:3])


def test_checksums_are_verified(model: str, tmp_path: Path) -> None:
    stream = longshore.stream(model, verify="crc32c")
    assert not stream.digests
    list(stream)
    assert stream.digests[model] == longshore.load(model, verify="crc32c").files[0].digests
    manifest = tmp_path / "sums"
    manifest.write_text("00000000  model.safetensors\n")
    with pytest.raises(longshore.ChecksumError):
        list(longshore.stream(model, verify=manifest))
    with pytest.raises(ValueError, match="whole file"):
        longshore.stream(model, verify="crc32c", select="large.1")


def test_threads_share_a_stream(model: str) -> None:
    stream = longshore.numpy.stream(model, memory="8MiB")
    found: list[str] = []

    def consume() -> None:
        for name, array in stream:
            found.append(name)
            del array

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(longshore.numpy.load_file(model))


def test_a_signal_and_a_token_end_a_call(model: str) -> None:
    token = longshore.CancelToken()
    stream = longshore.numpy.stream(model, select="large.*", memory="7MiB", cancel=token)
    held = [next(stream), next(stream)]
    # SIGINT may be ignored, as in a program that runs in the background.
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    finally:
        signal.signal(signal.SIGALRM, handler)
    held.pop()
    held.append(next(stream))
    threading.Timer(0.1, token.cancel).start()
    with pytest.raises(longshore.CancelledError):
        next(stream)


def test_the_end_of_a_stream_ends_calls_that_wait(model: str) -> None:
    stream = longshore.numpy.stream(model, select="large.*", memory="7MiB", wait=3600.0)
    held = [next(stream), next(stream)]
    threading.Timer(0.1, stream.close).start()
    with pytest.raises(longshore.CancelledError):
        next(stream)
    del held


def test_a_child_process_keeps_its_tensors(model: str) -> None:
    stream = longshore.numpy.stream(model, select="large.*", memory="7MiB")
    name, array = next(stream)
    expected = longshore.numpy.load_file(model)[name]
    with warnings.catch_warnings():
        # JAX, which other tests import, and Python warn that the process has threads.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        code = 1
        try:
            next(stream)
        except longshore.LongshoreError as error:
            code = 0 if "fork" in str(error) and same(array, expected) else 2
        os._exit(code)
    del array
    assert sum(1 for _ in stream) == 4
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_jax_gets_the_same_values(model: str) -> None:
    whole = longshore.numpy.load_file(model)
    jax = pytest.importorskip("longshore.jax")
    for name, array in jax.stream(model, select=["large.*", "small.*"]):
        assert same(np.asarray(array), whole[name])


def test_torch_gets_the_same_values(model: str) -> None:
    whole = longshore.numpy.load_file(model)
    torch = pytest.importorskip("longshore.torch")
    for name, tensor in torch.stream(model):
        assert same(tensor.numpy(), whole[name])
        tensor += 1
