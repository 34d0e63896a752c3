"""An OpenVINO model whose constants are memory that longshore loaded.

    python openvino_constants.py                      makes a model of 32 MiB
    python openvino_constants.py model.safetensors    takes "table" and "head" from that file

`Constant(array, shared_memory=True)` shares an array's memory; that it does is shown by its
address. OpenVINO takes only arrays that can be written to, though it does not write to them, so the
buffer is loaded with `writable=True`: nobody else is given it here. The result is held against the
ordinary way, constants that are copies.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import numpy as np
import openvino
import safetensors.numpy
from openvino import opset13 as op

ROWS, WIDTH, OUT = 8000, 1024, 64


def make(path: Path) -> None:
    """Writes a model with random weights."""
    random = np.random.default_rng(7)
    table = random.standard_normal((ROWS, WIDTH), np.float32)
    longshore.numpy.save_file({"table": table, "head": table[:WIDTH, :OUT].copy()}, path)


def compiled(table: Any, head: Any) -> Any:
    """A model that looks words up and multiplies."""
    words = op.parameter([-1], np.int64, name="words")
    found = op.gather(table, words, op.constant(0))
    model = openvino.Model([op.matmul(found, head, False, False)], [words], "lookup")
    # The plugin would compute in fewer bits where the processor can.
    return openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def run(path: Path) -> None:
    """Compiles the model in both ways and says what was found."""
    buffer = longshore.load(path, align=64, writable=True, format="safetensors")
    shared: dict[str, Any] = {}
    for name in ("table", "head"):
        tensor = buffer.tensors[name]
        constant = openvino.op.Constant(longshore.numpy.asarray(tensor), shared_memory=True)
        if constant.data.ctypes.data != tensor.address:
            raise SystemExit(f"{name} was copied")
        shared[name] = constant
        print(f"{name}: {tensor.nbytes:,} bytes at {tensor.address:#x}, shared")
    arrays = safetensors.numpy.load_file(path)
    copies = {name: op.constant(arrays[name]) for name in ("table", "head")}

    words = np.array([3, 1, 4, 15, 92, 653])
    ours, ordinary = (
        compiled(constants["table"], constants["head"])([words])[0]
        for constants in (shared, copies)
    )
    equal = np.array_equal(ours, ordinary)
    print(f"the results {'are equal' if equal else 'differ'}")
    if not equal:
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
