"""`longshore.patch_safetensors`."""

from __future__ import annotations

import functools
import sys
import threading
import types

from longshore._engine import EngineFile, Reader, say
from longshore._frameworks import supports
from longshore.errors import SafetensorError

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Literal, Self

    from longshore._engine import Attach
    from longshore._load import StrPath

PACKAGES = ("safetensors", "transformers", "accelerate", "diffusers")
"""The packages in whose modules names are replaced. Modules that are imported later get the names from
`safetensors`, where they are replaced, too."""


class patch_safetensors:  # noqa: N801, used as a function
    """Let transformers, accelerate, diffusers and `safetensors` read files with Longshore.

    Replaces `safetensors.safe_open`, which their other functions call, such as `load_file`: in the
    modules that have been imported, and for those that will be. The call replaces it for the process;
    the end of a `with` block, or `restore`, brings the original back. Patches may be nested, and be
    made in several threads: the name is replaced for all threads until the last patch is restored, and
    files are read with the options of the newest patch. Tensors stay valid after that.

    The first file that is read prints a line to standard error: the version, and the replaced names.
    Frameworks that Longshore does not support are left to the original. So is everything under ComfyUI,
    which loads files and moves them to the GPU by a scheme of its own; it is recognised by its
    module `comfy.utils`.

    Args:
        attach: "auto" uses the memory of a running `longshore serve` if it serves the file, and else
            loads the file; "require" fails instead; "never" uses no server. A write to a
            torch tensor of attached memory copies that page; numpy arrays of it are read-only.
        socket: The server's socket, as for `longshore.attach`.
        options: The arguments of `longshore.load`, such as `verify`, and `whole=False`, which loads each
            tensor by itself, for programs that convert it and delete the original.

    >>> import longshore, safetensors
    >>> with longshore.patch_safetensors():
    ...     with safetensors.safe_open(example, "np") as file:
    ...         print(isinstance(file, longshore.safe_open), file.get_tensor("bias").tolist())
    True [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self, attach: Attach = "never", socket: StrPath | None = None, **options: Any
    ) -> None:
        # Imported only here, because the package safetensors is optional.
        import safetensors

        self._reader = Reader(attach, socket, **options)
        with _state.lock:
            if not _state.patches:
                _state.install(safetensors)
            _state.patches.append(self)

    def restore(self) -> None:
        """End this patch; the second call does nothing."""
        with _state.lock:
            if self in _state.patches:
                _state.patches.remove(self)
                if not _state.patches:
                    _state.uninstall()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        self.restore()
        return False


class _State:
    """The patches of the process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.patches: list[patch_safetensors] = []
        self.replaced: list[str] = []
        self.announced = False
        self.original: Any = None
        self.ours: Any = None

    def install(self, safetensors: Any) -> None:
        """Replace the name in all modules of the packages."""
        if self.ours is None:
            self.original = safetensors.safe_open
            self.ours = _safe_open(safetensors)
        packages = [name for name in sys.modules.copy() if name.split(".")[0] in PACKAGES]
        # The extension module keeps its own, which is never looked up there.
        packages = [name for name in packages if not name.split(".")[-1].startswith("_")]
        self.replaced = _swap(self.original, self.ours, packages)

    def uninstall(self) -> None:
        """Bring the original back, also in modules that were imported during the patch."""
        _swap(self.ours, self.original, list(sys.modules.copy()))

    def reader(self) -> Reader | None:
        """Return the reader of the newest patch, or None if the original function shall read."""
        with self.lock:
            if not self.patches or "comfy.utils" in sys.modules:
                return None
            if not self.announced:
                self.announced = True
                say(f"reads safetensors files; replaced {', '.join(self.replaced)}")
            return self.patches[-1]._reader


_state = _State()


def _swap(old: Any, new: Any, modules: list[str]) -> list[str]:
    """Replace an object in these modules; return the names that it had."""
    swapped = []
    for module_name in sorted(modules):
        module = sys.modules.get(module_name)
        if not isinstance(module, types.ModuleType):
            continue
        # Unlike `dir`, this does not import what a lazy module has not imported yet.
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
                swapped.append(f"{module_name}.{name}")
    return swapped


def _safe_open(safetensors: Any) -> type[Any]:
    """Create the replacement of `safetensors.safe_open`."""
    original = safetensors.safe_open
    translated = _translated(safetensors)

    class safe_open(EngineFile):  # noqa: N801, the name in `safetensors`
        """A file of `safetensors.safe_open`, read by Longshore."""

        def __new__(cls, filename: StrPath, framework: str, *rest: Any, **options: Any) -> Any:
            reader = _state.reader()
            if reader is None or not supports(framework):
                # Not an instance of this class, so Python does not call `__init__`.
                return original(filename, framework, *rest, **options)
            file = super().__new__(cls)
            file._reader = reader
            return file

        @translated
        def __init__(self, filename: StrPath, framework: str, *rest: Any, **options: Any) -> None:
            options = {**self._reader.options, **options}
            if framework in ("np", "numpy"):
                # The arrays of `safetensors` can be written to.
                options.setdefault("writable", True)
            super().__init__(self._reader, filename, framework, *rest, **options)

        get_tensor = translated(EngineFile.get_tensor)
        get_slice = translated(EngineFile.get_slice)

    replacement: type[Any] = safe_open
    return replacement


def _translated(safetensors: Any) -> Callable[[Any], Any]:
    """Return a decorator that raises errors which code written for `safetensors` catches, too."""

    class Error(SafetensorError, safetensors.SafetensorError):  # type: ignore[misc]
        """An error of both packages."""

    Error.__name__ = Error.__qualname__ = "SafetensorError"

    def translated(function: Any) -> Any:
        @functools.wraps(function)
        def translating(*arguments: Any, **keywords: Any) -> Any:
            try:
                return function(*arguments, **keywords)
            except SafetensorError as error:
                both = Error(*error.args)
                both.filename = error.filename
                raise both from error

        return translating

    return translated
