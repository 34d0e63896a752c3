"""GGUF files, under the names that the package `gguf` has for what is in them.

`load` gives the tensors and the metadata that `gguf.GGUFReader` gives, in memory that is shared and
filled at the disk's speed. Tensors are read-only views of it.

A `ReaderField` has `name`, `types`, `value` and `contents()`. It has neither `offset`, `parts` nor
`data`, which say where in the file an entry is: values are read once, and not where they lie. Nor
has a `ReaderTensor` a `field`. Who needs those opens `Buffer.path` with the package itself. The
other way round, what is a mapping here, `metadata` and tensors by name, is not there.

>>> import numpy, gguf
>>> writer = gguf.GGUFWriter("tiny.gguf", "llama")
>>> writer.add_block_count(2)
>>> writer.add_tensor("norm.weight", numpy.ones((2, 3), numpy.float32))
>>> for write in ("header", "kv_data", "tensors"):
...     getattr(writer, f"write_{write}_to_file")()
>>> writer.close()

>>> import longshore.gguf
>>> model = longshore.gguf.load("tiny.gguf")
>>> model.metadata["general.architecture"], model.metadata["llama.block_count"]
('llama', 2)
>>> model["norm.weight"].tensor_type.name, model["norm.weight"].data.shape
('F32', (2, 3))
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from longshore import _core
from longshore._load import load as _load_buffer
from longshore.errors import FormatError

if TYPE_CHECKING:
    from longshore._load import Options, StrPath

__all__ = [
    "GGMLQuantizationType",
    "GGUFFile",
    "GGUFValueType",
    "ReaderField",
    "ReaderTensor",
    "load",
]

Array = np.ndarray[Any, np.dtype[Any]]


class GGMLQuantizationType(IntEnum):
    """How the elements of a tensor are packed: ggml's numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


class GGUFValueType(IntEnum):
    """What a value of the metadata is: the format's numbers."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_NUMPY = {
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.F32: "float32",
    GGMLQuantizationType.F64: "float64",
    GGMLQuantizationType.I8: "int8",
    GGMLQuantizationType.I16: "int16",
    GGMLQuantizationType.I32: "int32",
    GGMLQuantizationType.I64: "int64",
}
"""What is an array of numbers; the rest is one of bytes, block by block."""


class ReaderField(NamedTuple):
    """An entry of the metadata."""

    name: str
    types: list[GGUFValueType]
    """Its type, and behind that of an array the type of its elements."""
    value: Any

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """The value, or of an array the elements asked for."""
        if self.types[0] == GGUFValueType.ARRAY:
            return self.value[index_or_slice]
        return self.value


class ReaderTensor(NamedTuple):
    """A tensor."""

    name: str
    tensor_type: GGMLQuantizationType
    shape: Array
    """Its dimensions as in the file: innermost first, the other way round than of `data`."""
    n_elements: int
    n_bytes: int
    data_offset: int
    """Where its data begins in the file, or in its image in memory where `align` was asked for."""
    data: Array
    """A view of the memory. Of types that numpy lacks it is of bytes, a row of blocks each."""


class GGUFFile(Mapping[str, ReaderTensor]):
    """A GGUF file, or all splits of one: tensors by name."""

    def __init__(self, buffer: _core.Buffer) -> None:
        self.buffer = buffer
        """The memory."""
        first = buffer.files[0]
        self.version: int = first.version or 0
        self.alignment: int = first.alignment or 0
        self.data_offset: int = first.data_offset or 0
        self.metadata: Mapping[str, Any] = first.metadata
        """Values by name. Of splits, those of the first, which has all."""
        self.tensors: list[ReaderTensor] = [
            _tensor(tensor, file) for file in buffer.files for tensor in file.tensors.values()
        ]
        """In the order of their data."""
        self.fields: dict[str, ReaderField] = self._fields(first)
        """The metadata with its types, and what the header has beside it."""
        self._by_name = {tensor.name: tensor for tensor in self.tensors}

    def get_field(self, key: str) -> ReaderField | None:
        """The entry of the metadata of that name, if there is one."""
        return self.fields.get(key)

    def get_tensor(self, idx: int) -> ReaderTensor:
        """The tensor of that number."""
        return self.tensors[idx]

    def __getitem__(self, name: str) -> ReaderTensor:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        kind = self.metadata.get("general.architecture", "unknown")
        return f"<longshore.gguf.GGUFFile: {kind}, {len(self)} tensors>"

    def _fields(self, first: _core.File) -> dict[str, ReaderField]:
        header = {
            "GGUF.version": (GGUFValueType.UINT32, self.version),
            "GGUF.tensor_count": (GGUFValueType.UINT64, len(first.tensors)),
            "GGUF.kv_count": (GGUFValueType.UINT64, len(self.metadata)),
        }
        fields = {name: ReaderField(name, [kind], value) for name, (kind, value) in header.items()}
        types = first.metadata_types
        for name, value in self.metadata.items():
            kinds = [GGUFValueType(number) for number in types[name]]
            if value == [] and kinds[0] == GGUFValueType.ARRAY:
                # As the package, which learns the type of the elements from the first.
                kinds = kinds[:1]
            fields[name] = ReaderField(name, kinds, value)
        return fields


def load(path: StrPath, **options: Unpack[Options]) -> GGUFFile:
    """Load a GGUF file; the first of several splits stands for all.

    `options` are those of `longshore.load`.
    """
    return GGUFFile(_load_buffer(path, format="gguf", **options))


def _tensor(tensor: _core.Tensor, file: _core.File) -> ReaderTensor:
    kind = GGMLQuantizationType.__members__.get(tensor.dtype)
    if kind is None:
        raise FormatError(
            errno.EBADMSG,
            f"tensor '{tensor.name}' is {tensor.dtype}, which longshore.gguf has no number for; "
            f"longshore.load(…).tensors['{tensor.name}'].data has its bytes",
        )
    return ReaderTensor(
        name=tensor.name,
        tensor_type=kind,
        shape=np.array(tensor.shape[::-1], np.uint64),
        n_elements=int(np.prod(tensor.shape, dtype=np.uint64)),
        n_bytes=tensor.nbytes,
        data_offset=tensor.offset - file.offset,
        data=_data(tensor, kind),
    )


def _data(tensor: _core.Tensor, kind: GGMLQuantizationType) -> Array:
    shape = tensor.shape
    dtype = np.dtype(_NUMPY.get(kind, "uint8"))
    if kind not in _NUMPY:
        # A row is whole blocks.
        elements, nbytes = tensor.block
        shape = (*shape[:-1], (shape[-1] if shape else 1) // elements * nbytes)
    if tensor.nbytes == 0:
        empty = np.empty(shape, dtype)
        empty.flags.writeable = not tensor.readonly
        return empty
    return np.frombuffer(tensor.data, dtype).reshape(shape)
