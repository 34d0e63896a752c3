"""An ONNX model whose weights are in memory that longshore loaded.

    python onnx_runtime.py                      makes a model of 64 MiB
    python onnx_runtime.py model.safetensors    takes "up" and "down" from that file

The graph has no weights of its own: it names a file, "weights", and the range of each weight in it.
`SessionOptions.add_initializer` with an `OrtValue` of each tensor, made by DLPack, gives ONNX Runtime
the memory itself. The file must exist, but may be empty.

Even then, ONNX Runtime copies the matrices of a MatMul by default: it packs them into the layout that
its kernels like best. `session.disable_prepacking` prevents this copy. Multiplications of many rows can
be slower without it.

The example measures how much the process's own memory grows in each way. It compares the results with
those of an ordinary session, which reads the weights from a file on the disk.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import longshore
import longshore.numpy
import numpy as np
import onnx
import onnxruntime

WIDTH, INNER = 2048, 4096


def make(path: Path) -> None:
    """Writes a model with random weights."""
    random = np.random.default_rng(7)
    up = random.standard_normal((WIDTH, INNER), np.float32) / np.float32(np.sqrt(WIDTH))
    down = random.standard_normal((INNER, WIDTH), np.float32) / np.float32(np.sqrt(INNER))
    longshore.numpy.save_file({"up": up, "down": down}, path)


def graph(tensors: dict[str, tuple[tuple[int, ...], int, int]]) -> bytes:
    """Returns a graph of two matrices; `tensors` has the shape, offset and length of each."""
    weights = []
    for name, (shape, offset, length) in tensors.items():
        weight = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape)
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights"), ("offset", offset), ("length", length)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "up"], ["inner"]),
        onnx.helper.make_node("Relu", ["inner"], ["positive"]),
        onnx.helper.make_node("MatMul", ["positive", "down"], ["y"]),
    ]
    width, out = tensors["up"][0][0], tensors["down"][0][1]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, width])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, out])
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "layer", [x], [y], weights),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=9,
    )
    content: bytes = model.SerializeToString()
    return content


def own_memory_bytes() -> int:
    """Returns the process's own memory: neither a file nor a memfd."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def session(model: Path, values: dict[str, Any], prepack: bool) -> tuple[Any, int]:
    """Returns a session, and by how many bytes the process's own memory grew."""
    before = own_memory_bytes()
    options = onnxruntime.SessionOptions()
    # One thread, so that no others have memory of their own.
    options.intra_op_num_threads = 1
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    for name, value in values.items():
        options.add_initializer(name, value)
    made = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return made, own_memory_bytes() - before


def run(path: Path) -> None:
    """Makes a session in each way, and compares their results."""
    buffer = longshore.load(path, align=64, format="safetensors")
    tensors = {name: buffer.tensors[name] for name in ("up", "down")}
    model = graph({name: (it.shape, it.offset, it.nbytes) for name, it in tensors.items()})
    weights_bytes = sum(tensor.nbytes for tensor in tensors.values())
    values = {name: onnxruntime.OrtValue.from_dlpack(it) for name, it in tensors.items()}
    for name, value in values.items():
        if value.data_ptr() != tensors[name].address:
            raise SystemExit(f"{name} was copied")

    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder) / "model.onnx"
        at.write_bytes(model)
        weights = Path(folder) / "weights"
        weights.touch()
        shared, shared_growth = session(at, values, prepack=False)
        packed, packed_growth = session(at, values, prepack=True)
        weights.write_bytes(buffer)
        ordinary, _ = session(at, {}, prepack=True)

    x = np.random.default_rng(1).standard_normal((3, tensors["up"].shape[0]), np.float32)
    expected = ordinary.run(None, {"x": x})[0]
    results = [it.run(None, {"x": x})[0] for it in (shared, packed)]
    # Another order of additions rounds differently.
    equal = all(np.allclose(it, expected, rtol=1e-3, atol=1e-3) for it in results)
    print(f"weights: {weights_bytes:,} bytes")
    print(f"own memory grew by {packed_growth:,} bytes with prepacking")
    print(f"own memory grew by {shared_growth:,} bytes without prepacking")
    print(f"the results {'are equal' if equal else 'differ'}")
    if not equal or shared_growth > weights_bytes // 4:
        raise SystemExit("the weights were copied, or the results differ")


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
