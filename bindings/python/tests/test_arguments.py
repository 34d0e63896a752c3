"""The files that `longshore.load` takes, and the errors for wrong arguments."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import numpy as np
import pytest


def test_descriptors_are_loaded_and_stay_open(
    example: str, descriptors: Callable[[], set[str]]
) -> None:
    content = Path(example).read_bytes()
    with open(example, "rb") as file:
        file.seek(11)
        before = descriptors()
        files: list[Any] = [file.fileno(), [file.fileno(), example], file, [file]]
        for given in files:
            with longshore.load(given) as buffer:
                assert bytes(buffer)[: len(content)] == content
                # The format follows from the name of the open file.
                assert buffer.files[0].format == "safetensors"
                assert str(buffer.files[0].path) == example
            del buffer
        assert descriptors() == before
        assert file.tell() == 11 and file.read(1) == content[11:12]


def test_two_descriptors_of_deleted_files_with_one_path(tmp_path: Path) -> None:
    files = []
    for content in (b"first", b"second"):
        path = tmp_path / "file"
        path.write_bytes(content)
        files.append(path.open("rb"))
        path.unlink()
    buffer = longshore.load(files, format="raw")
    assert [bytes(buffer)[file.offset :][: file.nbytes] for file in buffer.files] == [
        b"first",
        b"second",
    ]
    for file in files:
        file.close()


def test_unwritten_data_of_a_file_object_is_written_first() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(longshore.numpy.save({"a": np.ones(3)}))
        buffer = longshore.load(file, format="safetensors")
        assert longshore.numpy.asarray(buffer["a"]).tolist() == [1, 1, 1]
    with tempfile.TemporaryFile("w+") as text:
        text.write("text")
        assert bytes(longshore.load(text, format="raw")) == b"text"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_loaded(
    kind: Callable[[bytes], Any], example: str, descriptors: Callable[[], set[str]]
) -> None:
    content = Path(example).read_bytes()
    before = descriptors()
    with longshore.load(kind(content), align=64) as buffer:
        assert buffer.readonly and buffer["weight"].address % 64 == 0
        assert longshore.numpy.tensors(buffer)["weight"].sum() == 66
    del buffer
    assert descriptors() == before
    assert bytes(longshore.load(kind(content), format="raw")) == content


def test_bytes_of_any_layout(example: str) -> None:
    array = np.arange(20, dtype=np.int16).reshape(4, 5)
    views: Any = (array, array.T, array[::2], array[:0])
    for view in views:
        assert bytes(longshore.load(view, format="raw")) == view.tobytes()
    with pytest.raises(longshore.FormatError):
        longshore.load(b"neither of both formats")


def test_objects_without_a_descriptor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"BytesIO has no file descriptor.*getbuffer"):
        longshore.load(io.BytesIO(b"content"))
    with (
        gzip.open(tmp_path / "a.gz", "wt") as text,
        pytest.raises(TypeError, match="GzipFile decodes its file"),
    ):
        longshore.load(text)
    wrong: list[Any] = [None, 1.5, True, {3.5: 1}, [["a"]], [None]]
    for given in wrong:
        with pytest.raises(TypeError, match="expected a path"):
            longshore.load(given)
    with pytest.raises(OSError, match="not open"):
        longshore.load(987654)
    with pytest.raises(ValueError, match="-1 is not a file descriptor"):
        longshore.load(-1)
    receives, sends = os.pipe()
    with pytest.raises(longshore.LongshoreError, match="pipe"):
        longshore.load(receives)
    os.close(receives)
    os.close(sends)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verify": "md5"}, "unknown checksum 'md5' .expected crc32c, xxh3, sha256, or the path"),
        ({"verify": ["md5"]}, "unknown checksum 'md5'"),
        ({"align": -1}, "align=-1 is not a power of two"),
        ({"align": 1 << 80}, "is not a power of two"),
    ],
)
def test_wrong_values_are_named(example: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        longshore.load(example, **options)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"trust_uid": [-1]}, ValueError, "trust_uid: -1 is not a user id"),
        ({"trust_uid": [1 << 32]}, ValueError, "trust_uid: 4294967296 is not"),
        ({"trust_uid": 1000}, TypeError, "trust_uid must be a sequence of user ids"),
        ({"trust_uid": "root"}, TypeError, "trust_uid must be a sequence of user ids"),
        ({"socket": "/no/socket"}, ConnectionError, r"no server listens at .* with socket= or"),
    ],
)
def test_wrong_arguments_of_attach_are_named(
    example: str, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        longshore.attach(example, **options)


def test_only_paths_names_and_numbers_are_attached() -> None:
    wrong: list[Any] = [None, 1.5, True, ["a"]]
    for given in wrong:
        with pytest.raises(TypeError, match="expected a path, a name, or the number"):
            longshore.attach(given)
    with pytest.raises(ValueError, match="-1 is not the number of a model"):
        longshore.attach(-1)


def test_a_file_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    cases = [
        (tmp_path / "none" / "a.safetensors", FileNotFoundError),
        (tmp_path / "folder", OSError),
    ]
    for path, kind in cases:
        with pytest.raises(kind) as raised:
            longshore.numpy.save_file({"a": np.ones(3)}, path)
        assert isinstance(raised.value, longshore.SafetensorError)
        assert raised.value.filename == str(path)
        assert str(path) in str(raised.value) and ".part" not in str(raised.value)
    assert os.listdir(tmp_path / "folder") == []
