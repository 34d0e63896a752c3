"""Models in Azure Blob Storage and Google Cloud Storage, by the emulators azurite and fake-gcs-server.

bindings/python/stores.sh installs both and names them in the environment.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import longshore
import longshore.numpy
import numpy as np
import pytest

ARRAYS = {
    "large": np.arange(3 << 20, dtype=np.float32).reshape(3, -1),
    "small": np.ones(4, np.float32),
}
SHARDS = {f"{name}.safetensors": longshore.numpy.save({name: ARRAYS[name]}) for name in ARRAYS}
INDEX = {"metadata": {}, "weight_map": {name: f"{name}.safetensors" for name in ARRAYS}}
OBJECTS = {
    "one.safetensors": longshore.numpy.save(ARRAYS),
    "sharded/model.safetensors.index.json": json.dumps(INDEX).encode(),
    **{f"sharded/{name}": content for name, content in SHARDS.items()},
    "folders/inner/odd name+%41.safetensors": longshore.numpy.save(ARRAYS),
}
# The well-known account of the emulator.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of object stores and proxies from the environment."""
    for name in list(os.environ):
        if name.startswith(("AZURE_", "GOOGLE_", "STORAGE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def program(variable: str) -> str:
    """The path of an emulator; without one, the test is skipped."""
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: run bindings/python/stores.sh")
    return os.environ[variable]


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """A server that ends with the block."""
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > until:
                    pytest.fail(f"{command[0]} did not start: {log.read_text()}")
                time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables for a Google Cloud Storage with the objects."""
    emulator, port = program("LONGSHORE_FAKE_GCS"), free_port()
    host = f"127.0.0.1:{port}"
    command = [emulator, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", host]
    with running(command, port, tmp_path_factory.mktemp("google") / "log"):
        bucket = json.dumps({"name": "models"}).encode()
        send(urllib.request.Request(f"http://{host}/storage/v1/b", bucket))
        for key, content in OBJECTS.items():
            name = urllib.parse.quote(key, safe="")
            url = f"http://{host}/upload/storage/v1/b/models/o?uploadType=media&name={name}"
            send(urllib.request.Request(url, content))
        yield {"STORAGE_EMULATOR_HOST": host}


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables for an Azure Blob Storage with the objects."""
    emulator, port = program("LONGSHORE_AZURITE"), free_port()
    folder = tmp_path_factory.mktemp("azure")
    command = [emulator, "--blobPort", str(port), "--location", str(folder / "blobs")]
    command += ["--silent", "--skipApiVersionCheck"]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with running(command, port, folder / "log"):
        put(f"{endpoint}/models?restype=container", b"")
        for key, content in OBJECTS.items():
            put(f"{endpoint}/models/{urllib.parse.quote(key)}", content)
        settings = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint}"
        yield {"AZURE_STORAGE_CONNECTION_STRING": settings}


def send(request: urllib.request.Request) -> None:
    # Without the proxies of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        pytest.fail(f"{request.full_url}: {error.read()!r}")


def put(url: str, content: bytes) -> None:
    """Make a container or a blob, with a signature by the key of the account (Shared Key)."""
    parts = urllib.parse.urlsplit(url)
    fields = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    fields["x-ms-blob-type"] = "BlockBlob"
    length = str(len(content)) if content else ""
    lines = ["PUT", "", "", length, "", "application/octet-stream", "", "", "", "", "", ""]
    lines += [f"{name}:{fields[name]}" for name in sorted(fields)]
    resource = f"/{ACCOUNT}{parts.path}"
    lines.append("\n".join([resource, *(parts.query.replace("=", ":") or "").split("&")]).rstrip())
    digest = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256)
    fields["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    fields["Content-Type"] = "application/octet-stream"
    send(urllib.request.Request(url, content, fields, method="PUT"))


Enter = Callable[[str], str]


@pytest.fixture(params=["google", "azure"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """A function that makes the name of an object of the store of a key."""
    variables: dict[str, str] = request.getfixturevalue(request.param)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    scheme = {"google": "gs", "azure": "az"}[request.param]
    return lambda key: f"{scheme}://models/{key}"


def test_objects_and_prefixes_are_loaded(store: Enter) -> None:
    # The last one needs a listing of two folders.
    for key in ["one.safetensors", "sharded/", "sharded", "folders/"]:
        tensors = longshore.numpy.load_file(store(key), timeout=60)
        assert sorted(tensors) == sorted(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(tensors[name], array)


def test_what_is_missing_is_not_found(store: Enter) -> None:
    with pytest.raises(longshore.NotFoundError):
        longshore.load(store("none.safetensors"), timeout=60)
    with pytest.raises(longshore.LongshoreError, match="contains no safetensors"):
        longshore.load(store("none/"), timeout=60)
