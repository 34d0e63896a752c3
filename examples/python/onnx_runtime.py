"""An ONNX model whose weights are in memory that longshore loaded.

    python onnx_runtime.py                      makes a model of 32 MiB
    python onnx_runtime.py model.safetensors    takes "table" and "head" from that file

The graph has no weights of its own: it names a file, "weights", and where in it each lies. That
file is the buffer: `SessionOptions.add_external_initializers_from_files_in_memory`. ONNX Runtime
copies what it needs of it while the session is made, unless it has the tensor already: by
`SessionOptions.add_initializer`, with an `OrtValue` that shares the memory by DLPack. This does
both:

    copied    the file in memory alone
    shared    the file in memory, and an `OrtValue` for each tensor

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

ROWS, WIDTH, OUT = 8000, 1024, 64


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

    def file_in_memory() -> Any:
        options = onnxruntime.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["weights"], [buffer], [len(buffer)])
        return options

    options = file_in_memory()
    values = {name: onnxruntime.OrtValue.from_dlpack(it) for name, it in tensors.items()}
    for name, value in values.items():
        if value.data_ptr() != tensors[name].address:
            raise SystemExit(f"{name} was copied")
        options.add_initializer(name, value)
    shared, shared_growth = session(model, options)
    copied, copied_growth = session(model, file_in_memory())

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "weights").write_bytes(buffer)
        (Path(folder) / "model.onnx").write_bytes(model)
        ordinary, _ = session(str(Path(folder) / "model.onnx"), onnxruntime.SessionOptions())

    words = {"words": np.array([3, 1, 4, 15, 92, 653])}
    expected = ordinary.run(None, words)[0]
    equal = all(np.array_equal(it.run(None, words)[0], expected) for it in (shared, copied))
    print(f"weights: {weights_bytes:,} bytes")
    print(f"own memory grew by {shared_growth:,} bytes shared, by {copied_growth:,} copied")
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
