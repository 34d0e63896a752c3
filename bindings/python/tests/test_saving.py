"""Tensors by address, and torch tensors, are written as `safetensors` writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import longshore
import numpy as np
import pytest
import safetensors

ARRAYS: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.uint8),
    "empty": np.zeros((0, 2), np.int64),
    "scalar": np.array(3.5),
}

NEEDS_TORCH = "torch is not installed (LONGSHORE_TORCH=1 installs it)"


def specs(kind: Any) -> dict[str, Any]:
    return {
        name: kind(
            dtype=array.dtype.name,
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in ARRAYS.items()
    }


def test_tensors_by_address_are_written_as_by_safetensors(tmp_path: Path) -> None:
    expected = safetensors.serialize(specs(safetensors.TensorSpec), {"key": "value"})
    ours = specs(longshore.TensorSpec)
    assert longshore.serialize(ours, {"key": "value"}) == expected
    longshore.serialize_file(ours, tmp_path / "file", {"key": "value"})
    assert (tmp_path / "file").read_bytes() == expected
    theirs: Any = safetensors
    found = sorted(longshore.deserialize(expected), key=lambda item: item[0])
    assert found == sorted(theirs.deserialize(expected), key=lambda item: item[0])
    for name, spec in specs(safetensors.TensorSpec).items():
        assert repr(ours[name]) == repr(spec)


@pytest.mark.parametrize("package", [safetensors, longshore])
def test_wrong_specs_are_refused(package: Any) -> None:
    spec = {"dtype": "float32", "shape": [2], "data_ptr": 4096, "data_len": 8}
    with pytest.raises(package.SafetensorError):
        package.TensorSpec(**(spec | {"dtype": "float33"}))
    with pytest.raises(OverflowError):
        package.TensorSpec(**(spec | {"shape": [-1]}))
    packed = package.TensorSpec(**(spec | {"dtype": "float4_e2m1fn_x2", "shape": [2, 8]}))
    assert (packed.dtype, packed.shape) == ("F4", [2, 16])
    with pytest.raises(TypeError):
        package.serialize({"a": 3})
    # The length does not match the shape.
    with pytest.raises(package.SafetensorError):
        package.serialize({"a": package.TensorSpec(**(spec | {"data_len": 4}))})


def test_names_that_longshore_lacks_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        longshore.nothing  # noqa: B018


def test_longshore_saves_torch_tensors_in_place_of_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    # It recursed for ever when it called `safetensors.torch`, which was itself.
    code = """if True:
        import sys, longshore, longshore.torch
        sys.modules["safetensors"], sys.modules["safetensors.torch"] = longshore, longshore.torch
        import torch
        from safetensors.torch import load, load_file, save, save_file
        tensors = {"a": torch.arange(3.0)}
        save_file(tensors, "file")
        assert load_file("file")["a"].tolist() == load(save(tensors))["a"].tolist() == [0, 1, 2]
    """
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def test_torch_tensors_are_written_as_by_safetensors() -> None:
    torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
    import longshore.torch
    import safetensors.torch

    base = torch.arange(12.0)
    tensors = {
        "f32": torch.arange(6.0).reshape(2, 3),
        "bf16": torch.ones(5, dtype=torch.bfloat16),
        "c64": torch.tensor([1 + 2j]),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3),
        "first half": base[:6],
        "second half": base[6:],
        "grad": torch.ones(2, requires_grad=True),
    }
    assert longshore.torch.save(tensors) == safetensors.torch.save(tensors)
    # The memory of a conjugate view has the values of its base.
    view = torch.tensor([1 + 2j]).conj()
    assert longshore.torch.load(longshore.torch.save({"a": view}))["a"].tolist() == [1 - 2j]


def test_torch_tensors_that_cannot_be_saved(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
    import longshore.torch

    tensor = torch.arange(6.0).reshape(2, 3)
    cases: list[tuple[Any, type[Exception]]] = [
        ([tensor], ValueError),
        ({"a": 3}, ValueError),
        ({"a": tensor.T}, ValueError),
        ({"a": tensor.to_sparse()}, ValueError),
        ({"a": tensor, "b": tensor.view(6)}, RuntimeError),
    ]
    for given, kind in cases:
        with pytest.raises(kind):
            longshore.torch.save(given)
    with pytest.raises(longshore.SafetensorError) as raised:
        longshore.torch.save_file({"a": tensor}, tmp_path / "none" / "file")
    assert raised.value.filename == str(tmp_path / "none" / "file")
    with pytest.raises(longshore.SafetensorError, match="nonsense"):
        longshore.torch.save_file({"a": tensor}, tmp_path / "file")
        longshore.safe_open(tmp_path / "file", "pt", device="nonsense")


def test_a_tied_weight_that_the_file_has_twice_is_unexpected(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
    import longshore.torch
    import safetensors.torch

    class Tied(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(2, 2, bias=False)
            self.b = torch.nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

    path = str(tmp_path / "tied.safetensors")
    safetensors.torch.save_file({"a.weight": torch.ones(2, 2), "b.weight": torch.zeros(2, 2)}, path)
    for package in (safetensors.torch, longshore.torch):
        with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "b.weight"'):
            package.load_model(Tied(), path)
        assert package.load_model(Tied(), path, strict=False) == (set(), ["b.weight"])
    longshore.torch.save_model(Tied(), path)
    with longshore.safe_open(path, "pt") as file:
        assert file.keys() == ["a.weight"] and file.metadata() == {"b.weight": "a.weight"}
    assert longshore.torch.load_model(Tied(), path) == (set(), [])
