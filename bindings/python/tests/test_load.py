"""`longshore.load` and the buffer that it returns."""

from __future__ import annotations

import errno
import gc
import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import longshore
import pytest

MIB = 1 << 20


def random_file(path: Path, nbytes: int) -> bytes:
    content = random.Random(nbytes).randbytes(nbytes)
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 4095, 4096, 4097, 2 * MIB - 1, 2 * MIB + 1])
@pytest.mark.parametrize("mode", ["auto", "direct", "buffered"])
def test_the_content_equals_the_file(tmp_path: Path, nbytes: int, mode: str) -> None:
    content = random_file(tmp_path / "file", nbytes)
    buffer = longshore.load(tmp_path / "file", mode=mode)
    assert buffer.nbytes == nbytes
    assert bytes(buffer) == content
    assert buffer.stats is not None and buffer.stats.bytes_read == nbytes
    assert sum(buffer.stats.bytes_by_mode.values()) == nbytes
    assert buffer.stats.nbytes == nbytes and sum(buffer.stats.page_bytes.values()) >= nbytes


def test_descriptor_path_and_mapping_have_the_same_content(tmp_path: Path) -> None:
    content = random_file(tmp_path / "file", 3 * MIB + 5)
    buffer = longshore.load(tmp_path / "file")
    assert buffer.path == f"/proc/{os.getpid()}/fd/{buffer.fileno()}"
    assert Path(buffer.path).read_bytes() == content
    with mmap.mmap(buffer.fileno(), buffer.nbytes, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == content
    # Another process, which has only the path.
    count = "import sys; print(hash(open(sys.argv[1], 'rb').read()) and len(open(sys.argv[1], 'rb').read()))"
    said = subprocess.run(
        [sys.executable, "-c", count, buffer.path], capture_output=True, text=True, check=True
    )
    assert int(said.stdout) == len(content)
    digest = subprocess.run(["sha256sum", buffer.path], capture_output=True, text=True, check=True)
    assert digest.stdout.split()[0] == hashlib.sha256(content).hexdigest()


def test_sealed_memory_cannot_be_written_to(tmp_path: Path) -> None:
    random_file(tmp_path / "file", 5000)
    buffer = longshore.load(tmp_path / "file")
    assert buffer.readonly and memoryview(buffer).readonly
    with pytest.raises(TypeError):
        memoryview(buffer)[0] = 1
    with pytest.raises(OSError):
        os.pwrite(os.open(buffer.path, os.O_RDWR), b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(buffer.fileno(), 5000)


def test_writable_memory_is_written_to_in_place(tmp_path: Path) -> None:
    content = random_file(tmp_path / "file", 5000)
    buffer = longshore.load(tmp_path / "file", writable=True)
    assert not buffer.readonly
    memoryview(buffer)[17] = content[17] ^ 0xFF
    assert Path(buffer.path).read_bytes()[17] == content[17] ^ 0xFF
    assert (tmp_path / "file").read_bytes() == content
    with pytest.raises(ValueError, match="heap 'memfd'"):
        longshore.load(tmp_path / "file", heap="udmabuf", writable=True)


def test_files_follow_one_another_at_page_boundaries(tmp_path: Path) -> None:
    contents = [random_file(tmp_path / str(n), nbytes) for n, nbytes in enumerate([5000, 0, 4096])]
    buffer = longshore.load([tmp_path / str(n) for n in range(3)])
    assert [file.offset for file in buffer.files] == [0, 8192, 8192]
    for file, content in zip(buffer.files, contents, strict=True):
        assert bytes(memoryview(buffer)[file.offset : file.offset + file.nbytes]) == content
        assert file.format == "raw" and not file.tensors
    paths = [file.path for file in buffer.files]
    assert paths == [tmp_path / str(n) for n in range(3)]
    assert all(type(path) is type(tmp_path) and path.name for path in paths)


def test_closing_frees_the_memory_unless_there_are_views(
    tmp_path: Path, descriptors: Callable[[], set[str]]
) -> None:
    content = random_file(tmp_path / "file", 5000)
    before = descriptors()
    with longshore.load(tmp_path / "file") as buffer:
        view = memoryview(buffer)[1:]
        with pytest.raises(BufferError, match="1 view"):
            buffer.close()
        assert bytes(view) == content[1:] and not buffer.closed
        view.release()
    assert buffer.closed and descriptors() == before
    buffer.close()
    for use in (lambda: memoryview(buffer), buffer.fileno, lambda: buffer.path):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert repr(buffer) == "<longshore.Buffer: closed>"
    # Without `close`, the memory is freed with the last reference.
    view = memoryview(longshore.load(tmp_path / "file"))
    gc.collect()
    assert bytes(view) == content and descriptors() != before
    view.release()
    del view
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize("kind", ["crc32c", "xxh3", "sha256"])
def test_checksums_are_computed_and_compared_with_a_manifest(tmp_path: Path, kind: str) -> None:
    content = random_file(tmp_path / "file", 70_000)
    digests = longshore.load(tmp_path / "file", verify=kind).files[0].digests
    assert set(digests) == {kind}
    if kind == "sha256":
        assert digests[kind] == hashlib.sha256(content).hexdigest()
    manifest = tmp_path / "SUMS"
    manifest.write_text(f"{digests[kind]}  file\n")
    assert longshore.load(tmp_path / "file", verify=manifest).files[0].digests == digests
    (tmp_path / "file").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(longshore.ChecksumError, match=digests[kind]):
        longshore.load(tmp_path / "file", verify=str(manifest))


def test_several_checksums_at_once(tmp_path: Path) -> None:
    content = random_file(tmp_path / "file", 5)
    digests = longshore.load(tmp_path / "file", verify=["sha256", "crc32c"]).files[0].digests
    assert digests["sha256"] == hashlib.sha256(content).hexdigest() and len(digests) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heap": "mmap"}, "unknown heap"),
        ({"mode": "fast"}, "unknown read mode"),
        ({"format": "pt"}, "unknown format"),
        ({"verify": ["md5"]}, "unknown checksum"),
        ({"align": 3}, "not a power of two"),
    ],
)
def test_invalid_words_are_refused(
    example: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        longshore.load(example, **arguments)  # type: ignore[arg-type]


def test_an_empty_list_of_files_is_refused() -> None:
    with pytest.raises(ValueError, match="no file is named"):
        longshore.load([])


def test_failures_give_a_reason_and_leave_nothing_behind(
    tmp_path: Path, descriptors: Callable[[], set[str]]
) -> None:
    (tmp_path / "short.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    (tmp_path / "empty").mkdir()
    before = descriptors()
    with pytest.raises(FileNotFoundError, match="nothing") as caught:
        longshore.load(tmp_path / "nothing")
    assert isinstance(caught.value, longshore.LongshoreError)
    assert caught.value.errno == 2 and caught.value.filename == str(tmp_path / "nothing")
    with pytest.raises(longshore.FormatError, match="cut short") as malformed:
        longshore.load(tmp_path / "short.safetensors")
    assert isinstance(malformed.value, longshore.SafetensorError)
    assert isinstance(malformed.value, ValueError)
    assert malformed.value.errno == errno.EBADMSG
    with pytest.raises(FileNotFoundError, match="no safetensors and no GGUF files"):
        longshore.load(tmp_path / "empty")
    with pytest.raises(longshore.UnavailableError, match="no dma-heap named 'none'") as heap:
        longshore.load(tmp_path / "short.safetensors", heap="dma-heap:none", format="raw")
    assert heap.value.errno == errno.ENOENT
    with (tmp_path / "vast").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(MemoryError, match="are needed") as refused:
        longshore.load(tmp_path / "vast")
    assert isinstance(refused.value, longshore.OutOfMemoryError)
    assert refused.value.errno == errno.ENOMEM
    assert descriptors() == before


def test_progress_is_reported_to_a_callable(tmp_path: Path) -> None:
    random_file(tmp_path / "file", 3 * MIB)
    told: list[tuple[int, int]] = []
    longshore.load(tmp_path / "file", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3 * MIB, 3 * MIB) and told == sorted(told)


class StopError(Exception):
    """The exception that a progress callable raises to stop a load."""


def test_an_exception_in_progress_stops_the_load(
    tmp_path: Path, descriptors: Callable[[], set[str]]
) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(512 * MIB)
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        # The load goes on during this call.
        time.sleep(0.1)
        raise StopError(done, total)

    before = descriptors()
    with pytest.raises(StopError):
        longshore.load(tmp_path / "sparse", progress=stop)
    assert descriptors() == before and calls == 1


def test_ctrl_c_stops_the_load(tmp_path: Path, descriptors: Callable[[], set[str]]) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1024 * MIB)
    # `setdefault` is in C, so no Python bytecode runs that could handle the signal.
    told: dict[int, int] = {}
    before = descriptors()
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            # Inside the block: on a slow machine, the signal comes before the load begins.
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            longshore.load(tmp_path / "sparse", progress=told.setdefault)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert max(told, default=0) < 1024 * MIB, "it was stopped, and did not end by itself"
    assert descriptors() == before


def test_other_threads_run_meanwhile(tmp_path: Path) -> None:
    random_file(tmp_path / "file", 3 * MIB)
    begun = threading.Event()
    ran: list[bool] = []

    def wait_and_run() -> None:
        begun.wait()
        ran.append(True)

    thread = threading.Thread(target=wait_and_run)
    thread.start()
    # From here on the interpreter takes the GIL from no thread: the other thread runs only if a load
    # releases it.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        begun.set()
        loads = 0
        while not ran and loads < 100:
            longshore.load(tmp_path / "file")
            loads += 1
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert loads < 100


def test_progress_shows_a_bar_or_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    random_file(tmp_path / "file", 3 * MIB)
    longshore.load(tmp_path / "file", progress=True)
    assert "B/s]" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    longshore.load(tmp_path / "file", progress=True)
    assert "file: 100% of 0.00 GB" in capsys.readouterr().err
    # A later error does not have the missing tqdm as its context.
    with pytest.raises(FileNotFoundError) as caught:
        longshore.load(tmp_path / "nothing", progress=True)
    assert caught.value.__context__ is None


def test_two_loads_at_once(tmp_path: Path) -> None:
    contents = [random_file(tmp_path / str(n), 3 * MIB + n) for n in range(4)]
    found: dict[int, bytes] = {}

    def one(n: int) -> None:
        found[n] = bytes(longshore.load(tmp_path / str(n)))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(4)] == contents


def test_importing_longshore_imports_no_large_package() -> None:
    code = "import sys; before = set(sys.modules); import longshore; print(*sorted(set(sys.modules) - before))"
    said = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    imported = said.stdout.split()
    assert "longshore._core" in imported
    heavy = {"numpy", "torch", "jax", "tqdm", "typing", "json", "ml_dtypes", "re", "inspect"}
    assert not heavy & set(imported)
    assert len(imported) < 29, imported
