"""`longshore.patch_safetensors`."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import longshore
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from longshore import _patch
from test_attach import COMMAND, Server

ORIGINAL = safetensors.safe_open


def test_a_patch_is_reversible_and_files_stay_the_same(example: str) -> None:
    wanted = safetensors.numpy.load_file(example)
    with longshore.patch_safetensors():
        assert safetensors.safe_open is safetensors.numpy.safe_open is not ORIGINAL
        found = safetensors.numpy.load_file(example)
        with safetensors.safe_open(example, framework="np") as file:
            assert isinstance(file, longshore.safe_open) and file.metadata() == {"format": "np"}
            assert file.get_slice("weight")[1:, 0].tolist() == wanted["weight"][1:, 0].tolist()
    assert safetensors.safe_open is safetensors.numpy.safe_open is ORIGINAL
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert np.array_equal(found[name], array)
    # As with `safetensors`, arrays can be written to.
    found["bias"][0] = 5
    assert safetensors.numpy.load_file(example)["bias"][0] == 1


def test_nested_patches_use_the_options_of_the_newest(example: str) -> None:
    outer = longshore.patch_safetensors()
    with pytest.raises(FileNotFoundError), longshore.patch_safetensors(verify="/no such manifest"):
        safetensors.numpy.load_file(example)
    assert safetensors.safe_open is not ORIGINAL
    safetensors.numpy.load_file(example)
    inner = longshore.patch_safetensors()
    # In the other order, too.
    outer.restore()
    outer.restore()
    assert safetensors.safe_open is not ORIGINAL
    inner.restore()
    assert safetensors.safe_open is ORIGINAL


def test_threads_may_patch_and_read_at_once(example: str) -> None:
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            with longshore.patch_safetensors():
                if not isinstance(safetensors.safe_open(example, "np"), longshore.safe_open):
                    wrong.append("not patched")
                if safetensors.numpy.load_file(example)["bias"].tolist() != [1, 1, 1, 1]:
                    wrong.append("another content")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == [] and safetensors.safe_open is ORIGINAL


def test_modules_are_patched_that_were_imported_before_and_during_the_patch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, during = types.ModuleType("transformers.before"), types.ModuleType("program")
    before.safe_open = ORIGINAL  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.before", before)
    with longshore.patch_safetensors():
        monkeypatch.setitem(sys.modules, "program", during)
        exec("from safetensors import safe_open", vars(during))
        assert before.safe_open is vars(during)["safe_open"] is safetensors.safe_open
        assert "transformers.before.safe_open" in _patch._state.replaced
    assert before.safe_open is vars(during)["safe_open"] is ORIGINAL


def test_a_kept_replacement_uses_the_original_after_the_patch(example: str) -> None:
    with longshore.patch_safetensors():
        kept = safetensors.safe_open
    assert type(kept(example, "np")) is type(ORIGINAL(example, "np"))


def test_errors_are_those_of_both_packages(tmp_path: Path, example: str) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"nothing of the kind")
    with longshore.patch_safetensors():
        with pytest.raises(safetensors.SafetensorError) as broken:
            safetensors.numpy.load_file(tmp_path / "broken.safetensors")
        assert isinstance(broken.value, longshore.SafetensorError)
        with (
            pytest.raises(safetensors.SafetensorError, match="does not contain tensor no"),
            safetensors.safe_open(example, "np") as file,
        ):
            file.get_tensor("no")
        with pytest.raises(FileNotFoundError):
            safetensors.numpy.load_file(tmp_path / "missing.safetensors")


def test_other_frameworks_and_comfyui_are_left_to_the_original(
    example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with longshore.patch_safetensors():
        with pytest.raises(Exception, match=r"mlx|paddle|No module") as error:
            opened: Any = safetensors.safe_open(example, "mlx")
            opened.get_tensor("bias")
        assert not isinstance(error.value, longshore.LongshoreError)
        monkeypatch.setitem(sys.modules, "comfy.utils", types.ModuleType("comfy.utils"))
        assert not isinstance(safetensors.safe_open(example, "np"), longshore.safe_open)


def test_wrong_options_are_refused_and_leave_no_patch(example: str) -> None:
    wrong: list[dict[str, Any]] = [{"attach": "maybe"}, {"socket": "/s"}, {"attach": "require", "verify": "xxh3"}]
    for options in wrong:
        with pytest.raises(ValueError, match="attach"):
            longshore.patch_safetensors(**options)
    assert safetensors.safe_open is ORIGINAL


def test_the_first_file_prints_one_line(example: str) -> None:
    program = (
        "import sys, longshore, safetensors.numpy as n; longshore.patch_safetensors()\n"
        "print('patched', file=sys.stderr)\nn.load_file(sys.argv[1]); n.load_file(sys.argv[1])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, example], capture_output=True, text=True, timeout=60
    )
    lines = said.stderr.splitlines()
    assert said.returncode == 0 and lines[0] == "patched" and len(lines) == 2, said.stderr
    assert lines[1].startswith(f"longshore {longshore.__version__}: ")
    assert "safetensors.safe_open, safetensors.numpy.safe_open" in lines[1]


@pytest.mark.skipif(COMMAND is None, reason="the command longshore was not found")
def test_a_patch_attaches_the_memory_of_a_server(tmp_path: Path) -> None:
    server = Server(tmp_path)
    path = server.models / "model.safetensors"
    safetensors.numpy.save_file({"w": np.arange(6.0)}, path)
    server.start()
    try:
        with longshore.patch_safetensors(attach="require", socket=server.socket):
            array = safetensors.numpy.load_file(path)["w"]
        assert array.tolist() == [0, 1, 2, 3, 4, 5] and not array.flags.writeable
        assert len(server.held()) == 1
    finally:
        server.stop()


def test_a_program_that_converts_tensors_needs_little_more_than_the_result(tmp_path: Path) -> None:
    """As transformers does: slices of all tensors first, which two threads request and convert."""
    path = str(tmp_path / "half.safetensors")
    tensors = {f"t{at:02}": np.full((8, 1 << 20), at, np.float16) for at in range(8)}
    safetensors.numpy.save_file(tensors, path)
    of_file = sum(tensor.nbytes for tensor in tensors.values())
    del tensors
    program = f"""
import concurrent.futures, numpy, safetensors, sys
import longshore

def peak():
    with open("/proc/self/status") as status:
        lines = dict(line.split(":") for line in status)
    return [int(lines[name].split()[0]) << 10 for name in ("VmHWM", "VmRSS")]

with longshore.patch_safetensors(whole=sys.argv[1] == "whole"):
    file = safetensors.safe_open({path!r}, "np")
    slices = {{name: file.get_slice(name) for name in file.keys()}}
    before = peak()[1]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        convert = lambda part: part[...].astype(numpy.float32)
        result = dict(zip(slices, pool.map(convert, slices.values())))
assert all((array == int(name[1:])).all() for name, array in result.items())
print(peak()[0] - before - sum(array.nbytes for array in result.values()))
"""
    more = {}
    for whole in ("each", "whole"):
        run = subprocess.run(
            [sys.executable, "-c", program, whole], capture_output=True, text=True, check=True
        )
        more[whole] = int(run.stdout)
    # Two tensors at a time, and memory of the allocator.
    assert more["each"] < of_file // 2 < more["whole"], more
