"""Loads GGUF files, with the class and attribute names of the package `gguf`.

`load` returns the tensors and the metadata that `gguf.GGUFReader` returns, in memory that can be
shared and that is filled at the disk's speed. Tensors are read-only views of it.

`GGUFReader` is a replacement for the class of that name; it does not write to files. Fields and tensors
are named tuples with the same elements. `parts` and `data` of a `ReaderField` are computed when they are
first used. The package lacks two mappings that this module adds: `metadata`, and tensors by name.

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
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Unpack

import numpy as np

from longshore import _core
from longshore._load import load as _load_buffer
from longshore.errors import FormatError

if TYPE_CHECKING:
    from longshore._load import Options, StrPath

__all__ = [
    "GGMLQuantizationType",
    "GGUFEndian",
    "GGUFFile",
    "GGUFReader",
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


class GGUFEndian(IntEnum):
    """The byte order of a file. Big-endian files raise FormatError."""

    LITTLE = 0
    BIG = 1


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


class _Lazy(Sequence[Any]):
    """A list that is made when it is first used."""

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self._make: Callable[[], list[Any]] | None = make
        self._made: list[Any] = []

    def _items(self) -> list[Any]:
        if self._make is not None:
            self._made = self._make()
            self._make = None
        return self._made

    def __getitem__(self, index: Any) -> Any:
        return self._items()[index]

    def __len__(self) -> int:
        return len(self._items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, _Lazy)) and self._items() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._items())


class _FieldTuple(NamedTuple):
    offset: int
    """Its offset in the file in bytes, or in the aligned layout in memory if `align` was given."""
    name: str
    parts: Sequence[Array]
    """Views of the memory: name, type and value, each length before its content."""
    data: Sequence[int]
    """The indices of the parts that are the value."""
    types: list[GGUFValueType]
    """The type of the value; for an array, followed by the type of its elements."""


class ReaderField(_FieldTuple):
    """An entry of the header."""

    value: Any
    """The value; None for the entry of a tensor."""

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """Return the value; for an array, the selected elements."""
        if self.types and self.types[0] == GGUFValueType.ARRAY:
            return self.value[index_or_slice]
        return self.value


def _field(
    name: str, types: list[GGUFValueType], value: Any, offset: int, read: Callable[[int], Parts]
) -> ReaderField:
    parts: _Lazy = _Lazy(lambda: read(offset)[0])
    field = ReaderField(offset, name, parts, _Lazy(lambda: read(offset)[1]), types)
    field.value = value
    return field


class ReaderTensor(NamedTuple):
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
    field: ReaderField
    """Its entry in the header."""


class _Header:
    """Finds the entries of a file's header."""

    def __init__(self, file: _core.File, content: Array) -> None:
        self._file = file
        self._content = content
        self._bytes = content.data

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

    def tensor_fields(self) -> dict[str, ReaderField]:
        """Return the entries of the tensors, which follow the metadata."""
        offset = _OPENING_BYTES
        if offsets := self._file.metadata_offsets:
            offset = self._after_entry(max(offsets.values()))
        fields = {}
        for _ in range(len(self._file.tensors)):
            begin = offset
            name, offset = self._text(offset)
            (n_dims,) = struct.unpack_from("<I", self._bytes, offset)
            # The dimensions, the type, and the offset of the data.
            offset += 4 + 8 * n_dims + 4 + 8
            fields[name] = _field(name, [], None, begin, self.tensor)
        return fields

    def _after_entry(self, offset: int) -> int:
        """Return the end of a metadata entry, without views of all elements."""
        _name, offset = self._text(offset)
        (kind,) = struct.unpack_from("<I", self._bytes, offset)
        return self._after_value(offset + 4, GGUFValueType(kind))

    def _after_value(self, offset: int, kind: GGUFValueType) -> int:
        length: int
        if kind == GGUFValueType.STRING:
            (length,) = struct.unpack_from("<Q", self._bytes, offset)
            return offset + 8 + length
        if kind != GGUFValueType.ARRAY:
            return offset + np.dtype(_SCALARS[kind]).itemsize
        element, length = struct.unpack_from("<IQ", self._bytes, offset)
        offset += 12
        if (of_one := GGUFValueType(element)) in _SCALARS:
            return offset + length * np.dtype(_SCALARS[of_one]).itemsize
        for _ in range(length):
            offset = self._after_value(offset, of_one)
        return offset

    def _text(self, offset: int) -> tuple[str, int]:
        (length,) = struct.unpack_from("<Q", self._bytes, offset)
        end = offset + 8 + length
        return bytes(self._bytes[offset + 8 : end]).decode(), end

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

    byte_order: Literal["I", "S"] = "I"
    """ "I" for the byte order of the machine, as in the package."""
    endianess = GGUFEndian.LITTLE
    """The byte order of the file, with the spelling of the package."""
    gguf_scalar_to_np: ClassVar[dict[GGUFValueType, type[np.generic]]] = {
        kind: np.dtype(name).type for kind, name in _SCALARS.items()
    }
    """The numpy types of metadata values that are no strings and no arrays."""

    def __init__(self, buffer: _core.Buffer) -> None:
        self.buffer = buffer
        """The memory that the tensors are in."""
        first = buffer.files[0]
        self.version: int = first.version or 0
        self.alignment: int = first.alignment or 0
        self.data_offset: int = first.data_offset or 0
        self.metadata: Mapping[str, Any] = first.metadata
        """Values by name; for splits, those of the first, which has all of them."""
        headers = [_Header(file, _content(buffer, file)) for file in buffer.files]
        self.data: Array = _content(buffer, first)
        """The bytes of the file, or of the first split; with `align`, of the aligned layout."""
        self.tensors: list[ReaderTensor] = [
            _tensor(tensor, file, fields[tensor.name])
            for file, fields in (
                (file, header.tensor_fields())
                for file, header in zip(buffer.files, headers, strict=True)
            )
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

    def __reduce__(self) -> tuple[Any, ...]:
        return GGUFFile, (self.buffer,)

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
        version = _field(
            "GGUF.version", [GGUFValueType.UINT32], self.version, 4, header.scalar("<u4")
        )
        counts = {"GGUF.tensor_count": len(first.tensors), "GGUF.kv_count": len(self.metadata)}
        fields = {version.name: version}
        for number, (name, count) in enumerate(counts.items()):
            offset, read = 8 + 8 * number, header.scalar("<u8")
            fields[name] = _field(name, [GGUFValueType.UINT64], count, offset, read)
        types, offsets = first.metadata_types, first.metadata_offsets
        for name, value in self.metadata.items():
            kinds = [GGUFValueType(number) for number in types[name]]
            if value == [] and kinds[0] == GGUFValueType.ARRAY:
                # As in the package, which takes the element type from the first element.
                kinds = kinds[:1]
            fields[name] = _field(name, kinds, value, offsets[name], header.entry)
        return fields


class GGUFReader(GGUFFile):
    """A loaded GGUF file, for programs written for `gguf.GGUFReader`.

    Args:
        path: The file.
        mode: "r" for read-only arrays, "c" for arrays that can be written to, which does not change the
            file.
        options: The arguments of `longshore.load`, except its `mode`.
    """

    def __init__(
        self, path: StrPath, mode: Literal["r", "r+", "c"] = "r", **options: Any
    ) -> None:
        if mode not in ("r", "c"):
            raise ValueError(
                f"longshore does not write to files, so mode '{mode}' is not supported; "
                "gguf.GGUFReader of the package gguf writes to them"
            )
        if mode == "c":
            options.setdefault("writable", True)
        super().__init__(_load_buffer(path, format="gguf", **options))


def load(path: StrPath, **options: Unpack[Options]) -> GGUFFile:
    """Load a GGUF file; the first of several splits stands for all.

    `options` are the arguments of `longshore.load`.
    """
    return GGUFFile(_load_buffer(path, format="gguf", **options))


def _content(buffer: _core.Buffer, file: _core.File) -> Array:
    content = np.frombuffer(memoryview(buffer), np.uint8)
    return content[file.offset : file.offset + file.nbytes]


def _tensor(tensor: _core.Tensor, file: _core.File, field: ReaderField) -> ReaderTensor:
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
        field=field,
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
