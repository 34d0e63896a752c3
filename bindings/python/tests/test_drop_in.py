"""Code written for `safetensors` runs after a change of its import only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

NUMPY = """
import numpy as np
from safetensors import safe_open, SafetensorError
from safetensors.numpy import load, load_file, save, save_file

tensors = {"embedding": np.arange(64, dtype=np.float32).reshape(8, 8), "norm": np.ones(8, np.float16)}
save_file(tensors, "model.safetensors", metadata={"format": "np"})
state = load_file("model.safetensors")
result["sums"] = {name: float(array.sum()) for name, array in sorted(state.items())}
result["bytes"] = save(state)
result["again"] = {name: array.tolist() for name, array in sorted(load(result["bytes"]).items())}

with safe_open("model.safetensors", framework="np", device="cpu") as f:
    result["metadata"] = f.metadata()
    result["keys"] = list(f.keys())
    for key in f.keys():
        result[key] = f.get_tensor(key).tolist()
    part = f.get_slice("embedding")
    rows, columns = part.get_shape()
    # Half of each dimension, as in tensor parallelism.
    result["half"] = part[: rows // 2, columns // 2 :].tolist()
    try:
        f.get_tensor("missing")
    except SafetensorError as error:
        result["missing"] = str(error)

try:
    with safe_open("broken.safetensors", framework="np") as f:
        pass
except SafetensorError:
    result["broken"] = True
"""

FLAX = """
import jax.numpy as jnp
from safetensors import safe_open
from safetensors.flax import load, load_file, save, save_file

save_file({"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3, jnp.bfloat16)}, "model.safetensors")
state = load_file("model.safetensors")
result["state"] = {name: (str(array.dtype), array.tolist()) for name, array in sorted(state.items())}
result["forward"] = (state["a"] @ state["b"].astype(jnp.float32)).tolist()
result["again"] = load(save({"a": state["a"]}))["a"].tolist()
with safe_open("model.safetensors", framework="flax") as f:
    result["part"] = f.get_slice("a")[:, 1:].tolist()
    result["type"] = type(f.get_tensor("a")).__name__
"""

TORCH = """
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, load_model, save, save_file, save_model

save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}, "model.safetensors")
state = load_file("model.safetensors")
result["state"] = {name: (str(tensor.dtype), tensor.tolist()) for name, tensor in sorted(state.items())}
state["a"].mul_(2)
result["changed"] = state["a"].tolist()
result["untouched"] = load_file("model.safetensors")["a"].tolist()
result["again"] = {name: tensor.tolist() for name, tensor in sorted(load(save(state)).items())}
with safe_open("model.safetensors", framework="pt", device="cpu") as f:
    result["part"] = f.get_slice("a")[:, 1:].tolist()
    result["meta"] = f.metadata()
model = torch.nn.Linear(3, 2)
save_model(model, "linear.safetensors")
other = torch.nn.Linear(3, 2)
result["missing"] = load_model(other, "linear.safetensors")
result["equal"] = bool(torch.equal(model.weight, other.weight))
"""


def run(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0 no json")
    result: dict[str, Any] = {}
    exec(compile(code, "drop-in", "exec"), {"result": result})
    return result


def changed(code: str) -> str:
    return re.sub(r"from safetensors\b", "from longshore", code)


@pytest.mark.parametrize("code", [NUMPY, FLAX], ids=["numpy", "flax"])
def test_changing_the_import_is_enough(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = run(code, tmp_path / "theirs", monkeypatch)
    ours = run(changed(code), tmp_path / "ours", monkeypatch)
    assert "safetensors import" not in changed(code).replace("longshore", "")
    assert ours == theirs and len(theirs) >= 4


def test_changing_the_import_is_enough_for_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed (LONGSHORE_TORCH=1 installs it)")
    theirs = run(TORCH, tmp_path / "theirs", monkeypatch)
    assert run(changed(TORCH), tmp_path / "ours", monkeypatch) == theirs
