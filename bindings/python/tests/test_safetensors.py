"""Compares safetensors files with the package `safetensors`."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import ml_dtypes  # `safetensors` supports bfloat16 only after this import.
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from conftest import header

SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (0,), (3, 0, 2), (2, 3), (2, 3, 4), (1, 1, 1, 5)]
NUMPY = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32"]
NUMPY += ["complex64", "float64", "int64", "uint64"]
BEYOND = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}


def random_array(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    raw = np.random.default_rng(seed).bytes(int(np.prod(shape, dtype=int)) * kind.itemsize)
    if kind == np.bool_:
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(bytearray(raw), kind).reshape(shape)


def same(ours: Any, theirs: Any) -> bool:
    """Compare bit by bit, so that equal NaNs are equal."""
    kinds = [(array.dtype, array.shape) for array in (ours, theirs)]
    return kinds[0] == kinds[1] and bool(ours.tobytes() == theirs.tobytes())


def owner(array: Any) -> Any:
    """Return the bytearray that the array is a view of."""
    while not isinstance(array, bytearray):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array


@pytest.fixture
def every(tmp_path: Path) -> str:
    """A file with every type that `safetensors.numpy` writes, in every shape."""
    tensors = {
        f"{dtype}.{place}": random_array(dtype, shape, place)
        for dtype, (place, shape) in itertools.product([*NUMPY, "bfloat16"], enumerate(SHAPES))
    }
    path = str(tmp_path / "every.safetensors")
    safetensors.numpy.save_file(tensors, path, {"who": "the package", "what": "πάντα"})
    return path


@pytest.mark.parametrize("align", [None, 64, 4096])
def test_every_tensor_is_the_same(every: str, align: int | None) -> None:
    theirs = safetensors.numpy.load_file(every)
    ours = longshore.numpy.load_file(every, align=align)
    assert set(ours) == set(theirs) and len(ours) == 14 * len(SHAPES)
    for name, array in theirs.items():
        assert same(ours[name], array), name
        assert not ours[name].flags.writeable and ours[name].flags.c_contiguous
        if align and array.size:
            assert ours[name].ctypes.data % align == 0


@pytest.mark.parametrize("dtype", BEYOND)
def test_types_that_safetensors_does_not_convert_to_numpy(tmp_path: Path, dtype: str) -> None:
    kind = np.dtype(BEYOND[dtype])
    path = tmp_path / "one.safetensors"
    # Every value of the 8-bit types, and many of the 16-bit type.
    data = bytes(range(256)) * 16 * kind.itemsize
    shape = [16, 256]
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}
    path.write_bytes(header({"t": entry}, data))
    expected = np.frombuffer(data, kind).reshape(shape)
    assert same(longshore.numpy.load_file(path)["t"], expected)
    assert same(longshore.numpy.load(path.read_bytes())["t"], expected)
    # Saving and loading them changes nothing.
    assert same(longshore.numpy.load(longshore.numpy.save({"t": expected}))["t"], expected)


@pytest.mark.parametrize(("dtype", "bits"), [("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6)])
def test_types_smaller_than_a_byte_are_available_as_bytes_only(
    tmp_path: Path, dtype: str, bits: int
) -> None:
    path = tmp_path / "packed.safetensors"
    data = bytes(range(bits))
    entry = {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, bits]}
    path.write_bytes(header({"t": entry}, data))
    for load in (safetensors.numpy.load_file, longshore.numpy.load_file):
        with pytest.raises(
            (safetensors.SafetensorError, AttributeError, longshore.SafetensorError)
        ):
            load(path)
    tensor = longshore.load(path).tensors["t"]
    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == (dtype, (2, 4), data)


def test_arrays_are_views_of_one_buffer_and_keep_it_alive(
    every: str, descriptors: Callable[[], set[str]]
) -> None:
    before = descriptors()
    arrays = longshore.numpy.load_file(every)
    whole = longshore.load(every)
    # The file is small, so the arrays have memory of the allocator.
    assert len(descriptors() - before) == 2, "a descriptor and a mapping of the shared buffer"
    for tensor in whole.tensors.values():
        array = longshore.numpy.asarray(tensor)
        if array.size:
            assert array.ctypes.data == tensor.address == whole.address + tensor.offset
    last = arrays.popitem()[1]
    arrays.clear()
    del whole, tensor, array
    assert descriptors() == before
    assert last.tobytes() is not None
    del last
    assert descriptors() == before


def test_writable_arrays(every: str) -> None:
    arrays = longshore.numpy.load_file(every, writable=True)
    array = arrays["float32.5"]
    array[:] = 7
    assert array.sum() == 42 and all(array.flags.writeable for array in arrays.values())
    assert same(
        longshore.numpy.load_file(every)["float32.5"],
        safetensors.numpy.load_file(every)["float32.5"],
    )


def test_bytes_are_copied_once_and_writable(every: str) -> None:
    data = Path(every).read_bytes()
    before = bytes(bytearray(data))
    ours = longshore.numpy.load(data)
    theirs = safetensors.numpy.load_file(every)
    assert set(ours) == set(theirs)
    assert all(same(ours[name], array) for name, array in theirs.items())
    assert all(array.flags.writeable for array in ours.values())
    ours["float32.5"][:] = 7
    assert ours["float32.5"].sum() == 42 and data == before
    # As with `safetensors`, which does not always support bfloat16 here.
    small = safetensors.numpy.save({"t": np.arange(5), "none": np.zeros((2, 0))})
    for module in (safetensors.numpy, longshore.numpy):
        assert all(array.flags.writeable for array in module.load(small).values())
    # One copy for all.
    base = {id(owner(array)) for array in ours.values() if array.size}
    assert len(base) == 1


def test_names_shapes_and_metadata_are_the_same(every: str, tmp_path: Path) -> None:
    bare = str(tmp_path / "bare.safetensors")
    safetensors.numpy.save_file({"b": np.zeros(3), "a": np.zeros(5, np.int8)}, bare)
    for path in (every, bare):
        with safetensors.safe_open(path, "np") as theirs, longshore.safe_open(path, "np") as ours:
            assert ours.keys() == theirs.keys()
            assert ours.metadata() == theirs.metadata()
            sizes = {name: theirs.get_tensor(name).nbytes for name in theirs.keys()}
            # The order of tensors without data is not defined.
            order = [name for name in theirs.offset_keys() if sizes[name]]
            assert [name for name in ours.offset_keys() if sizes[name]] == order
            assert sorted(ours.offset_keys()) == ours.keys()
            for name in theirs.keys():
                ours_part, theirs_part = ours.get_slice(name), theirs.get_slice(name)
                assert ours_part.get_shape() == theirs_part.get_shape()
                assert ours_part.get_dtype() == theirs_part.get_dtype()
                assert same(ours.get_tensor(name), theirs.get_tensor(name))


def test_no_data_is_read_before_a_tensor_is_requested(
    every: str, descriptors: Callable[[], set[str]]
) -> None:
    before = descriptors()
    with longshore.safe_open(every, framework="np") as file:
        assert file.get_slice(file.keys()[0]).get_shape() == []
        # Only the file is open, and perhaps a second time for direct I/O.
        assert 1 <= len(descriptors() - before) <= 2
        assert not any("memfd" in name for name in descriptors() - before)
        array = file.get_tensor("float32.5")
        assert len(descriptors() - before) <= 2
    assert array.shape == (2, 3)
    with pytest.raises(longshore.SafetensorError, match="File is closed"):
        file.get_tensor("float32.5")


def test_tensors_are_loaded_one_by_one(every: str, descriptors: Callable[[], set[str]]) -> None:
    theirs = safetensors.numpy.load_file(every)
    with longshore.safe_open(every, framework="np", whole=False) as file:
        before = descriptors()
        for name, array in theirs.items():
            assert same(file.get_tensor(name), array), name
            assert descriptors() == before
        kept = file.get_tensor("float32.5")
        assert kept.ctypes.data % 64 == 0
        part = file.get_slice("float32.5")[1:, ::2]
        assert same(part, theirs["float32.5"][1:, ::2])
        assert descriptors() == before
        with pytest.raises(longshore.SafetensorError, match="does not contain tensor x"):
            file.get_tensor("x")
    with longshore.safe_open(every, "np", whole=False, verify="crc32c") as file:
        with pytest.raises(ValueError, match="checksums are of whole files"):
            file.get_tensor("float32.5")


def memfds() -> int:
    """Return the number of longshore's memfds that this process has mapped."""
    with open("/proc/self/maps") as maps:
        # Parts of a mapping with pages of different sizes have a line each, with the same inode.
        return len({line.split()[4] for line in maps if "memfd:longshore" in line})


def test_threads_share_one_load(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    large = {str(n): np.full(200_000, n, np.uint8) for n in range(9)}
    safetensors.numpy.save_file(large, path)
    before = memfds()
    for _ in range(5):
        loads: list[int] = []
        together = threading.Barrier(8)

        def slow(done: int, total: int, loads: list[int] = loads) -> None:
            # Let the other threads run while the file is loaded.
            loads += [total] if done == total else []
            time.sleep(0.001)

        with longshore.safe_open(path, framework="np", progress=slow) as file:
            names = file.offset_keys()

            def get(
                n: int,
                file: longshore.safe_open = file,
                names: list[str] = names,
                together: threading.Barrier = together,
            ) -> Any:
                together.wait()
                return file.get_tensor(names[n])

            with ThreadPoolExecutor(8) as pool:
                arrays = list(pool.map(get, range(-8, 0)))
        assert memfds() - before == 1 and len(loads) == 1
        del arrays
        assert memfds() == before


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("how", ["folder", "unlinked", "replaced"])
def test_the_opened_file_is_loaded_even_if_its_name_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool, how: str
) -> None:
    safetensors.numpy.save_file({"t": np.arange(5)}, tmp_path / "model.safetensors")
    safetensors.numpy.save_file({"t": np.arange(5) + 9}, tmp_path / "other.safetensors")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    theirs: Any = safetensors.safe_open("model.safetensors", "np")
    with longshore.safe_open("model.safetensors", "np", whole=whole) as ours:
        if how == "folder":
            os.chdir("elsewhere")
        elif how == "unlinked":
            os.unlink("model.safetensors")
        else:
            os.replace("other.safetensors", "model.safetensors")
        assert same(ours.get_tensor("t"), np.arange(5))
        assert same(ours.get_tensor("t"), theirs.get_tensor("t"))
        assert same(ours.get_slice("t")[1:3], theirs.get_slice("t")[1:3])


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_was_written_to_after_opening_is_refused(
    tmp_path: Path, whole: bool
) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"t": np.arange(5)}, path)
    with longshore.safe_open(path, "np", whole=whole) as file:
        with path.open("ab") as end:
            end.write(b"more")
        with pytest.raises(longshore.FileChangedError, match="it grew") as caught:
            file.get_tensor("t")
    assert caught.value.filename == str(path)


def test_loading_one_tensor_reads_only_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    big = np.ones(3 << 20, np.uint8)
    longshore.numpy.save_file({"a": big, "b": np.arange(5), "c": big}, path)
    told: list[int] = []
    with longshore.safe_open(
        path, "np", whole=False, progress=lambda done, total: told.append(total)
    ) as file:
        assert file.get_tensor("b").tolist() == [0, 1, 2, 3, 4]
    assert set(told) == {40}


BOUNDS = [None, 0, 1, 2, 3, 4, 5, 100]
INDICES: list[Any] = [
    *(slice(start, stop) for start in BOUNDS for stop in BOUNDS),
    *(
        slice(start, stop, step)
        for start in (None, 1, 3)
        for stop in (None, 2, 4)
        for step in (1, 2, 3, 7)
    ),
    *range(-6, 6),
    slice(None, None, 0),
    slice(None, None, -1),
    slice(-1, None),
    slice(None, -1),
    ...,
    (..., ...),
    (),
    [],
    [1],
    None,
    1.0,
    "1",
    True,
    np.int64(1),
    (0, 0),
    (0, slice(1, 3)),
    (slice(None), 1),
    (slice(0, 2), slice(None, None, 2)),
    (..., 0),
    (0, ...),
    (..., slice(0, 1)),
    (0, ..., 0),
    (0, 0, 0),
    (slice(1, 2), slice(1, 2), slice(1, 2)),
    (0, 0, 0, 0),
    (slice(None), slice(None), -1),
    (slice(None, None, 2), ..., slice(1, None, 2)),
    (None, 0),
    (0, [0]),
    (100, 0),
    (0, 100),
]


def outcome(part: Any, index: Any) -> Any:
    """Return the result of indexing, or the class of the exception that it raises."""
    try:
        array = part[index]
    except BaseException as error:
        return next(
            name
            for name in (
                "SafetensorError",
                "OverflowError",
                "IndexError",
                "ValueError",
                "TypeError",
                "PanicException",
            )
            if name in [kind.__name__ for kind in type(error).__mro__]
        )
    return array.dtype, array.shape, np.asarray(array).tobytes()


@pytest.mark.parametrize("shape", [(), (5,), (0,), (4, 3), (3, 4, 5), (2, 0, 3)])
def test_slices_are_the_same(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = str(tmp_path / "part.safetensors")
    array = random_array("int16", shape, 1)
    safetensors.numpy.save_file({"t": array}, path)
    with safetensors.safe_open(path, "np") as theirs, longshore.safe_open(path, "np") as ours:
        for index in INDICES:
            start_behind_stop = isinstance(index, slice) and index.start and index.stop is not None
            if start_behind_stop and 0 <= index.stop < index.start:
                # `safetensors` computes a negative length here, and panics or returns a huge shape.
                is_inside = shape and index.start < shape[0]
                expected = outcome(array, index) if is_inside else "SafetensorError"
                assert outcome(ours.get_slice("t"), index) == expected, index
                continue
            expected = outcome(theirs.get_slice("t"), index)
            assert outcome(ours.get_slice("t"), index) == expected, index


def test_small_slices_are_copied_and_others_are_views(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    safetensors.numpy.save_file({"t": random_array("uint8", (3, 1 << 20), 1)}, path)
    for writable in (False, True):
        with longshore.safe_open(path, framework="np", writable=writable) as file:
            whole = file.get_tensor("t")
            part = file.get_slice("t")[1:]
            small = file.get_slice("t")[1]
        assert np.shares_memory(whole, part) and same(part, whole[1:])
        assert not np.shares_memory(whole, small) and same(small, whole[1])
        assert small.flags.writeable == part.flags.writeable == writable


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((0, 0, 0), "Error during slicing [0, 0, 0] with shape [2, 3]: more slicing indexes"),
        (
            slice(0, 9),
            "Error during slicing [0:9] with shape [2, 3]: index 8 out of bounds for tensor dimension #0 of size 2",
        ),
        ((slice(None, None, 2), 7), "index 7 out of bounds for tensor dimension #1 of size 3"),
        (-3, "Invalid index -3 for dimension 0 of size 2"),
        ((..., ...), "Only one ellipsis (...) is allowed"),
        ([0], "Non empty lists are not implemented"),
        (slice(0, 2, -1), "Slice step must be a positive integer, got -1"),
    ],
)
def test_error_messages_are_the_same(
    example: str, tmp_path: Path, index: Any, message: str
) -> None:
    path = str(tmp_path / "two.safetensors")
    safetensors.numpy.save_file({"t": np.zeros((2, 3))}, path)
    with safetensors.safe_open(path, "np") as theirs, longshore.safe_open(path, "np") as ours:
        with pytest.raises(safetensors.SafetensorError) as expected:
            theirs.get_slice("t")[index]
        with pytest.raises(longshore.SafetensorError) as found:
            ours.get_slice("t")[index]
    assert message in str(found.value) and str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"framework": "caffe"}, "framework caffe is invalid"),
        (
            {"framework": "np", "device": "cuda:0"},
            "Device cuda:0 is not supported for framework numpy",
        ),
        ({"framework": "np", "backend": "tape"}, 'backend "tape" is invalid'),
    ],
)
def test_the_same_arguments_are_refused(
    example: str, arguments: dict[str, Any], message: str
) -> None:
    for module in (safetensors, longshore):
        with pytest.raises(module.SafetensorError, match=message):
            module.safe_open(example, **arguments)


def test_missing_tensors_and_files_raise_the_same_errors(example: str) -> None:
    for module in (safetensors, longshore):
        with pytest.raises(FileNotFoundError):
            module.safe_open("not/there", framework="np")
        with module.safe_open(example, framework="np") as file:
            for get in (file.get_tensor, file.get_slice):
                with pytest.raises(module.SafetensorError, match="File does not contain tensor x"):
                    get("x")


MALFORMED = {
    "empty": b"",
    "short": b"\x01\0\0",
    "no header": (0).to_bytes(8, "little"),
    "vast header": (1 << 63).to_bytes(8, "little") + b"{}",
    "cut header": (100).to_bytes(8, "little") + b"{}",
    "no json": (2).to_bytes(8, "little") + b"xx",
    "cut data": header({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"1234"),
    "more data": header({"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"1234"),
    "wrong size": header({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}}, b"1234"),
    "type": header({"t": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "overlap": header(
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]},
        },
        b"1234",
    ),
    "hole": header({"t": {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]}}, b"1234"),
}


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED.keys())
def test_the_same_malformed_files_are_refused(tmp_path: Path, malformed: bytes) -> None:
    path = tmp_path / "malformed.safetensors"
    path.write_bytes(malformed)
    for module in (safetensors, longshore):
        with pytest.raises(module.SafetensorError):
            module.numpy.load(malformed)
        # An empty file cannot be mapped: `safetensors` raises another exception for it.
        with pytest.raises(
            (module.SafetensorError, OSError) if not malformed else module.SafetensorError
        ):
            module.safe_open(path, "np")
    with pytest.raises(longshore.FormatError):
        longshore.load(path)


def test_written_files_equal_those_of_safetensors(every: str, tmp_path: Path) -> None:
    tensors = safetensors.numpy.load_file(every)
    for metadata in (None, {"one": "entry"}):
        assert longshore.numpy.save(tensors, metadata) == safetensors.numpy.save(tensors, metadata)
    longshore.numpy.save_file(tensors, tmp_path / "ours", {"one": "entry"})
    safetensors.numpy.save_file(tensors, tmp_path / "theirs", {"one": "entry"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    # The permissions are those of any new file; `safetensors` grants them only to the owner.
    (tmp_path / "plain").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["every.safetensors", "ours", "plain", "theirs"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask_or_the_replaced_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.touch()
    old.chmod(0o640)
    before = os.umask(umask)
    try:
        with monkeypatch.context() as patched:
            # The code must not set the umask, because it applies to all threads.
            patched.delattr(os, "umask")
            longshore.numpy.save_file({"t": np.zeros(3)}, new)
            longshore.numpy.save_file({"t": np.zeros(3)}, old)
    finally:
        os.umask(before)
    assert new.stat().st_mode & 0o7777 == 0o666 & ~umask
    assert old.stat().st_mode & 0o7777 == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_arrays_of_any_byte_order_and_layout_are_written(tmp_path: Path) -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)
    read = safetensors.numpy.load(
        longshore.numpy.save({"big": array, "across": array.T, "part": array[::2, 1:]})
    )
    assert np.array_equal(read["big"], array) and read["big"].dtype == np.dtype("<i4")
    assert np.array_equal(read["across"], array.T) and np.array_equal(read["part"], array[::2, 1:])


def test_a_loaded_file_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    longshore.numpy.save_file({"t": np.arange(5)}, path)
    arrays = longshore.numpy.load_file(path)
    longshore.numpy.save_file({"t": arrays["t"] * 2}, path)
    assert longshore.numpy.load_file(path)["t"].tolist() == [0, 2, 4, 6, 8]
    assert arrays["t"].tolist() == [0, 1, 2, 3, 4]


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(longshore.SafetensorError, match="complex128"):
        longshore.numpy.save_file({"t": np.zeros(3, np.complex128)}, path)
    with pytest.raises(TypeError, match="metadata must map strings to strings"):
        longshore.numpy.save_file({"t": np.zeros(3)}, path, {"n": 1})  # type: ignore[dict-item]
    with pytest.raises(FileNotFoundError):
        longshore.numpy.save_file({"t": np.zeros(3)}, tmp_path / "no" / "folder")
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


def test_shards_are_loaded_as_one_model(tmp_path: Path) -> None:
    shards = {
        f"model-{n}.safetensors": {f"t{n}": np.full(1000, n), f"u{n}": np.ones(n)}
        for n in (1, 2, 3)
    }
    for name, tensors in shards.items():
        safetensors.numpy.save_file(tensors, tmp_path / name)
    names = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    arrays = longshore.numpy.load_file(index)
    expected = {name: array for tensors in shards.values() for name, array in tensors.items()}
    assert set(arrays) == set(expected)
    assert all(same(arrays[name], array) for name, array in expected.items())
    with longshore.safe_open(index, "np") as file:
        assert file.keys() == sorted(expected)
        assert same(file.get_slice("t2")[3:5], expected["t2"][3:5])


def test_a_tensor_name_in_two_files_is_refused(example: str) -> None:
    buffer = longshore.load([example, example])
    with pytest.raises(longshore.FormatError, match="several files have a tensor 'bias'|'weight'"):
        _ = buffer.tensors
    first, second = buffer.files
    assert bytes(first.tensors["bias"].data) == bytes(second.tensors["bias"].data)
    assert first.metadata == {"format": "np"} and first.format == "safetensors"


def test_unmodified_readers_open_the_memory(every: str) -> None:
    with longshore.load(every) as buffer:
        theirs = safetensors.numpy.load_file(buffer.path)
    expected = safetensors.numpy.load_file(every)
    assert all(same(theirs[name], array) for name, array in expected.items())


def test_the_entry_of_a_tensor_in_the_header(tmp_path: Path) -> None:
    weights = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.int8)}
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    with longshore.safe_open(tmp_path / "model.safetensors", "numpy") as file:
        for name in weights:
            meta = file.get_tensor_meta(name)
            assert meta.dtype == header[name]["dtype"]
            assert meta.shape == header[name]["shape"]
            assert list(meta.data_offsets) == header[name]["data_offsets"]
            meta.shape.append(1)
            assert file.get_tensor_meta(name).shape == header[name]["shape"]
        with pytest.raises(longshore.SafetensorError, match="does not contain tensor c"):
            file.get_tensor_meta("c")
