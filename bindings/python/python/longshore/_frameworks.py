"""What the frameworks make of a tensor in a buffer."""

from __future__ import annotations

from longshore.errors import SafetensorError

TYPE_CHECKING = False  # As in typing, which takes longer to import than all of this.
if TYPE_CHECKING:
    from typing import Any

    from longshore import _core
    from longshore._load import Options


class Framework:
    """What all have in common."""

    name: str
    checks_index = True
    """Whether an index is checked as `safetensors` does, or left to the framework."""

    def __init__(self, device: str | int | None) -> None:
        if device not in (None, "cpu"):
            raise SafetensorError(
                None, f"Device {device} is not supported for framework {self.name}"
            )

    def defaults(self, options: Options) -> None:
        """Adds to the options of the load what the framework needs."""

    def tensor(self, tensor: _core.Tensor) -> Any:
        """The whole tensor."""
        raise NotImplementedError

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        """A part of it."""
        raise NotImplementedError


class Numpy(Framework):
    """Read-only arrays, unless `writable` was asked for."""

    name = "numpy"

    def __init__(self, device: str | int | None) -> None:
        super().__init__(device)
        from longshore.numpy import asarray

        self._asarray = asarray

    def tensor(self, tensor: _core.Tensor) -> Any:
        return self._asarray(tensor)

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        # Also of a single element an array.
        return self._asarray(tensor)[(*index, ...)]


class Jax(Framework):
    """JAX's arrays, which nobody can write to."""

    name = "flax"

    def __init__(self, device: str | int | None) -> None:
        super().__init__(device)
        from longshore import jax

        self._jax = jax

    def defaults(self, options: Options) -> None:
        # JAX shares memory that is aligned, and copies other.
        options.setdefault("align", 64)

    def tensor(self, tensor: _core.Tensor) -> Any:
        return self._jax.placed(tensor)

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        return self._jax.part(tensor, index)


class Torch(Framework):
    """torch's tensors, on any device."""

    name = "pytorch"
    checks_index = False

    def __init__(self, device: str | int | None) -> None:
        from longshore import torch

        self._torch = torch
        self._device = "cpu" if device is None else device

    def defaults(self, options: Options) -> None:
        # torch knows no memory that must not be written to.
        options.setdefault("writable", True)

    def tensor(self, tensor: _core.Tensor) -> Any:
        return self._torch.moved(self._torch.asarray(tensor), self._device)

    def part(self, tensor: _core.Tensor, index: Any) -> Any:
        return self._torch.moved(self._torch.asarray(tensor)[index], self._device)


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


def framework_of(name: str, device: str | int | None, backend: str) -> Framework:
    """The framework of that name, which is imported."""
    if backend not in ("mmap", "pread"):
        raise SafetensorError(
            None, f'backend "{backend}" is invalid (expected one of: "mmap", "pread")'
        )
    if name in _OTHERS:
        raise SafetensorError(
            None, f"framework {name} is one that longshore does not know; open it with 'np'"
        )
    if name not in _FRAMEWORKS:
        raise SafetensorError(None, f"framework {name} is invalid")
    return _FRAMEWORKS[name](device)
