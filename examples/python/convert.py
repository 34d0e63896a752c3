"""Converts the 32-bit and 64-bit numbers of a model to half precision, in less memory than the model has.

    python convert.py                                     makes a model and converts it
    python convert.py model.safetensors half.safetensors  converts that one

The tensors come from a stream, which reads the next ones while one is converted and written, and uses the
memory of each again. So the program needs the memory of the stream and of one converted tensor. Tensors of
other types are copied. Numbers beyond 65,504 become infinite.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import longshore.numpy
import numpy as np

SHRINKS = {"F64": 4, "F32": 2}
"""The types that are converted, and the lengths of their elements relative to half precision."""


def header_of(source: Path) -> tuple[bytes, dict[str, int]]:
    """Return the header of the converted file, and the offset of each tensor in that file."""
    header: dict[str, Any] = {}
    end = 0
    with longshore.safe_open(source, "np") as file:
        if metadata := file.metadata():
            header["__metadata__"] = metadata
        for name in file.offset_keys():
            meta = file.get_tensor_meta(name)
            dtype = "F16" if meta.dtype in SHRINKS else meta.dtype
            length = meta.data_offsets[1] - meta.data_offsets[0]
            begin, end = end, end + length // SHRINKS.get(meta.dtype, 1)
            header[name] = {"dtype": dtype, "shape": meta.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    prefix = len(text).to_bytes(8, "little") + text
    header.pop("__metadata__", None)
    return prefix, {name: len(prefix) + entry["data_offsets"][0] for name, entry in header.items()}


def convert(source: Path, target: Path, memory: str) -> None:
    """Write the converted model to `target`, which appears when it is complete."""
    prefix, offsets = header_of(source)
    partial = target.with_name(target.name + ".part")
    try:
        with partial.open("wb") as file, longshore.stream(source, memory=memory) as tensors:
            file.write(prefix)
            for name, tensor in tensors:
                file.seek(offsets[name])
                if tensor.dtype in SHRINKS:
                    half = longshore.numpy.asarray(tensor).astype(np.float16)
                    file.write(half.reshape(-1).view(np.uint8).data)
                else:
                    file.write(tensor.data)
                # The variable would keep the memory until the next tensor is there.
                del tensor
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    read, written = tensors.stats["bytes_read"], target.stat().st_size
    print(f"{read:,} bytes read, {written:,} bytes written")


def make(path: Path) -> None:
    """Write a model with random weights."""
    random = np.random.default_rng(7)
    weights = {f"layers.{at}.weight": random.random((512, 1024), np.float32) for at in range(16)}
    longshore.numpy.save_file(weights, path, {"format": "np"})


def compare(source: Path, target: Path) -> None:
    """Compare both models tensor by tensor."""
    whole = longshore.numpy.load_file(source)
    half = longshore.numpy.load_file(target)
    equal = all(np.array_equal(half[name], whole[name].astype(np.float16)) for name in whole)
    if half.keys() != whole.keys() or not equal:
        raise SystemExit("the converted model differs")
    print(f"{len(half)} tensors are equal")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, help="a safetensors file; made if left out")
    parser.add_argument("target", nargs="?", type=Path, help="the file to write")
    parser.add_argument("--memory", default="1GiB", help="the memory of the stream [default: 1GiB]")
    arguments = parser.parse_args()
    if arguments.model is not None and arguments.target is None:
        parser.error("name the file to write")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is not None:
            if os.path.exists(arguments.target):
                parser.error(f"{arguments.target} exists")
            convert(arguments.model, arguments.target, arguments.memory)
            return
        source, target = Path(folder) / "model.safetensors", Path(folder) / "half.safetensors"
        make(source)
        convert(source, target, "4MiB")
        compare(source, target)


if __name__ == "__main__":
    main()
