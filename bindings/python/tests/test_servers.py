"""Models on servers: an S3 server in another process, and small HTTP servers that fail."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import numpy as np
import pytest
from longshore._servers import warn

SECRET = "a-secret-that-nothing-shows"
COMMAND = os.environ.get("LONGSHORE_COMMAND") or shutil.which("longshore")
ARRAYS = {
    "large": np.arange(3 << 20, dtype=np.float32).reshape(3, -1),
    "small": np.ones(4, np.float32),
}
TENSORS = longshore.numpy.save(ARRAYS)
SHARDS = {f"{name}.safetensors": longshore.numpy.save({name: ARRAYS[name]}) for name in ARRAYS}
INDEX = {"metadata": {}, "weight_map": {name: f"{name}.safetensors" for name in ARRAYS}}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server that ends with the tests."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("moto") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        answers(server, url, log)
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket="models")
        objects = {
            "one.safetensors": TENSORS,
            "sharded/model.safetensors.index.json": json.dumps(INDEX).encode(),
            **{f"sharded/{name}": content for name, content in SHARDS.items()},
            "single/model.safetensors": TENSORS,
            "single/model.fp16.safetensors": SHARDS["small.safetensors"],
        }
        for key, content in objects.items():
            client.put_object(Bucket="models", Key=key, Body=content)
        client.close()
        yield url
    finally:
        server.terminate()
        server.wait()


def answers(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                pytest.fail(f"the S3 server did not start: {log.read_text()}")
            time.sleep(0.1)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of object stores and proxies from the environment."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def options(endpoint: str) -> dict[str, str]:
    """The options for the S3 server."""
    return {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": SECRET,
    }


def check(tensors: dict[str, Any]) -> None:
    """Compare tensors with those that were uploaded."""
    assert sorted(tensors) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(tensors[name], array)


@pytest.mark.skipif(COMMAND is None, reason="the command longshore was not found")
def test_models_of_a_store_are_attached_by_their_names(endpoint: str, tmp_path: Path) -> None:
    where = str(tmp_path / "socket")
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    command = [str(COMMAND), "serve", "--root", "s3://models/", "--socket", where]
    with subprocess.Popen(
        command, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        while not os.path.exists(where):
            assert server.poll() is None, server.communicate()
            time.sleep(0.01)
        # The prefix `single/` has no index, so it is listed. This process has no credentials.
        for name in ("one.safetensors", "sharded/", "single/", "single"):
            with longshore.attach(f"s3://models/{name}", socket=where) as buffer:
                assert buffer.heap == "served"
                for tensor in ARRAYS:
                    array = longshore.numpy.asarray(buffer.tensors[tensor])
                    np.testing.assert_array_equal(array, ARRAYS[tensor])
                    del array
        arrays = longshore.numpy.load_file("s3://models/sharded/", attach=True, socket=where)
        check(arrays)
        del arrays
        with pytest.raises(longshore.NotFoundError, match="no such file"):
            longshore.attach("s3://models/none.safetensors", socket=where)
        with pytest.raises(longshore.NotFoundError, match="no safetensors"):
            longshore.attach("s3://models/none/", socket=where)
        with pytest.raises(longshore.PermissionDeniedError, match="is not served"):
            longshore.attach("s3://others/one.safetensors", socket=where)
        server.terminate()
        log = server.communicate()[0].decode()
    assert "every process that can connect" in log and SECRET not in log


@pytest.mark.parametrize(
    "source", ["s3://models/one.safetensors", "s3://models/sharded/", "s3://models/single/"]
)
def test_a_file_and_a_prefix_are_loaded(source: str, options: dict[str, str]) -> None:
    given: dict[str, Any] = {"storage_options": options, "timeout": 60, "connections": 3}
    with longshore.load(source, verify="crc32c", **given) as buffer:
        check(longshore.numpy.tensors(buffer))
        assert buffer.stats is not None
        assert buffer.stats.bytes_by_mode["remote"] == buffer.stats.bytes_read > len(TENSORS) // 2
        assert SECRET not in repr(buffer) + repr(buffer.stats) + repr(buffer.files)
        with pytest.raises(TypeError, match="their values can be secret") as refused:
            pickle.dumps(buffer)
        assert SECRET not in str(refused.value)
    check(longshore.numpy.load_file(source, align=64, **given))
    with longshore.numpy.stream(source, **given) as tensors:
        check(dict(tensors))


def test_environment_variables_name_the_server(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in options.items():
        monkeypatch.setenv(name.upper(), value)
    with longshore.load("s3://models/one.safetensors", timeout=60.0) as buffer:
        check(longshore.numpy.tensors(buffer))
        with pickle.loads(pickle.dumps(buffer)) as again:
            assert bytes(again) == bytes(buffer)
    with longshore.safe_open("s3://models/sharded/", "np", whole=False) as file:
        with pickle.loads(pickle.dumps(file)) as again:
            assert list(again.get_tensor("small")) == [1] * 4
    # Options replace the variables.
    elsewhere = {"aws_endpoint_url": unused()}
    with pytest.raises(OSError, match="refused"):
        longshore.load("s3://models/one.safetensors", storage_options=elsewhere)


def unused() -> str:
    """Return the URL of a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("whole", [True, False])
def test_an_open_file_reads_tensors_and_rows(whole: bool, options: dict[str, str]) -> None:
    with longshore.safe_open(
        "s3://models/sharded/", "np", whole=whole, storage_options=options, timeout=60
    ) as file:
        assert file.keys() == sorted(ARRAYS)
        np.testing.assert_array_equal(file.get_slice("large")[1:2], ARRAYS["large"][1:2])
        check(file.get_tensors())
        assert SECRET not in repr(file)
        with pytest.raises(TypeError, match="storage_options"):
            pickle.dumps(file)


def test_the_time_limit_of_an_open_file_is_that_of_each_load(options: dict[str, str]) -> None:
    with longshore.safe_open(
        "s3://models/one.safetensors", "np", whole=False, storage_options=options, timeout=2
    ) as file:
        for name in ("small", "large"):
            time.sleep(1.5)
            np.testing.assert_array_equal(file.get_tensor(name), ARRAYS[name])


def test_rows_of_a_stream_need_only_their_bytes(options: dict[str, str]) -> None:
    with longshore.numpy.stream(
        "s3://models/one.safetensors", select="large", rows=(2, 3), storage_options=options
    ) as tensors:
        np.testing.assert_array_equal(dict(tensors)["large"], ARRAYS["large"][2:])
        assert tensors.stats["bytes_read"] < len(TENSORS) // 2


def test_find_files_searches_a_bucket(options: dict[str, str]) -> None:
    def found(source: str, **more: Any) -> list[str]:
        return longshore.find_files(source, storage_options=options, timeout=60, **more)

    index = "s3://models/sharded/model.safetensors.index.json"
    assert found("s3://models/sharded/") == found("s3://models/sharded") == [index]
    assert found("s3://models/single/", variant="fp16") == [
        "s3://models/single/model.fp16.safetensors"
    ]
    assert found("s3://models/sharded/", include="l*") == [
        "s3://models/sharded/large.safetensors"
    ]
    with pytest.raises(FileNotFoundError):
        found("s3://models/none/")


@pytest.mark.parametrize("source", ["s3://models/none.safetensors", "s3://none/one.safetensors"])
def test_missing_objects_and_buckets_are_not_found(source: str, options: dict[str, str]) -> None:
    calls: list[Callable[[], object]] = [
        lambda: longshore.load(source, storage_options=options),
        lambda: longshore.stream(source, storage_options=options),
        lambda: longshore.safe_open(source, "np", storage_options=options),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError, match="no such file") as missing:
            call()
        assert isinstance(missing.value, longshore.NotFoundError)
        assert (missing.value.filename, missing.value.errno) == (source, 2)
        assert SECRET not in repr(missing.value) + str(missing.value)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"storage_options": {"aws_acess_key": SECRET}}, ValueError, '"aws_acess_key" is no'),
        ({"storage_options": {"aws_region": 5}}, TypeError, "'aws_region' must be a str"),
        ({"storage_options": {3: SECRET}}, TypeError, "the names must be str, not int"),
        ({"storage_options": [("aws_region", SECRET)]}, TypeError, "must be a mapping, not list"),
        ({"timeout": 0}, ValueError, "timeout=0 is not"),
        ({"timeout": -1.5}, ValueError, "timeout=-1.5 is not"),
        ({"timeout": float("inf")}, ValueError, "timeout=inf is not"),
        ({"timeout": float("nan")}, ValueError, "timeout=nan is not"),
        ({"connections": 0}, ValueError, "connections=0 is not a number from 1 to 256"),
        ({"connections": 257}, ValueError, "connections=257"),
        ({"connections": 1.5}, TypeError, "integer"),
    ],
)
def test_wrong_values_are_named_and_not_shown(
    given: dict[str, Any], kind: type[Exception], message: str, example: str
) -> None:
    calls: list[Callable[..., object]] = [
        longshore.load,
        longshore.stream,
        longshore.numpy.load_file,
    ]
    if "connections" not in given:
        calls.append(longshore.find_files)
    for call in calls:
        with pytest.raises(kind, match=message) as raised:
            call(example, **given)
        assert SECRET not in str(raised.value)


def test_values_that_cannot_be_used_are_not_shown(options: dict[str, str]) -> None:
    wrong = {"aws_skip_signature": SECRET, "aws_endpoint_url": SECRET, "aws_region": f"{SECRET}\n"}
    for name, value in wrong.items():
        with pytest.raises(OSError) as raised:
            longshore.load("s3://models/one.safetensors", storage_options={**options, name: value})
        assert SECRET not in repr(raised.value) + str(raised.value)


def test_a_silent_server_ends_a_call_at_its_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}/a.safetensors"
        options = {
            "aws_endpoint_url": f"http://127.0.0.1:{port}",
            "aws_allow_http": "true",
            "aws_access_key_id": "key",
            "aws_secret_access_key": SECRET,
        }
        calls: list[Callable[[], object]] = [
            lambda: longshore.load(url, timeout=0.3),
            lambda: longshore.stream(url, timeout=0.3),
            lambda: longshore.safe_open(url, "np", timeout=0.3),
            lambda: longshore.load("s3://a/b/", storage_options=options, timeout=0.3),
            lambda: longshore.find_files("s3://a/b", storage_options=options, timeout=0.3),
        ]
        for call in calls:
            began = time.monotonic()
            with pytest.raises(TimeoutError, match="time limit") as late:
                call()
            assert isinstance(late.value, longshore.TimedOutError)
            assert late.value.errno == 110 and time.monotonic() - began < 5


@contextmanager
def serve(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """An HTTP server whose requests `answer` answers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler: http.server.BaseHTTPRequestHandler, status: int, content: bytes = b"") -> None:
    """Send a whole answer, or the requested range of the content with status 206."""
    handler.send_response(status)
    if status == 206:
        first, last = handler.headers["Range"].removeprefix("bytes=").split("-")
        end = min(int(last) + 1, len(content))
        handler.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(content)}")
        content = content[int(first) : end]
        handler.send_header("ETag", '"1"')
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


@pytest.mark.parametrize(
    ("status", "kind", "errno"),
    [
        (404, longshore.NotFoundError, 2),
        (401, longshore.PermissionDeniedError, 13),
        (403, longshore.PermissionDeniedError, 13),
        (418, longshore.LongshoreError, 5),
    ],
)
def test_statuses_have_their_exceptions(status: int, kind: type[OSError], errno: int) -> None:
    with serve(lambda handler: send(handler, status)) as url:
        path = f"{url}/a.safetensors?signature={SECRET}"
        with pytest.raises(kind) as at_open:
            longshore.load(path)
        assert type(at_open.value) is kind and at_open.value.errno == errno
        assert at_open.value.filename == f"{url}/a.safetensors"
        assert SECRET not in str(at_open.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, longshore.NotFoundError),
        (403, longshore.PermissionDeniedError),
        (418, longshore.ReadError),
        (0, longshore.TimedOutError),
    ],
)
def test_reads_that_fail_have_their_exceptions(status: int, kind: type[OSError]) -> None:
    ended = threading.Event()

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        if handler.headers["Range"].startswith("bytes=0-65535"):
            send(handler, 206, TENSORS)
        elif status:
            send(handler, status)
        else:
            ended.wait(30)

    with serve(answer) as url:
        path, timeout = f"{url}/a.safetensors", None if status else 1.0
        with pytest.raises(kind) as raised:
            longshore.load(path, timeout=timeout)
        assert type(raised.value) is kind
        with pytest.raises(kind), longshore.stream(path, timeout=timeout) as tensors:
            list(tensors)
        ended.set()


def test_a_port_on_which_nothing_listens_is_refused() -> None:
    with pytest.raises(longshore.LongshoreError, match="refused") as raised:
        longshore.load(f"{unused()}/a.safetensors")
    assert raised.value.errno == 111


def test_progress_does_not_show_signatures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without tqdm, lines are printed.
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with serve(lambda handler: send(handler, 206, TENSORS)) as url:
        longshore.load(f"{url}/a.safetensors?signature={SECRET}", progress=True)
    shown = capsys.readouterr().err
    assert f"{url}/a.safetensors: 100%" in shown and SECRET not in shown


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository that is in the local cache, while the Hub does not answer."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(TENSORS)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", unused())
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return "hf://org/name"


def test_notes_are_warnings_at_the_line_of_the_program(cached: str) -> None:
    calls: list[Callable[[str], object]] = [
        longshore.load,
        longshore.stream,
        longshore.numpy.load_file,
        longshore.find_files,
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="the Hub did not answer") as shown:
            call(cached)
        assert len(shown) == 1 and shown[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning):
                call(cached)
    with pytest.warns(UserWarning, match="once"):
        warn("once")


def test_an_interrupt_and_a_token_end_the_search() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/model.safetensors"
        began = time.monotonic()
        # A shell lets programs in the background ignore it.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                longshore.load(url)
            timer.join()
        finally:
            signal.signal(signal.SIGINT, before)
        token = longshore.CancelToken()
        timer = threading.Timer(0.3, token.cancel)
        timer.start()
        with pytest.raises(longshore.CancelledError):
            longshore.load(url, cancel=token)
        timer.join()
        # Without them, the silence of a server ends a call after some minutes.
        assert time.monotonic() - began < 20
