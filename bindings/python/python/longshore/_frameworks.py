"""Converts tensors of a buffer into those of numpy, JAX and torch."""

from __future__ import annotations

from longshore.errors import SafetensorError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from typing import Any

    from longshore import _core
    from longshore._load import Options


COPIED_MAX_BYTES = 1 << 20
"""The length of slices that are copied, so that they do not keep the buffer of the whole file."""


class Framework:
    """The interface of all frameworks."""

    name: str
    checks_index = True
    """True to check an index as `safetensors` does, False to leave that to the framework."""

    def __init__(self, device: str | int | None) -> None:
        if device not in (None, "cpu"):
            raise SafetensorError(
                None, f"Device {device} is not supported for framework {self.name}"
            )

    def defaults(self, options: Options) -> None:
        """Set the options of the load that the framework needs, unless the caller set them."""

    def tensor(self, tensor: _core.Tensor) -> Any:
        """Return the whole tensor."""
        raise NotImplementedError

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        """Return the part of the tensor that the index selects."""
        raise NotImplementedError


class Numpy(Framework):
    """numpy arrays, read-only unless the buffer is writable."""

    name = "numpy"

    def __init__(self, device: str | int | None) -> None:
        super().__init__(device)
        from longshore.numpy import asarray

        self._asarray = asarray

    def tensor(self, tensor: _core.Tensor) -> Any:
        return self._asarray(tensor)

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        # With `...`, a single element is an array, too, and not a scalar.
        part = self._asarray(tensor)[(*index, ...)]
        if part.nbytes > COPIED_MAX_BYTES:
            return part
        copied = part.copy()
        copied.flags.writeable = part.flags.writeable
        return copied


class Jax(Framework):
    """JAX arrays, which are immutable."""

    name = "flax"

    def __init__(self, device: str | int | None) -> None:
        super().__init__(device)
        from longshore import jax

        self._jax = jax

    def defaults(self, options: Options) -> None:
        # JAX shares aligned memory and copies the rest.
        options.setdefault("align", 64)

    def tensor(self, tensor: _core.Tensor) -> Any:
        return self._jax.placed(tensor)

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        return self._jax.part(tensor, index)


class Torch(Framework):
    """torch tensors, on any device."""

    name = "pytorch"
    checks_index = False

    def __init__(self, device: str | int | None) -> None:
        from longshore import torch

        self._torch = torch
        self._device = torch.device_of("cpu" if device is None else device)

    def defaults(self, options: Options) -> None:
        # torch has no read-only tensors.
        self._writable = options.setdefault("writable", True)

    def tensor(self, tensor: _core.Tensor) -> Any:
        tensor = self._torch.asarray(tensor, writable=self._writable)
        return self._torch.moved(tensor, self._device)

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        part = self._torch.asarray(tensor, writable=self._writable)[index]
        if part.nbytes <= COPIED_MAX_BYTES:
            part = part.clone()
        return self._torch.moved(part, self._device)


_FRAMEWORKS: dict[str, type[Framework]] = {
    "np": Numpy,
    "numpy": Numpy,
    "jax": Jax,
    "flax": Jax,
    "pt": Torch,
    "torch": Torch,
    "pytorch": Torch,
}
_OTHERS = ("tf", "tensorflow", "mlx", "paddle")


def supports(name: str) -> bool:
    """Return True if files can be opened for the framework of that name."""
    return name in _FRAMEWORKS


def framework_of(name: str, device: str | int | None, backend: str) -> Framework:
    """Import the framework of that name and return its converter."""
    if backend not in ("mmap", "pread"):
        raise SafetensorError(
            None, f'backend "{backend}" is invalid (expected one of: "mmap", "pread")'
        )
    if name in _OTHERS:
        raise SafetensorError(
            None, f"framework {name} is not supported by longshore; open the file with 'np'"
        )
    if name not in _FRAMEWORKS:
        raise SafetensorError(None, f"framework {name} is invalid")
    return _FRAMEWORKS[name](device)
