"""The plugin of vLLM: `vllm serve MODEL --load-format longshore`.

vLLM finds it by its entry point in `vllm.general_plugins`. It replaces only the reader of safetensors
files beneath vLLM's own loader: filters, prefixes, the other formats and the processing of weights
are vLLM's. Options are a JSON object in `--model-loader-extra-config`:

- `attach`: "auto" (the default) uses the memory of a running `longshore serve` if it serves the file,
  and else loads the file; "require" fails instead; "never" uses no server.
- `socket`: the server's socket, if it is not the default one.
- `source`: a directory with the weights of the main model, in place of the model's own.
- `verify`: the path of a manifest in the format of `sha256sum`. With `attach` "auto", files are then
  loaded by this process.
- `on_unsupported`: "fail" (the default) or "auto", for a vLLM that this version was not tested with:
  "auto" lets vLLM load the model as without Longshore.
- `enable_weights_track`: as for vLLM's own loader.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from longshore._engine import ATTACH, Reader, announce, is_release, rebound, say

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTED = ("0.32", "0.33")
"""The releases of vLLM that the contract tests compare with."""

KEYS = ("source", "attach", "socket", "verify", "on_unsupported", "enable_weights_track")

_LOADERS = "vllm.model_executor.model_loader"


def register() -> None:
    """Register the load format "longshore"; the entry point that vLLM calls, in each process."""
    try:
        loaders = import_module(_LOADERS)
        if "longshore" in loaders._LOAD_FORMAT_TO_MODEL_LOADER:
            # vLLM may call plugins several times.
            return
        loaders.register_model_loader("longshore")(_loader_class())
    except (AttributeError, ImportError) as error:
        # An exception would also end programs that do not use this load format.
        logging.getLogger("longshore").warning(
            "the load format 'longshore' is not available in this vLLM: %s", error
        )


@dataclasses.dataclass
class Options:
    """The validated extra config of the load format."""

    source: str | None = None
    attach: Any = "auto"
    socket: str | None = None
    verify: str | None = None
    on_unsupported: str = "fail"
    enable_weights_track: bool | None = None

    @classmethod
    def of(cls, extra: Any) -> Options:
        """Validate what the user passed as `--model-loader-extra-config`."""
        if not isinstance(extra, dict):
            raise ValueError(
                f"the extra config of the load format longshore is a {type(extra).__name__} "
                f"(expected a dict with any of {', '.join(KEYS)})"
            )
        if unknown := sorted(str(key) for key in extra if key not in KEYS):
            raise ValueError(
                f"unknown key {', '.join(unknown)} in the extra config of the load format longshore "
                f"(expected {', '.join(KEYS)})"
            )
        options = cls(**extra)
        for name, allowed in (("attach", ATTACH), ("on_unsupported", ("fail", "auto"))):
            if (value := getattr(options, name)) not in allowed:
                raise ValueError(f"{name} is {value!r} (expected {', '.join(allowed)})")
        for name in ("source", "socket", "verify"):
            if not isinstance(value := getattr(options, name), (str, type(None))):
                raise ValueError(f"{name} is {value!r} (expected a path)")
        if not isinstance(track := options.enable_weights_track, (bool, type(None))):
            raise ValueError(f"enable_weights_track is {track!r} (expected true or false)")
        if options.source is not None and not os.path.isdir(options.source):
            raise ValueError(f"source {options.source!r} is not a directory on this machine")
        return options


_replaced: dict[str, str] = {}
"""For each `source`, the path of the main model whose weights it stands for."""


def _loader_class() -> type[Any]:
    """Create the loader, a subclass of vLLM's own."""
    version: str = import_module("vllm").__version__
    module: Any = import_module(f"{_LOADERS}.default_loader")
    utils: Any = import_module(f"{_LOADERS}.weight_utils")
    base: type[Any] = module.DefaultModelLoader

    class LongshoreModelLoader(base):  # type: ignore[misc]
        """vLLM's default loader, with Longshore as its reader of safetensors files."""

        def __init__(self, load_config: Any) -> None:
            self.longshore = Options.of(load_config.model_loader_extra_config)
            track = self.longshore.enable_weights_track
            extra = {} if track is None else {"enable_weights_track": track}
            strategy = getattr(load_config, "safetensors_load_strategy", None)
            super().__init__(
                dataclasses.replace(
                    load_config, load_format="auto", model_loader_extra_config=extra
                )
            )
            self.reader: Reader | None = None
            if is_release(version, TESTED):
                options = self.longshore
                self.reader = Reader(options.attach, options.socket, options.verify)
                self._check(strategy)
            elif self.longshore.on_unsupported == "fail":
                raise RuntimeError(
                    f"the load format longshore was tested with vLLM {', '.join(TESTED)}, not with "
                    f"{version}: install one of these, or set on_unsupported to 'auto' in the extra "
                    "config, so that vLLM loads the model by itself"
                )
            else:
                say(f"not tested with vLLM {version}, so vLLM loads the model by itself")

        def _check(self, strategy: str | None) -> None:
            if strategy not in (None, "lazy", "torchao"):
                raise ValueError(
                    f"the load format longshore reads files by itself; remove "
                    f"--safetensors-load-strategy {strategy}"
                )
            # Fails here, and not in the middle of a load, if a function has changed.
            self._iterator()

        def _iterator(self) -> Any:
            """Return vLLM's own `_get_weights_iterator`, with another reader of safetensors files."""

            def read(*arguments: Any, local_expert_ids: Any = None, **keywords: Any) -> Any:
                assert self.reader is not None
                reader, whole = self.reader, local_expert_ids is None

                # With a filter of experts, other tensors are not read.
                def opened(filename: str, framework: str) -> Any:
                    return reader.open(filename, framework, whole=whole)

                # Longshore does not use the page cache, so nothing is prefetched into it.
                names = {"safe_open": opened, "_prefetch_all_checkpoints": _no_prefetch}
                iterate = rebound(utils.safetensors_weights_iterator, names)
                return iterate(*arguments, local_expert_ids=local_expert_ids, **keywords)

            rebound(
                utils.safetensors_weights_iterator,
                {"safe_open": None, "_prefetch_all_checkpoints": None},
            )
            return rebound(base._get_weights_iterator, {"safetensors_weights_iterator": read})

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            if self.reader is None:
                weights: Iterator[tuple[str, Any]] = super()._get_weights_iterator(source)
                return weights
            weights = self._iterator()(self, source)
            return weights

        def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            # Files are opened by path each time, so a reload gets the content that they have then.
            model_config = self._sourced(model_config)
            yield from super().get_all_weights(model_config, model)
            if self.reader is not None:
                announce(f"vLLM {version}", model_config.model, self.reader)
                self._warn()

        def download_model(self, model_config: Any) -> None:
            super().download_model(self._sourced(model_config))

        def _sourced(self, model_config: Any) -> Any:
            """Return the configuration with `source` as the path of the weights, for the main model."""
            source = self.longshore.source
            if source is None or getattr(model_config, "runner_type", None) == "draft":
                return model_config
            # After `reload_weights(weights_path=…)`, the model has another path.
            if _replaced.setdefault(source, model_config.model) != model_config.model:
                return model_config
            sourced = copy.copy(model_config)
            sourced.model, sourced.revision = source, None
            return sourced

        def _warn(self) -> None:
            if self.reader is not None and self.reader.files == 0:
                say("the model has no safetensors files, so vLLM read its weights by itself")

    return LongshoreModelLoader


def _no_prefetch(*_arguments: Any, **_keywords: Any) -> None:
    pass
