"""Writes a small Llama with random weights, in two shards: `make_llama.py DIRECTORY`."""

from __future__ import annotations

import sys

import torch
import transformers


def main() -> None:
    """Write the directory."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        # Larger weights than the default's, so that the answers depend on all of them.
        initializer_range=0.2,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(sys.argv[1], max_shard_size="1MB")


if __name__ == "__main__":
    main()
