"""`longshore.attach`, with a server of `longshore serve`."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import longshore
import longshore.numpy
import numpy as np
import pytest

COMMAND = os.environ.get("LONGSHORE_COMMAND") or shutil.which("longshore")
pytestmark = pytest.mark.skipif(
    COMMAND is None, reason="the command longshore was not found; set LONGSHORE_COMMAND to its path"
)


class Server:
    """A server, the directory it serves, and its socket."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        self.models.mkdir()
        self.socket = str(folder / "socket")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        command = [str(COMMAND), "serve", "--root", str(self.models), "--socket", self.socket]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while not os.path.exists(self.socket):
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.communicate()
            self.process = None

    def held(self) -> list[dict[str, Any]]:
        said = subprocess.run(
            [str(COMMAND), "ls", "--socket", self.socket, "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        held: list[dict[str, Any]] = json.loads(said.stdout)["held"]
        return held


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running server with one model in its directory."""
    server = Server(tmp_path)
    random = np.random.default_rng(5)
    arrays: dict[str, Any] = {
        "w": random.standard_normal((300, 1000), np.float32),
        "b": np.arange(7),
    }
    longshore.numpy.save_file(arrays, server.models / "model.safetensors", {"who": "test"})
    server.start()
    yield server
    server.stop()


def test_an_attached_model_equals_a_loaded_one(server: Server) -> None:
    path = server.models / "model.safetensors"
    with longshore.attach(path, socket=server.socket) as buffer:
        assert bytes(buffer) == path.read_bytes() and buffer.readonly
        assert Path(buffer.path).read_bytes() == path.read_bytes()
        assert (buffer.heap, buffer.stats) == ("served", None)
        assert buffer.files[0].metadata == {"who": "test"}
        expected = longshore.numpy.load_file(path)
        for name, tensor in buffer.tensors.items():
            array = longshore.numpy.asarray(tensor)
            assert np.array_equal(array, expected[name]) and not array.flags.writeable
            assert array.ctypes.data == buffer.address + tensor.offset
            del array
    assert buffer.closed


def test_a_model_is_loaded_once_and_its_attachments_are_counted(server: Server) -> None:
    first = longshore.attach("model.safetensors", socket=server.socket)
    number = first.attachment_id
    assert number is not None
    second = longshore.attach(number, socket=server.socket)
    assert second.attachment_id == number and server.held()[0]["attachments"] == 2
    # Both have the same memory.
    inodes = [os.fstat(buffer.fileno()).st_ino for buffer in (first, second)]
    assert inodes[0] == inodes[1]
    second.close()
    assert server.held()[0]["attachments"] == 1
    view = memoryview(first)
    with pytest.raises(BufferError):
        first.close()
    del first
    gc.collect()
    assert server.held()[0]["attachments"] == 1
    view.release()
    del view
    gc.collect()
    deadline = time.monotonic() + 30
    while server.held() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.held() == []


def test_a_forked_child_does_not_release_the_attachment(server: Server) -> None:
    buffer = longshore.attach("model.safetensors", socket=server.socket)
    child = os.fork()
    if child == 0:
        try:
            buffer.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert server.held()[0]["attachments"] == 1
    buffer.close()
    assert server.held() == []


def test_the_memory_outlives_the_server(server: Server) -> None:
    buffer = longshore.attach("model.safetensors", socket=server.socket)
    expected = (server.models / "model.safetensors").read_bytes()
    server.stop(signal.SIGKILL)
    assert bytes(buffer) == expected
    buffer.close()
    with pytest.raises(longshore.ServerError, match="longshore serve"):
        longshore.attach("model.safetensors", socket=server.socket)


def test_refusals_give_a_reason_and_leave_nothing_behind(
    server: Server, tmp_path: Path, descriptors: Callable[[], set[str]]
) -> None:
    outside = tmp_path / "outside.safetensors"
    longshore.numpy.save_file({"a": np.zeros(3)}, outside)
    (server.models / "broken.safetensors").write_bytes(b"nothing of the kind")
    before = descriptors()
    with pytest.raises(PermissionError, match="refuses") as refused:
        longshore.attach(outside, socket=server.socket)
    assert refused.value.errno == errno.EACCES
    with pytest.raises(PermissionError):
        longshore.attach(server.models / ".." / "outside.safetensors", socket=server.socket)
    with pytest.raises(FileNotFoundError, match="nothing called 'no such model'") as missing:
        longshore.attach("no such model", socket=server.socket)
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(FileNotFoundError):
        longshore.attach(12345, socket=server.socket)
    with pytest.raises(longshore.FormatError, match="not a valid safetensors file") as broken:
        longshore.attach("broken.safetensors", socket=server.socket)
    assert broken.value.errno == errno.EBADMSG
    with pytest.raises(ConnectionError, match="no server") as nobody:
        longshore.attach("model.safetensors", socket=tmp_path / "no socket")
    assert nobody.value.errno in (errno.ENOENT, errno.ECONNREFUSED)
    assert descriptors() == before


def test_loading_a_file_by_attaching_it(server: Server) -> None:
    path = server.models / "model.safetensors"
    arrays = longshore.numpy.load_file(path, attach=True, socket=server.socket)
    assert arrays["b"].tolist() == list(range(7)) and not arrays["b"].flags.writeable
    assert [model["attachments"] for model in server.held()] == [1]
    with pytest.raises(ValueError, match=r"do not pass align, heap"):
        longshore.numpy.load_file(path, attach=True, socket=server.socket, align=64, heap="memfd")
    with pytest.raises(ValueError, match="pass attach=True"):
        longshore.numpy.load_file(path, socket=server.socket)
    again = pickle.loads(pickle.dumps(longshore.attach(path, socket=server.socket)))
    assert again.attachment_id is not None and again.nbytes == path.stat().st_size


def test_gguf_and_raw_files(server: Server) -> None:
    path = server.models / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("t", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    buffer = longshore.attach("model.gguf", socket=server.socket)
    assert buffer.files[0].format == "gguf"
    assert buffer.files[0].metadata["general.architecture"] == "llama"
    assert longshore.numpy.asarray(buffer.tensors["t"]).sum() == 66
    raw = longshore.attach("model.gguf", socket=server.socket, format="raw")
    assert not raw.tensors and bytes(raw) == path.read_bytes()


def test_progress_reports_the_load_of_the_server(server: Server) -> None:
    with (server.models / "sparse").open("wb") as file:
        file.truncate(512 << 20)
    told: list[tuple[int, int]] = []
    buffer = longshore.attach(
        "sparse", socket=server.socket, progress=lambda done, total: told.append((done, total))
    )
    assert told == sorted(told) and all(total == buffer.nbytes for _, total in told if total)


class StopError(Exception):
    """The exception that a progress callable raises to cancel."""


def test_an_interrupted_attach_leaves_nothing_behind(
    server: Server, descriptors: Callable[[], set[str]]
) -> None:
    with (server.models / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    before = descriptors()
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            # Inside the block: on a slow machine, the signal comes before the call.
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            longshore.attach("sparse", socket=server.socket)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert descriptors() == before
    deadline = time.monotonic() + 30
    while server.held() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.held() == []


def test_progress_is_not_called_again_after_it_raised(server: Server) -> None:
    with (server.models / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        # The server sends more reports meanwhile.
        time.sleep(0.3)
        raise StopError(done, total)

    with pytest.raises(StopError):
        longshore.attach("sparse", socket=server.socket, progress=stop)
    assert calls == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nothing_is_sent_to_the_server_of_an_untrusted_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = f"{folder}/socket"
        received, sends = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(4242)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(path)
                listener.listen()
                os.write(sends, b"listening\n")
                for _ in range(2):
                    message = listener.accept()[0].recv(100)
                    os.write(sends, b"%d bytes\n" % len(message))
            os._exit(0)
        os.close(sends)
        with open(received, "rb", buffering=0) as lines:
            assert lines.readline() == b"listening\n"
            with pytest.raises(longshore.errors.PermissionDeniedError, match="user 4242 runs"):
                longshore.attach(__file__, socket=path)
            assert lines.readline() == b"0 bytes\n"
            with pytest.raises(longshore.errors.ServerError):
                longshore.attach(__file__, socket=path, trust_uid=[4242])
            assert lines.readline() == b"12 bytes\n"
        os.waitpid(child, 0)


def test_torch_writes_to_copies_of_attached_memory(server: Server) -> None:
    torch = pytest.importorskip("torch")
    import longshore.torch

    path = server.models / "model.safetensors"
    buffer, other = (longshore.attach(path, socket=server.socket) for _ in range(2))
    before = bytes(buffer)
    tensors = longshore.torch.load_file(path, attach=True, socket=server.socket)
    tensors["w"].zero_()
    written = longshore.torch.asarray(buffer.tensors["w"]).fill_(1)
    assert not tensors["w"].any() and torch.equal(written, torch.ones_like(written))
    assert bytes(buffer) == bytes(other) == before == path.read_bytes()
    view = longshore.torch.tensors(buffer, writable=False)["w"]
    assert view.data_ptr() == buffer.tensors["w"].address
