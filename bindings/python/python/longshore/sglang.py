"""The plugin of SGLang: `LONGSHORE_SGLANG=auto python -m sglang.launch_server --model-path MODEL`.

SGLang finds it by its entry point in `sglang.srt.plugins`. Without the environment variable
`LONGSHORE_SGLANG`, it does nothing. Its value says how a running `longshore serve` is used: "auto" uses
the server's memory if it serves the file, and else loads the file; "require" fails instead; "never"
uses no server. `LONGSHORE_SOCKET` is the server's socket, if it is not the default one.

It replaces only the reader of safetensors files beneath `DefaultModelLoader`. If SGLang lacks the
functions that it hooks, or loads a model without calling them, it ends the process with a message,
because SGLang itself only logs exceptions of plugins.
"""

from __future__ import annotations

import inspect
import os
import types
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from longshore._engine import ATTACH, Reader, announce, rebound, say

if TYPE_CHECKING:
    from collections.abc import Callable

TESTED = ("0.5.23",)
"""The releases of SGLang whose source the contract tests compare with. It was not run."""

_LOADER = "sglang.srt.model_loader.loader"
_ITERATORS = ("buffered_multi_thread_safetensors_weights_iterator", "safetensors_weights_iterator")


def register() -> None:
    """Register the hooks; the entry point that SGLang calls, in each process."""
    attach: Any = os.environ.get("LONGSHORE_SGLANG", "")
    if attach in ("", "0"):
        return
    if attach not in ATTACH:
        _fail(f"LONGSHORE_SGLANG is '{attach}' (expected {', '.join(ATTACH)}, or 0 to turn it off)")
    version = getattr(import_module("sglang"), "__version__", "unknown")
    if version.split("+")[0] not in TESTED:
        _fail(
            f"the plugin was tested with SGLang {', '.join(TESTED)}, not with {version}: install that, "
            "or unset LONGSHORE_SGLANG"
        )
    Hooks(attach, os.environ.get("LONGSHORE_SOCKET"), version).register()


class Hooks:
    """The hooks of one process."""

    def __init__(self, attach: Any, socket: str | None, version: str) -> None:
        self._attach = attach
        self._socket = None if attach == "never" else socket
        self._version = version
        self._hits = 0

    def register(self) -> None:
        """Check that the functions exist, and register the hooks."""
        try:
            registry: Any = import_module("sglang.srt.plugins.hook_registry")
            loader: Any = import_module(_LOADER).DefaultModelLoader
            # Raises LookupError if the function has changed.
            self._rebound(loader._get_weights_iterator, Reader())
            registered, around = registry.HookRegistry.register, registry.HookType.AROUND
            for name, hook in (
                ("_get_weights_iterator", self.iterate),
                ("load_model", self.load),
                ("commit_model_weights", self.load),
            ):
                getattr(loader, name)
                registered(f"{_LOADER}.DefaultModelLoader.{name}", hook, around)
        except (AttributeError, ImportError, LookupError, TypeError) as error:
            _fail(f"this SGLang lacks a function that the plugin hooks: {error}")

    def load(self, original: Callable[..., Any], loader: Any, *arguments: Any, **keywords: Any) -> Any:
        """Wrap the loading of a whole model; check that the other hook was called."""
        before = self._hits
        model = original(loader, *arguments, **keywords)
        if self._hits == before:
            _fail(
                f"{type(loader).__name__} loaded a model without calling the hooked function "
                "_get_weights_iterator; unset LONGSHORE_SGLANG to let SGLang load it"
            )
        return model

    def iterate(
        self, original: Callable[..., Any], loader: Any, source: Any, **keywords: Any
    ) -> Any:
        """Wrap `_get_weights_iterator`."""
        self._hits += 1
        reader = Reader(self._attach, self._socket)
        try:
            function = self._rebound(original, reader)
        except (LookupError, TypeError) as error:
            _fail(f"another plugin hooks _get_weights_iterator, too: {error}")
        weights = function(loader, source, **keywords)
        return self._counted(weights, source, reader)

    def _counted(self, weights: Any, source: Any, reader: Reader) -> Any:
        yield from weights
        announce(f"SGLang {self._version}", source.model_or_path, reader)
        if reader.files == 0:
            say("the model's files are not read as safetensors, so SGLang read them by itself")

    def _rebound(self, original: Callable[..., Any], reader: Reader) -> Callable[..., Any]:
        """Return SGLang's own function, with another reader of safetensors files."""
        if hasattr(original, "__wrapped__"):
            raise TypeError(f"{inspect.unwrap(original).__qualname__} is wrapped")
        utils: Any = import_module("sglang.srt.model_loader.weight_utils")
        safetensors = types.SimpleNamespace(
            safe_open=reader.open, torch=getattr(utils.safetensors, "torch", None)
        )
        iterate = rebound(utils.safetensors_weights_iterator, {"safetensors": safetensors})

        # One file after another: each is read at the speed of the disk, and several at once would need
        # the memory of all.
        def read(files: list[str], *_arguments: Any, **options: Any) -> Any:
            return iterate(files, drop_cache_after_load=options.get("drop_cache_after_load", False))

        return rebound(original, dict.fromkeys(_ITERATORS, read))


def _fail(reason: str) -> NoReturn:
    # SGLang catches and logs each Exception of a plugin, and goes on without it.
    raise SystemExit(f"longshore: {reason}")
