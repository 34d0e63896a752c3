"""An OpenVINO model whose constants are memory that longshore loaded.

    python openvino_constants.py                      makes a model of 64 MiB
    python openvino_constants.py model.safetensors    takes "up" and "down" from that file

`Constant(array, shared_memory=True)` shares an array's memory; the address shows it. OpenVINO takes
only arrays that can be written to, though it does not write to them, so the buffer is loaded with
`writable=True`. Here, no other process gets it.

So the model itself has no copy of the weights. OpenVINO's plugin for CPUs makes one of each matrix, in
the layout that its kernels need, when it compiles the model and when that first runs: the process then
has the loaded memory and this copy. With constants that are copies, it has a third one.

The example measures how much the process's own memory grows, and compares that and the results with
the ordinary way, constants that are copies.
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

WIDTH, INNER = 2048, 4096


def make(path: Path) -> None:
    """Writes a model with random weights."""
    random = np.random.default_rng(7)
    up = random.standard_normal((WIDTH, INNER), np.float32) / np.float32(np.sqrt(WIDTH))
    down = random.standard_normal((INNER, WIDTH), np.float32) / np.float32(np.sqrt(INNER))
    longshore.numpy.save_file({"up": up, "down": down}, path)


def own_memory_bytes() -> int:
    """Returns the process's own memory: neither a file nor a memfd."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def compiled(up: Any, down: Any) -> Any:
    """Compiles a model of two matrices."""
    x = op.parameter([-1, up.shape[0]], np.float32, name="x")
    inner = op.relu(op.matmul(x, up, False, False))
    model = openvino.Model([op.matmul(inner, down, False, False)], [x], "layer")
    # Otherwise the plugin computes with fewer bits if the processor can.
    return openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def shared_constant(tensor: longshore.Tensor) -> Any:
    """Makes a constant of the loaded memory."""
    constant = openvino.op.Constant(longshore.numpy.asarray(tensor), shared_memory=True)
    if constant.data.ctypes.data != tensor.address:
        raise SystemExit(f"{tensor.name} was copied")
    return constant


def run(path: Path) -> None:
    """Compiles the model in both ways, and compares their results."""
    buffer = longshore.load(path, align=64, writable=True, format="safetensors")
    arrays = safetensors.numpy.load_file(path)
    weights_bytes = sum(array.nbytes for array in arrays.values())
    print(f"weights: {weights_bytes:,} bytes")

    x = np.random.default_rng(1).standard_normal((3, arrays["up"].shape[0]), np.float32)
    # The first model also starts the plugin, whose memory is not to be measured.
    compiled(op.constant(np.ones((8, 8), np.float32)), op.constant(np.ones((8, 8), np.float32)))
    results, growths = [], []
    for way in ("shared", "copied"):
        before = own_memory_bytes()
        constants = [
            shared_constant(buffer.tensors[name]) if way == "shared" else op.constant(arrays[name])
            for name in ("up", "down")
        ]
        made = own_memory_bytes() - before
        model = compiled(*constants)
        results.append(model([x])[0])
        total = own_memory_bytes() - before
        print(f"{way} constants: own memory grew by {made:,} bytes, and by {total:,} in all")
        growths.append(made)
        del constants, model

    # Another order of additions rounds differently.
    equal = np.allclose(results[0], results[1], rtol=1e-3, atol=1e-3)
    print(f"the results {'are equal' if equal else 'differ'}")
    if not equal or growths[0] > weights_bytes // 4:
        raise SystemExit("the constants were copied, or the results differ")


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
