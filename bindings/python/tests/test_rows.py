"""Slices of rows, which read only these rows of a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import numpy as np
import pytest
from longshore._engine import EngineFile, Reader
from safetensors.numpy import save_file

ROW = 300_000


@pytest.fixture
def model(tmp_path: Path) -> str:
    random = np.random.default_rng(2)
    tensors = {f"t{at}": random.integers(0, 255, (40, ROW // 4), np.uint32) for at in range(3)}
    tensors["flat"] = random.integers(0, 255, 1000, np.int16)
    tensors["empty"] = np.zeros((0, 4), np.float32)
    path = str(tmp_path / "model.safetensors")
    save_file(tensors, path)
    return path


def opened(model: str, framework: str = "np", **options: Any) -> tuple[EngineFile, Reader]:
    """Open a file whose reader counts the bytes that are read."""
    reader = Reader()
    return reader.open(model, framework, **options), reader


@pytest.mark.parametrize("whole", [True, False])
def test_only_the_rows_of_a_slice_are_read(model: str, whole: bool) -> None:
    expected = longshore.numpy.load_file(model)
    cases: list[tuple[Any, int]] = [
        (slice(5, 10), 5),
        (slice(35, None), 5),
        ((slice(0, 20, 7), slice(3, None, 2)), 20),
        (3, 1),
        (-1, 1),
        ((39, 5), 1),
        ((slice(2, 4), ...), 2),
        (slice(4, 4), 0),
        # Columns are cut from all rows.
        ((slice(None), slice(0, 5)), 40),
        ((..., 7), 40),
        (slice(0, 40, 3), 40),
    ]
    for index, rows in cases:
        file, reader = opened(model, whole=whole)
        part = file.get_slice("t1")[index]
        assert np.array_equal(part, expected["t1"][index]), index
        assert reader.bytes_read == rows * ROW, index
    file, reader = opened(model, whole=whole)
    assert np.array_equal(file.get_slice("flat")[10:12], expected["flat"][10:12])
    assert reader.bytes_read == 4


def test_each_rank_reads_its_share(model: str) -> None:
    """As tensor parallelism does: each rank takes its rows of every tensor, in several threads."""
    expected = longshore.numpy.load_file(model)
    for rank in range(8):
        file, reader = opened(model)
        parts: dict[str, Any] = {}

        def take(name: str, rows: slice, file: Any = file, parts: Any = parts) -> None:
            parts[name] = file.get_slice(name)[rows]

        rows = slice(rank * 5, rank * 5 + 5)
        threads = [threading.Thread(target=take, args=(f"t{at}", rows)) for at in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(np.array_equal(parts[f"t{at}"], expected[f"t{at}"][rows]) for at in range(3))
        assert reader.bytes_read == 3 * 5 * ROW


def test_a_whole_tensor_loads_the_file_of_which_slices_are_views(model: str) -> None:
    file, reader = opened(model)
    alone = file.get_slice("t0")[0:10]
    tensor = file.get_tensor("t0")
    of_file = os.path.getsize(model)
    assert reader.bytes_read == 10 * ROW + of_file
    part = file.get_slice("t0")[0:10]
    assert np.shares_memory(part, tensor) and not np.shares_memory(part, alone)
    assert np.array_equal(part, alone)
    assert reader.bytes_read == 10 * ROW + of_file
    # All rows are the tensor, of which a program takes others next.
    for index in (..., slice(None), slice(0, 40), (slice(None), ...)):
        file, reader = opened(model)
        file.get_slice("t0")[index]
        assert reader.bytes_read == of_file, index


def test_rows_are_verified_with_their_file(model: str, tmp_path: Path) -> None:
    manifest = tmp_path / "sums"
    manifest.write_text("00000000  model.safetensors\n")
    with (
        longshore.safe_open(model, "np", verify=manifest) as file,
        pytest.raises(longshore.ChecksumError),
    ):
        file.get_slice("t0")[0:1]


def test_rows_of_a_changed_file_are_refused(model: str) -> None:
    for rows in (1, 10):
        with longshore.safe_open(model, "np") as file:
            os.utime(model, ns=(1, rows))
            with pytest.raises(longshore.FileChangedError):
                file.get_slice("t0")[0:rows]


def test_rows_of_jax_arrays_are_the_same(model: str) -> None:
    pytest.importorskip("jax")
    expected = longshore.numpy.load_file(model)["t2"]
    every: list[Any] = [slice(1, 5), 7, (slice(3, 9), slice(0, 2))]
    for index in every:
        file, reader = opened(model, "flax")
        assert np.array_equal(np.asarray(file.get_slice("t2")[index]), expected[index]), index
        assert reader.bytes_read < 10 * ROW


def test_rows_of_torch_tensors_are_the_same(model: str) -> None:
    torch = pytest.importorskip("torch")
    expected = pytest.importorskip("longshore.torch").load_file(model)["t2"]
    rows: list[Any] = [slice(1, 5), 7, (slice(3, 9), slice(0, 2)), (slice(1, 2), None), slice(-4, -1)]
    for index in rows:
        file, reader = opened(model, "pt")
        assert torch.equal(file.get_slice("t2")[index], expected[index]), index
        assert reader.bytes_read < 10 * ROW
    # For these, the rows are not known before, so the tensor is read.
    others: list[Any] = [torch.tensor([1, 3]), [0, 2], None, torch.tensor(5), True]
    for index in others:
        file, reader = opened(model, "pt")
        assert torch.equal(file.get_slice("t2")[index], expected[index]), index
        assert reader.bytes_read == 40 * ROW
    file, _ = opened(model, "pt")
    with pytest.raises(IndexError):
        file.get_slice("t2")[40]
