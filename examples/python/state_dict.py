"""A small transformer whose weights are a state_dict that longshore loaded.

    python state_dict.py                      makes a model, runs it by numpy and by JAX
    python state_dict.py model.safetensors    runs that model, of the shape that it makes itself

Every JAX array is the memory that the file was read into: no weight is copied. The result is held
against the ordinary way, `safetensors` and numpy.

With the package transformers, which takes a state_dict beside a configuration, by `longshore.torch`:

    from transformers import LlamaConfig, LlamaForCausalLM
    import longshore.torch

    state_dict = longshore.torch.load_file("model.safetensors")
    config = LlamaConfig.from_pretrained("folder/of/the/model")
    model = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state_dict)
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import longshore
import longshore.jax
import longshore.numpy
import numpy as np
import safetensors.numpy

WORDS, WIDTH, HEADS, LAYERS = 512, 256, 4, 3


def make(path: Path) -> None:
    """Writes a model with random weights, under names as transformers has them."""
    random = np.random.default_rng(7)

    def weight(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))

    state = {
        "model.embed_tokens.weight": weight(WORDS, WIDTH),
        "model.norm.weight": weight(WIDTH) + 1,
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            state[f"{name}.self_attn.{projection}.weight"] = weight(WIDTH, WIDTH)
        state[f"{name}.mlp.up_proj.weight"] = weight(4 * WIDTH, WIDTH)
        state[f"{name}.mlp.down_proj.weight"] = weight(WIDTH, 4 * WIDTH)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"{name}.{norm}.weight"] = weight(WIDTH) + 1
    longshore.numpy.save_file(state, path, {"format": "np"})


def forward(state: dict[str, Any], words: Any, xp: Any) -> Any:
    """What comes next by the model, as scores of every word; `xp` is numpy or jax.numpy."""

    def norm(x: Any, name: str) -> Any:
        return x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * state[f"{name}.weight"]

    def linear(x: Any, name: str) -> Any:
        return x @ state[f"{name}.weight"].T

    def heads(x: Any) -> Any:
        return x.reshape(len(words), HEADS, -1).swapaxes(0, 1)

    x = state["model.embed_tokens.weight"][words]
    hidden = xp.triu(xp.full((len(words), len(words)), -1e9, dtype=x.dtype), 1)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        inner = norm(x, f"{name}.input_layernorm")
        q, k, v = (heads(linear(inner, f"{name}.self_attn.{it}_proj")) for it in "qkv")
        scores = q @ k.swapaxes(1, 2) / np.float32(np.sqrt(WIDTH // HEADS)) + hidden
        scores = xp.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        x = x + linear(mixed.swapaxes(0, 1).reshape(len(words), WIDTH), f"{name}.self_attn.o_proj")
        inner = linear(norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp.up_proj")
        x = x + linear(xp.maximum(inner, 0), f"{name}.mlp.down_proj")
    return norm(x, "model.norm") @ state["model.embed_tokens.weight"].T


def run(path: Path) -> None:
    """Runs the model in both ways and says what was found."""
    words = np.array([3, 14, 159, 26])
    # JAX shares memory that is aligned to 64 bytes.
    buffer = longshore.load(path, align=64, format="safetensors")
    state = {name: longshore.jax.asarray(tensor) for name, tensor in buffer.tensors.items()}
    shared = sum(
        array.unsafe_buffer_pointer() == buffer.tensors[name].address
        for name, array in state.items()
    )
    ours = jax.jit(lambda state, words: forward(state, words, jnp))(state, words)
    ordinary = forward(safetensors.numpy.load_file(path), words, np)
    difference = float(np.abs(np.asarray(ours) - ordinary).max())
    print(f"{len(state)} weights, {shared} of them shared with JAX, {len(state) - shared} copied")
    print(f"the next word is {int(ours[-1].argmax())}; difference {difference:.1e}")
    if shared != len(state) or difference > 1e-2 or ours[-1].argmax() != ordinary[-1].argmax():
        raise SystemExit("this is not what was to be shown")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, help="a safetensors file; made if left out")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            model = Path(folder) / "model.safetensors"
            make(model)
        run(model)


if __name__ == "__main__":
    main()
