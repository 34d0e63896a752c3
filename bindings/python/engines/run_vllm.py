"""Loads a model with vLLM in one of several ways, and prints what `compare.py` compares.

    run_vllm.py DIRECTORY WAY [EXTRA_CONFIG]

`WAY` is a load format. The last line of the output is a JSON object with a hash of every parameter, and
the tokens of greedy answers; after `sleep` and `reload_weights`, too, if this build of vLLM can sleep.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

ANSWERS = 200
TOKENS = 8


def parameters(worker: Any) -> dict[str, str]:
    """Return a hash of the bytes of every parameter and buffer, in the process of the engine."""
    import torch

    model = worker.model_runner.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: hashlib.sha256(
            bytes(memoryview(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()))
        ).hexdigest()
        for name, tensor in tensors
    }


def scramble(worker: Any) -> None:
    """Overwrite the parameters, so that a reload that does nothing is found."""
    for parameter in worker.model_runner.model.parameters():
        parameter.data.zero_()


def main() -> None:
    """Load, ask, reload, and ask again."""
    directory, way = sys.argv[1:3]
    extra = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    from vllm import LLM, SamplingParams

    model = LLM(
        directory,
        load_format=way,
        model_loader_extra_config=extra,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=64,
        max_num_seqs=64,
        enable_prefix_caching=False,
    )
    prompts: Any = [{"prompt_token_ids": [1 + seed, 7, 3 + seed % 5]} for seed in range(ANSWERS)]
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)

    def answers() -> list[list[int]]:
        replies = model.generate(prompts, sampling, use_tqdm=False)
        return [list(reply.outputs[0].token_ids) for reply in replies]

    result: dict[str, Any] = {"parameters": model.collective_rpc(parameters), "answers": answers()}
    try:
        model.sleep(level=2)
        model.wake_up()
        slept = True
    except Exception as error:  # noqa: BLE001, what it raises depends on the build
        slept = False
        print(f"sleep(level=2): {type(error).__name__}: {error}", file=sys.stderr)
    model.collective_rpc(scramble)
    model.collective_rpc("reload_weights")
    result["slept"] = slept
    result["reloaded"] = {"parameters": model.collective_rpc(parameters), "answers": answers()}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # Functions are sent to the engine's process.
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    main()
