"""The memory, descriptors and mappings that each call uses, also across forks."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import numpy as np
import pytest
import safetensors.numpy

HANG_SECONDS = 60
"""A child process that has not ended after this time is killed, and its test fails."""


def saved(path: Path, count: int, nbytes: int) -> Path:
    """Write a file of that many tensors, of which number n has the bytes n."""
    tensors = {f"{n:04}": np.full(nbytes, n % 256, np.uint8) for n in range(count)}
    safetensors.numpy.save_file(tensors, path)
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 4 tensors of 1 MiB."""
    return saved(tmp_path / "large.safetensors", 4, 1 << 20)


def maps() -> int:
    """Return the number of longshore's memfds that this process has mapped."""
    gc.collect()
    with open("/proc/self/maps") as lines:
        # Parts of a mapping with pages of different sizes have a line each, with the same inode.
        return len({line.split()[4] for line in lines if "memfd:longshore" in line})


def private_bytes() -> int:
    """Return the length of all private mappings of longshore's memfds."""
    with open("/proc/self/maps") as lines:
        places = [line.split()[0] for line in lines if "-p " in line and "memfd:longshore" in line]
    ends = [[int(end, 16) for end in place.split("-")] for place in places]
    return sum(end - start for start, end in ends)


def open_files() -> int:
    """Return the number of open descriptors."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


class Child:
    """A forked process, which runs a function and sends its result as a line of text."""

    def __init__(self, run: Callable[[], object]) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 and JAX warn of forks while there are other threads.
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            try:
                os.write(writing, repr(run()).encode())
                os._exit(0)
            except BaseException as error:
                os.write(writing, repr(error).encode())
            finally:
                os._exit(1)
        os.close(writing)
        self._reading = reading

    def result(self) -> str:
        """Wait for the end of the process and return its result."""
        readable, _, _ = select.select([self._reading], [], [], HANG_SECONDS)
        if not readable:
            os.kill(self.pid, signal.SIGKILL)
        text = os.read(self._reading, 4096).decode() if readable else "it hung"
        os.close(self._reading)
        _, status = os.waitpid(self.pid, 0)
        assert status == 0, (status, text)
        return text


def test_small_files_and_tensors_use_no_descriptor_and_no_mapping(
    tmp_path: Path, descriptors: Callable[[], set[str]]
) -> None:
    small = saved(tmp_path / "small.safetensors", 1, 200)
    many = saved(tmp_path / "many.safetensors", 3000, 256)
    before = descriptors()
    files = [longshore.numpy.load_file(small) for _ in range(1000)]
    with longshore.safe_open(many, "np", whole=False) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    assert descriptors() == before
    assert all((file["0000"] == 0).all() for file in files)
    assert all((array == int(name) % 256).all() for name, array in tensors.items())


@pytest.mark.parametrize("whole", [True, False])
def test_large_tensors_use_a_mapping_but_no_descriptor(tmp_path: Path, whole: bool) -> None:
    path = saved(tmp_path / "large.safetensors", 3, 2 << 20)
    before = (open_files(), maps())
    with longshore.safe_open(path, "np", whole=whole) as file:
        tensors = file.get_tensors()
    assert (open_files(), maps()) == (before[0], before[1] + (1 if whole else 3))
    assert [int(array[0]) for array in tensors.values()] == [0, 1, 2]
    del tensors, file
    assert (open_files(), maps()) == before


def test_a_caller_that_chooses_a_heap_gets_its_memory(tmp_path: Path) -> None:
    path = saved(tmp_path / "small.safetensors", 1, 200)
    before = maps()
    array = longshore.numpy.load_file(path, heap="memfd")["0000"]
    assert maps() == before + 1 and array.sum() == 0


def test_an_open_file_lets_go_of_tensors_that_were_requested(large: Path) -> None:
    loads: list[int] = []

    def count(done: int, total: int) -> None:
        loads.extend([total] if done == total else [])

    before = maps()
    with longshore.safe_open(large, "np", progress=count) as file:
        for name in file.keys():
            array = file.get_tensor(name).copy()
            assert maps() == before + (name != "0003")
        # A tensor that exists keeps the buffer of all others.
        array = file.get_tensor("0001")
        assert maps() == before + 1 and len(loads) == 2
        again = file.get_tensor("0001")
        assert np.shares_memory(array, again) and len(loads) == 2
        del array, again
        # Loaded for the second time, so further requests are likely.
        assert maps() == before + 1
        assert all((file.get_tensor(name) == int(name)).all() for name in file.keys())
        assert len(loads) == 2
    del file
    assert maps() == before


def test_a_small_slice_does_not_keep_the_buffer(large: Path) -> None:
    before = maps()
    with longshore.safe_open(large, "np") as file:
        whole = file.get_tensor("0001")
        part = file.get_slice("0002")[:16]
        assert maps() == before + 1
    del file, whole
    assert maps() == before and part.tolist() == [2] * 16


def test_a_fork_during_a_load_does_not_disturb_it(large: Path) -> None:
    children: list[Child] = []
    go, stop = os.pipe()

    def fork(done: int, total: int) -> None:
        if not children:
            # It lives until the load is over.
            children.append(Child(lambda: select.select([go], [], [], HANG_SECONDS)[0] == [go]))

    try:
        # Before the fork, the load has mapped its memory; after it, it seals the content.
        buffer = longshore.load(large, progress=fork)
    finally:
        os.write(stop, b"x")
        results = [child.result() for child in children]
        os.close(go)
        os.close(stop)
    assert results == ["True"]
    assert bytes(buffer) == large.read_bytes()


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_children_share_a_file_that_was_open_at_the_fork(large: Path, framework: str) -> None:
    if framework == "pt":
        pytest.importorskip("torch")
    loads: list[int] = []

    def count(done: int, total: int) -> None:
        loads.extend([os.getpid()] if done == total else [])

    with longshore.safe_open(large, framework, progress=count) as file:

        def sums() -> Any:
            assert loads == [os.getppid()]
            return [int(np.asarray(file.get_tensor(name)).sum()) for name in file.keys()]

        children = [Child(sums) for _ in range(4)]
        expected = repr([n << 20 for n in range(4)])
        assert [child.result() for child in children] == [expected] * 4
    assert loads == [os.getpid()]


def test_a_fork_loads_no_file_that_is_loaded_closed_or_read_in_parts(large: Path) -> None:
    loads: list[int] = []

    def count(done: int, total: int) -> None:
        loads.append(total)

    opened = longshore.safe_open(large, "np", whole=False, progress=count)
    with longshore.safe_open(large, "np", progress=count) as closed:
        pass
    assert Child(lambda: closed is not None).result() == "True" and not loads
    assert opened.keys()
    loaded = longshore.safe_open(large, "np", progress=count)
    loaded.get_tensors()
    loads.clear()
    assert Child(lambda: 1).result() == "1" and not loads


def test_a_load_that_fails_before_a_fork_is_repeated_by_the_child(large: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError(os.getpid())

    file = longshore.safe_open(large, "np", progress=fail)

    def request() -> bool:
        with pytest.raises(RuntimeError, match=str(os.getpid())):
            file.get_tensor("0000")
        return True

    assert Child(request).result() == "True"


def test_an_interrupt_before_a_fork_is_raised_after_it(large: Path) -> None:
    interrupts: list[int] = []

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    file = longshore.safe_open(large, "np", progress=interrupt)
    before = signal.signal(signal.SIGINT, lambda *_: interrupts.append(os.getpid()))
    try:
        assert Child(lambda: interrupts).result() == "[]"
        hang_at = time.monotonic() + HANG_SECONDS
        while not interrupts and time.monotonic() < hang_at:
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupts == [os.getpid()] and file.keys()


def test_torch_writes_to_copies_of_sealed_memory(large: Path) -> None:
    torch = pytest.importorskip("torch")
    import longshore.torch

    content = large.read_bytes()
    buffer = longshore.load(large)
    tensors = {name: longshore.torch.asarray(it) for name, it in buffer.tensors.items()}
    for tensor in tensors.values():
        tensor.add_(100)
    assert [int(tensor.sum()) for tensor in tensors.values()] == [
        (n + 100) << 20 for n in range(4)
    ]
    # Another tensor of the buffer shares the copies; the buffer and the file do not have them.
    assert torch.equal(longshore.torch.asarray(buffer.tensors["0001"]), tensors["0001"])
    assert bytes(buffer) == content == large.read_bytes()
    assert Path(buffer.path).read_bytes() == content
    assert longshore.load(large).tensors["0001"].data == buffer.tensors["0001"].data

    def write() -> int:
        # Not by torch, whose threads a child does not have.
        tensors["0002"].numpy()[:] = 0
        return int(tensors["0002"].numpy().sum())

    assert Child(write).result() == "0" and int(tensors["0002"].sum()) == 102 << 20


def test_torch_maps_sealed_memory_as_it_is_if_it_is_not_written_to(large: Path) -> None:
    pytest.importorskip("torch")
    import longshore.torch

    buffer = longshore.load(large)
    before = private_bytes()
    for tensor in buffer.tensors.values():
        view = longshore.torch.asarray(tensor, writable=False)
        assert view.data_ptr() == tensor.address
    assert private_bytes() == before
    copies = [longshore.torch.asarray(tensor) for tensor in buffer.tensors.values()]
    mapped = private_bytes() - before
    assert buffer.nbytes <= mapped < 2 * buffer.nbytes, "one mapping for all tensors"
    # It lives as long as a tensor does.
    buffer_content = bytes(buffer.tensors["0003"].data)
    del buffer, tensor, view
    assert bytes(copies[3].numpy()) == buffer_content


def test_torch_does_not_write_to_sealed_memory_of_the_hugetlb_pool(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import longshore.torch

    path = saved(tmp_path / "model.safetensors", 1, 2 << 20)
    try:
        buffer = longshore.load(path, heap="hugetlb")
    except longshore.LongshoreError as error:
        pytest.skip(str(error))
    tensor = buffer.tensors["0000"]
    with pytest.raises(BufferError, match="writable=False"):
        longshore.torch.asarray(tensor)
    assert longshore.torch.asarray(tensor, writable=False).data_ptr() == tensor.address
