"""Loads a Llama with transformers and computes one forward pass, and times both.

    llama.py make DIRECTORY LAYERS WIDTH      writes a model with random weights, in one safetensors file
    llama.py forward DIRECTORY [SOCKET]       prints a JSON object; with SOCKET, Longshore's server has the weights

The imports, and the same work with a tiny model, come before the time: transformers imports most of its
code when it is first used.
"""

import contextlib
import hashlib
import json
import sys
import tempfile
import time

import torch
import transformers


def make(directory, layers, width):
    """Write a model, in bfloat16."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=16 * width,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(width // 64, 1),
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(directory, max_shard_size="100GB")


def compute(directory):
    """Load the model, and return the logits of eight tokens."""
    with torch.no_grad():
        model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype="auto")
        return model(torch.arange(8).reshape(1, 8)).logits


def forward(directory, socket=None):
    """Compute the logits, and print the time and a hash of them."""
    with tempfile.TemporaryDirectory() as tiny:
        make(tiny, 1, 64)
        compute(tiny)
    patch = contextlib.nullcontext()
    if socket is not None:
        import longshore

        patch = longshore.patch_safetensors(attach="require", socket=socket)
    began = time.perf_counter()
    with patch:
        logits = compute(directory)
    seconds = time.perf_counter() - began
    digest = hashlib.sha256(logits.float().numpy().tobytes()).hexdigest()
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    print(json.dumps({"seconds": seconds, "logits": digest, "versions": versions}))


command, directory, *rest = sys.argv[1:]
if command == "make":
    make(directory, *map(int, rest))
else:
    forward(directory, *rest)
