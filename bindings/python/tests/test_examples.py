"""Runs the examples as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "python"
SHOWN = {
    "convert.py": ["bytes read, 16,778,", "16 tensors are equal"],
    "state_dict.py": ["26 weights, 26 of them shared with JAX, 0 copied", "the next word is"],
    "onnx_runtime.py": ["without prepacking", "the results are equal"],
    "openvino_constants.py": ["weights: 67,108,864 bytes", "shared constants", "the results are equal"],
}


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    help_ = subprocess.run(
        [sys.executable, EXAMPLES / name, "--help"], capture_output=True, text=True, check=True
    )
    assert f"python {name} model.safetensors" in help_.stdout
    run = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for line in SHOWN[name]:
        assert line in run.stdout, run.stdout
    assert not list(tmp_path.iterdir())
