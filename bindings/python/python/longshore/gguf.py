"""Loads GGUF files, with the class and attribute names of the package `gguf`.

`load` returns the tensors and the metadata that `gguf.GGUFReader` returns, in memory that can be
shared and that is filled at the disk's speed. Tensors are read-only views of it.

The positions in the file are there, too, and are computed when they are first used: `parts` and
`data` of a `ReaderField`, and the `field` of a `ReaderTensor`. The package lacks two mappings that
this module adds: `metadata`, and tensors by name.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

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
    """The type of a tensor's elements, by ggml's numbers."""

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
    """The type of a metadata value, by the format's numbers."""

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
"""The types that numpy has; tensors of other types are arrays of bytes, block by block."""


_SCALARS = {
    GGUFValueType.UINT8: "u1",
    GGUFValueType.INT8: "i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}

Parts = tuple[list[Array], list[int]]
"""Views of ranges of a file, and the indices of those that are data, not lengths and types."""


@dataclass(frozen=True, eq=False)
class ReaderField:
    """An entry of the header."""

    name: str
    types: list[GGUFValueType]
    """The type of the value; for an array, followed by the type of its elements."""
    value: Any
    offset: int
    """Its offset in the file in bytes, or in the aligned layout in memory if `align` was given."""
    _read: Callable[[int], Parts]

    @cached_property
    def _pieces(self) -> Parts:
        return self._read(self.offset)

    @property
    def parts(self) -> list[Array]:
        """Views of the memory: name, type and value, each length before its content."""
        return self._pieces[0]

    @property
    def data(self) -> list[int]:
        """The indices of the parts that are the value."""
        return self._pieces[1]

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """Return the value; for an array, the selected elements."""
        if self.types and self.types[0] == GGUFValueType.ARRAY:
            return self.value[index_or_slice]
        return self.value


@dataclass(frozen=True, eq=False)
class ReaderTensor:
    """A tensor."""

    name: str
    tensor_type: GGMLQuantizationType
    shape: Array
    """Its dimensions as in the file: innermost first, the reverse of `data.shape`."""
    n_elements: int
    n_bytes: int
    data_offset: int
    """The offset of its data in the file in bytes, or in the aligned layout in memory if `align` was
    given."""
    data: Array
    """A view of the memory; for types that numpy lacks, of bytes, with a row of blocks in each row."""
    _header: _Header

    @property
    def field(self) -> ReaderField:
        """Its entry in the header."""
        return self._header.tensor_fields[self.name]


class _Header:
    """Finds the entries of a file's header."""

    def __init__(self, file: _core.File, content: Array) -> None:
        self._file = file
        self._content = content

    def scalar(self, dtype: str) -> Callable[[int], Parts]:
        return lambda offset: ([self._take(offset, dtype)], [0])

    def entry(self, offset: int) -> Parts:
        """Return the parts of a metadata entry."""
        parts, offset = self._string(offset)
        kind = self._take(offset, "<u4")
        value, data = self._value(offset + 4, GGUFValueType(int(kind[0])))
        return [*parts, kind, *value], [number + 3 for number in data]

    def tensor(self, offset: int) -> Parts:
        """Return the parts of a tensor's entry."""
        parts, offset = self._string(offset)
        n_dims = self._take(offset, "<u4")
        dims = self._take(offset + 4, "<u8", int(n_dims[0]))
        offset += 4 + dims.nbytes
        kind, data_offset = self._take(offset, "<u4"), self._take(offset + 4, "<u8")
        return [*parts, n_dims, dims, kind, data_offset], [1, 3, 4, 5]

    @cached_property
    def tensor_fields(self) -> dict[str, ReaderField]:
        """The entries of the tensors, which follow the metadata."""
        offset = _OPENING_BYTES
        if offsets := self._file.metadata_offsets:
            offset = max(offsets.values())
            offset += sum(part.nbytes for part in self.entry(offset)[0])
        fields = {}
        for _ in range(len(self._file.tensors)):
            parts, _data = self.tensor(offset)
            name = parts[1].tobytes().decode()
            fields[name] = ReaderField(name, [], None, offset, self.tensor)
            offset += sum(part.nbytes for part in parts)
        return fields

    def _take(self, offset: int, dtype: str, count: int = 1) -> Array:
        kind = np.dtype(dtype)
        return self._content[offset : offset + count * kind.itemsize].view(kind)

    def _string(self, offset: int) -> tuple[list[Array], int]:
        length = self._take(offset, "<u8")
        text = self._take(offset + 8, "u1", int(length[0]))
        return [length, text], offset + 8 + text.nbytes

    def _value(self, offset: int, kind: GGUFValueType) -> Parts:
        if kind == GGUFValueType.STRING:
            return self._string(offset)[0], [1]
        if kind != GGUFValueType.ARRAY:
            return [self._take(offset, _SCALARS[kind])], [0]
        element, length = self._take(offset, "<u4"), self._take(offset + 4, "<u8")
        offset += 12
        parts, data = [element, length], []
        for _ in range(int(length[0])):
            of_one, numbers = self._value(offset, GGUFValueType(int(element[0])))
            data += [len(parts) + number for number in numbers]
            parts += of_one
            offset += sum(part.nbytes for part in of_one)
        return parts, data


_OPENING_BYTES = 24
"""The length of the magic, the version, and the numbers of tensors and of metadata entries."""


class GGUFFile(Mapping[str, ReaderTensor]):
    """A mapping from names to the tensors of a GGUF file, or of all splits of one."""

    def __init__(self, buffer: _core.Buffer) -> None:
        self.buffer = buffer
        """The memory that the tensors are in."""
        first = buffer.files[0]
        self.version: int = first.version or 0
        self.alignment: int = first.alignment or 0
        self.data_offset: int = first.data_offset or 0
        self.metadata: Mapping[str, Any] = first.metadata
        """Values by name; for splits, those of the first, which has all of them."""
        headers = [_header(buffer, file) for file in buffer.files]
        self.tensors: list[ReaderTensor] = [
            _tensor(tensor, file, header)
            for file, header in zip(buffer.files, headers, strict=True)
            for tensor in file.tensors.values()
        ]
        """The tensors, in the order of their data."""
        self.fields: dict[str, ReaderField] = self._fields(first, headers[0])
        """The metadata with its types, and the header's version and counts."""
        self._by_name = {tensor.name: tensor for tensor in self.tensors}

    def get_field(self, key: str) -> ReaderField | None:
        """Return the metadata entry of that name, or None."""
        return self.fields.get(key)

    def get_tensor(self, idx: int) -> ReaderTensor:
        """Return the tensor with that index."""
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

    def _fields(self, first: _core.File, header: _Header) -> dict[str, ReaderField]:
        version = ReaderField(
            "GGUF.version", [GGUFValueType.UINT32], self.version, 4, header.scalar("<u4")
        )
        counts = {"GGUF.tensor_count": len(first.tensors), "GGUF.kv_count": len(self.metadata)}
        fields = {version.name: version}
        for number, (name, count) in enumerate(counts.items()):
            offset, read = 8 + 8 * number, header.scalar("<u8")
            fields[name] = ReaderField(name, [GGUFValueType.UINT64], count, offset, read)
        types, offsets = first.metadata_types, first.metadata_offsets
        for name, value in self.metadata.items():
            kinds = [GGUFValueType(number) for number in types[name]]
            if value == [] and kinds[0] == GGUFValueType.ARRAY:
                # As in the package, which takes the element type from the first element.
                kinds = kinds[:1]
            fields[name] = ReaderField(name, kinds, value, offsets[name], header.entry)
        return fields


def load(path: StrPath, **options: Unpack[Options]) -> GGUFFile:
    """Load a GGUF file; the first of several splits stands for all.

    `options` are the arguments of `longshore.load`.
    """
    return GGUFFile(_load_buffer(path, format="gguf", **options))


def _header(buffer: _core.Buffer, file: _core.File) -> _Header:
    content = np.frombuffer(memoryview(buffer), np.uint8)
    return _Header(file, content[file.offset : file.offset + file.nbytes])


def _tensor(tensor: _core.Tensor, file: _core.File, header: _Header) -> ReaderTensor:
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
        _header=header,
    )


def _data(tensor: _core.Tensor, kind: GGMLQuantizationType) -> Array:
    shape = tensor.shape
    dtype = np.dtype(_NUMPY.get(kind, "uint8"))
    if kind not in _NUMPY:
        # A row consists of whole blocks.
        elements, nbytes = tensor.block
        shape = (*shape[:-1], (shape[-1] if shape else 1) // elements * nbytes)
    if tensor.nbytes == 0:
        empty = np.empty(shape, dtype)
        empty.flags.writeable = not tensor.readonly
        return empty
    return np.frombuffer(tensor.data, dtype).reshape(shape)
