"""Runs the tests of `safetensors`, and the scripts of `gguf`, with longshore in place of these packages.

`bindings/python/test.sh` downloads the source of `safetensors`; it is not a part of this repository.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

Q4_0 = gguf.GGMLQuantizationType.Q4_0

WAIT_SECONDS = 300
"""A machine that is five times slower than the slowest of ours needs less."""

HAS_TORCH = importlib.util.find_spec("torch") is not None

SCRIPT = """
import runpy, sys, gguf, longshore.gguf
for module in (gguf, sys.modules["gguf.gguf_reader"]):
    if sys.argv[1] == "longshore":
        module.GGUFReader = longshore.gguf.GGUFReader
sys.argv = sys.argv[2:]
runpy.run_module(f"gguf.scripts.{sys.argv[0]}", run_name="__main__")
"""
"""Runs a script of `gguf` with the reader of longshore or its own."""

SOURCE = os.environ.get("LONGSHORE_SAFETENSORS_SOURCE")

EXCLUDED = {
    "test_handle.py": "of a private class, and of S3 buckets",
    "test_tf_comparison.py": "of a framework that longshore does not support",
    "test_mlx_comparison.py": "of a framework that longshore does not support",
    "test_paddle_comparison.py": "of a framework that longshore does not support",
    "test_threadable.py": "compares times",
    "test_simple.py::ErrorsTestCase::test_file_not_found": "of the words of a message",
    "test_pt_comparison.py::TorchTestCase::test_sparse": "of the words of a message",
}
"""The tests that do not run, with the reason."""


def run(arguments: list[str], folder: Path) -> str:
    """Run Python, and return its output, or fail with it."""
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": here, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(SOURCE is None, reason="LONGSHORE_SAFETENSORS_SOURCE is not set; test.sh sets it")
def test_the_tests_of_safetensors_pass(tmp_path: Path) -> None:
    # They write files beside themselves.
    shutil.copytree(Path(str(SOURCE)) / "bindings/python/tests", tmp_path / "tests")
    out = [
        f"--deselect=tests/{name}" if "::" in name else f"--ignore=tests/{name}" for name in EXCLUDED
    ]
    pytest_arguments = ["-q", "-p", "in_place_of_safetensors", "-p", "no:cacheprovider"]
    said = run(
        ["-m", "pytest", *pytest_arguments, "--import-mode=importlib", "tests", *out], tmp_path
    )
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None and int(passed[1]) >= (60 if HAS_TORCH else 15), said


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A GGUF file with metadata of several types and two tensors."""
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "llama")
    writer.add_block_count(1)
    writer.add_name("A model")
    writer.add_array("test.words", [f"word {number}" for number in range(10)])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_bool("test.truth", True)
    writer.add_tensor("blk.0.attn_k.weight", np.arange(32, dtype=np.float32).reshape(4, 8))
    writer.add_tensor("output.weight", np.arange(36, dtype=np.uint8).reshape(2, 18), raw_dtype=Q4_0)
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(
    "arguments",
    [
        ["gguf_dump"],
        ["gguf_dump", "--json", "--json-array"],
        ["gguf_dump", "--markdown"],
        ["gguf_dump", "--data-offset"],
        ["gguf_dump", "--data-alignment"],
        ["gguf_hash"],
        ["gguf_hash", "--no-layer"],
        ["gguf_set_metadata", "--dry-run", "MODEL", "llama.block_count", "2"],
        ["gguf_convert_endian", "--dry-run", "MODEL", "big"],
        ["gguf_new_metadata", "--general-name", "Another", "--force", "MODEL", "NEW"],
    ],
    ids=" ".join,
)
def test_the_scripts_of_gguf_have_the_same_output(
    model: Path, tmp_path: Path, arguments: list[str]
) -> None:
    if "MODEL" not in arguments:
        arguments = [*arguments, "MODEL"]
    outputs = {}
    for reader in ("gguf", "longshore"):
        new = tmp_path / "new.gguf"
        names = {"MODEL": str(model), "NEW": str(new)}
        said = run(["-c", SCRIPT, reader, *(names.get(word, word) for word in arguments)], tmp_path)
        # The progress bars show times.
        lines = [line for line in re.split("[\r\n]", said) if "%|" not in line and "it/s" not in line]
        outputs[reader] = (lines, new.read_bytes() if new.exists() else None)
        new.unlink(missing_ok=True)
    assert outputs["longshore"] == outputs["gguf"] and outputs["gguf"][0]
