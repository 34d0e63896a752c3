"""A model of the package transformers, created from a state_dict that longshore loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="torch is not installed (LONGSHORE_TORCH=1 installs it)"
)
transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed (LONGSHORE_TORCH=1 installs it)"
)


def test_a_model_uses_the_loaded_memory_without_a_copy(tmp_path: Path) -> None:
    import longshore.torch

    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    ordinary = transformers.LlamaForCausalLM(config).eval()
    ordinary.save_pretrained(tmp_path)
    state_dict = longshore.torch.load_file(tmp_path / "model.safetensors")
    model = transformers.LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=state_dict
    ).eval()
    words = torch.arange(16)[None]
    with torch.no_grad():
        assert torch.equal(model(words).logits, ordinary(words).logits)
    loaded = {tensor.data_ptr() for tensor in state_dict.values()}
    parameters = dict(model.named_parameters())
    assert len(parameters) == len(state_dict)
    copied = [name for name, weight in parameters.items() if weight.data_ptr() not in loaded]
    assert copied == []
