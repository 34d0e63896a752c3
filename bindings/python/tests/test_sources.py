"""Directories and names of the Hugging Face Hub, in place of files."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import longshore
import numpy as np
import pytest
from longshore.numpy import load_file, save_file, stream

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def save(path: Path, value: int) -> Path:
    """Write a model with one tensor of this value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": np.full(5, value, np.int32)}, path)
    return path


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a revision in a cache of the Hub."""
    repository = tmp_path / "hub" / "models--org--name"
    blob = save(repository / "blobs" / "0f1e", 3)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blob)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


def test_a_directory_and_a_name_of_the_hub_are_loaded(snapshot: Path) -> None:
    blob = snapshot.parent.parent / "blobs" / "0f1e"
    for source in (snapshot, "hf://org/name", f"hf://org/name@{COMMIT}", blob):
        assert list(load_file(source)["weight"]) == [3] * 5
        with longshore.load(source) as buffer:
            assert list(buffer) == ["weight"]
            with pickle.loads(pickle.dumps(buffer)) as again:
                assert bytes(again) == bytes(buffer)
        with stream(source) as tensors:
            assert [name for name, _ in tensors] == ["weight"]
        with longshore.safe_open(source, "numpy") as file:
            assert list(file.get_tensor("weight")) == [3] * 5


def test_find_files_selects_a_variant_or_files(tmp_path: Path) -> None:
    plain = save(tmp_path / "model.safetensors", 1)
    half = save(tmp_path / "model.fp16.safetensors", 2)
    assert longshore.find_files(tmp_path) == [str(plain)]
    assert longshore.find_files(tmp_path, variant="fp16") == [str(half)]
    assert longshore.find_files(tmp_path, include="*.safetensors") == [str(half), str(plain)]
    assert longshore.find_files(tmp_path, include=["*.fp16.*"]) == [str(half)]
    assert longshore.find_files(plain) == [str(plain)]
    with longshore.load(longshore.find_files(tmp_path, variant="fp16")) as buffer:
        assert np.asarray(buffer["weight"])[0] == 2


def test_sources_without_a_model_raise_errors(snapshot: Path, tmp_path: Path) -> None:
    with pytest.raises(longshore.NotFoundError, match="run: hf download org/other"):
        longshore.load("hf://org/other")
    with pytest.raises(longshore.LongshoreError, match="expected hf://ORG/NAME"):
        longshore.load("hf://org/name/../x")
    with pytest.raises(longshore.NotFoundError, match="no files of the variant") as missing:
        longshore.find_files(snapshot, variant="fp16")
    assert missing.value.filename == str(snapshot)
    save(tmp_path / "two" / "a.safetensors", 1)
    save(tmp_path / "two" / "b.safetensors", 1)
    with pytest.raises(longshore.LongshoreError, match="it contains 2 models"):
        longshore.load(tmp_path / "two")
