"""An ONNX model whose weights are in memory that longshore loaded.

    python onnx_runtime.py                      makes a model of 64 MiB
    python onnx_runtime.py model.safetensors    takes "table" and "head" from that file

The graph has no weights of its own: it names a file, "weights", and where in it each lies. ONNX
Runtime takes them in two ways:

    files in memory   `SessionOptions.add_external_initializers_from_files_in_memory`: the buffer is
                      that file. ONNX Runtime copies what it needs while the session is made
    shared            `SessionOptions.add_initializer`, with an `OrtValue` for each tensor, by
                      DLPack: nothing is copied. The file has to be there, but may be empty

By how much the process's own memory grew tells which copied. The results are held against the
ordinary way, a file on the disk.
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

ROWS, WIDTH, OUT = 16000, 1024, 64


def make(path: Path) -> None:
    """Writes a model with random weights."""
    random = np.random.default_rng(7)
    table = random.standard_normal((ROWS, WIDTH), np.float32)
    longshore.numpy.save_file({"table": table, "head": table[:WIDTH, :OUT].copy()}, path)


def graph(tensors: dict[str, tuple[tuple[int, ...], int, int]]) -> bytes:
    """A graph that looks words up and multiplies; shape, offset and length of its weights."""
    weights = []
    for name, (shape, offset, length) in tensors.items():
        weight = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape)
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights"), ("offset", offset), ("length", length)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
    nodes = [
        onnx.helper.make_node("Gather", ["table", "words"], ["found"]),
        onnx.helper.make_node("MatMul", ["found", "head"], ["scores"]),
    ]
    words = onnx.helper.make_tensor_value_info("words", onnx.TensorProto.INT64, [None])
    scores = onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [None, OUT])
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "lookup", [words], [scores], weights),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=9,
    )
    content: bytes = model.SerializeToString()
    return content


def own_memory_bytes() -> int:
    """The memory that is this process's alone, and not of a file or a memfd."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def session(model: bytes | str, options: Any) -> tuple[Any, int]:
    """A session, and by how many bytes the process's own memory grew."""
    before = own_memory_bytes()
    # One thread, so that none brings memory of its own.
    options.intra_op_num_threads = 1
    made = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return made, own_memory_bytes() - before


def run(path: Path) -> None:
    """Makes a session in each way and says what was found."""
    buffer = longshore.load(path, align=64, format="safetensors")
    tensors = {name: buffer.tensors[name] for name in ("table", "head")}
    model = graph({name: (it.shape, it.offset, it.nbytes) for name, it in tensors.items()})
    weights_bytes = sum(tensor.nbytes for tensor in tensors.values())

    options = onnxruntime.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["weights"], [buffer], [len(buffer)])
    in_memory, in_memory_growth = session(model, options)

    options = onnxruntime.SessionOptions()
    values = {name: onnxruntime.OrtValue.from_dlpack(it) for name, it in tensors.items()}
    for name, value in values.items():
        if value.data_ptr() != tensors[name].address:
            raise SystemExit(f"{name} was copied")
        options.add_initializer(name, value)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "weights").touch()
        (Path(folder) / "model.onnx").write_bytes(model)
        shared, shared_growth = session(str(Path(folder) / "model.onnx"), options)

        (Path(folder) / "weights").write_bytes(buffer)
        ordinary, _ = session(str(Path(folder) / "model.onnx"), onnxruntime.SessionOptions())

    words = {"words": np.array([3, 1, 4, 15, 92, 653])}
    expected = ordinary.run(None, words)[0]
    equal = all(np.array_equal(it.run(None, words)[0], expected) for it in (shared, in_memory))
    print(f"weights: {weights_bytes:,} bytes")
    print(
        f"own memory grew by {in_memory_growth:,} bytes by files in memory, by {shared_growth:,} shared"
    )
    print(f"the results {'are equal' if equal else 'differ'}")
    if not equal or shared_growth > weights_bytes // 2:
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
