"""Buffers and opened files are pickled by their source, and loaded again in the other process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import longshore
import longshore.gguf
import longshore.numpy
import numpy as np
import pytest

WAIT_SECONDS = 60


def sums(folder: str, sends: Any, received: list[Any]) -> None:
    """Run in the other process, in another working directory."""
    os.chdir(folder)
    buffer, file = (pickle.loads(content) for content in received)
    arrays = longshore.numpy.tensors(buffer)
    sends.send([float(arrays["weight"].sum()), float(file.get_tensor("bias").sum()), buffer.readonly])


def test_a_process_with_another_working_directory_loads_them_again(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.path.basename(example)
    file = longshore.safe_open(name, "np", align=64, progress=lambda done, total: None)
    pickled = [pickle.dumps(longshore.load(name, align=64)), pickle.dumps(file)]
    (tmp_path / "elsewhere").mkdir()
    context = multiprocessing.get_context("spawn")
    receives, sends = context.Pipe(duplex=False)
    child = context.Process(target=sums, args=(str(tmp_path / "elsewhere"), sends, pickled))
    child.start()
    try:
        assert receives.poll(WAIT_SECONDS) and receives.recv() == [66.0, 4.0, True]
    finally:
        child.join(WAIT_SECONDS)
        if child.is_alive():
            child.kill()


def test_arguments_of_the_load_are_kept(example: str) -> None:
    buffer = pickle.loads(pickle.dumps(longshore.load(example, align=4096, writable=True)))
    assert not buffer.readonly and buffer["weight"].address % 4096 == 0
    # The copy can be pickled, too.
    assert pickle.loads(pickle.dumps(buffer))["weight"].address % 4096 == 0


@pytest.mark.parametrize("what", [longshore.load, lambda path: longshore.safe_open(path, "np")])
@pytest.mark.parametrize("how", ["written to", "replaced", "deleted"])
def test_a_source_that_changed_is_refused(
    what: Callable[[str], Any], how: str, example: str, descriptors: Callable[[], set[str]]
) -> None:
    before = descriptors()
    pickled = pickle.dumps(what(example))
    content = Path(example).read_bytes()
    if how == "written to":
        with open(example, "ab") as file:
            file.write(b" ")
            os.utime(file.fileno(), (1, 1))
        Path(example).write_bytes(content)
        os.utime(example, (1, 1))
    else:
        os.rename(example, f"{example}.old")
    if how == "replaced":
        Path(example).write_bytes(content)
    kind = FileNotFoundError if how == "deleted" else longshore.FileChangedError
    with pytest.raises(kind) as raised:
        pickle.loads(pickled)
    assert example in str(raised.value) and raised.value.filename == example
    del raised
    assert descriptors() == before


def test_buffers_without_a_source_are_refused(example: str) -> None:
    with open(example, "rb") as opened:
        buffers = [longshore.load(Path(example).read_bytes()), longshore.load(opened)]
    for buffer in buffers:
        with pytest.raises(TypeError, match="cannot pickle a buffer of descriptors or bytes"):
            pickle.dumps(buffer)
    buffer = longshore.load(example)
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(buffer)
    with longshore.safe_open(example, "np") as file:
        pass
    with pytest.raises(longshore.SafetensorError, match="closed"):
        pickle.dumps(file)


def test_a_gguf_file(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(str(tmp_path / "a.gguf"), "llama")
    writer.add_tensor("t", np.arange(6, dtype=np.float32))
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    model = pickle.loads(pickle.dumps(longshore.gguf.load(tmp_path / "a.gguf")))
    assert model["t"].data.tolist() == [0, 1, 2, 3, 4, 5]
