"""Modules that have the real text of the functions of an engine that the plugins rely on.

Everything else of the engine is left out or replaced by the least that this text needs, and numpy arrays
take the place of tensors, so that the tests run without torch.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from engine_sources import text_of

_PRELUDE = """
from __future__ import annotations
import collections, concurrent.futures, dataclasses, glob, itertools, json, os, re, time
from typing import *
from collections.abc import *
import safetensors
from safetensors import safe_open
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
"""
_LOADERS = "vllm.model_executor.model_loader"
_SGLANG = "sglang.srt.model_loader"


class _Logger(logging.Logger):
    info_once = logging.Logger.info
    warning_once = logging.Logger.warning


def _tqdm(iterable: Any = None, **_options: Any) -> Any:
    return iterable


def numpy_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files that are opened for torch return numpy arrays."""
    from longshore import _frameworks

    monkeypatch.setitem(_frameworks._FRAMEWORKS, "pt", _frameworks.Numpy)


def _module(monkeypatch: pytest.MonkeyPatch, name: str, text: str = "", **names: Any) -> Any:
    """Create a module of that name, and the packages above it."""
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        _module(monkeypatch, parent)
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(names, logger=_Logger(name))
    monkeypatch.setitem(sys.modules, name, module)
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(compile(_PRELUDE + text, name, "exec"), vars(module))
    # Text is executed after the names that it needs, and may replace them by the prelude's.
    return module


def vllm(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> Any:
    """Import the stand-in of vLLM; return its package of loaders."""
    numpy_as_torch(monkeypatch)
    path = folder / _LOADERS.replace(".", "/")

    def texts(file: str, *names: str) -> str:
        return "\n".join(text_of(path / file, name) for name in names)

    _module(monkeypatch, "vllm", __version__=version)
    base = "class BaseModelLoader:\n" + texts("base_loader.py", "BaseModelLoader.__init__")
    filters = texts("ep_weight_filter.py", "parse_expert_id", "should_skip_weight")
    expert = '_EXPERT_ID_RE = re.compile(r"\\.experts\\.(\\d+)\\.")\n'
    loaders = _module(
        monkeypatch,
        _LOADERS,
        base
        + "_LOAD_FORMAT_TO_MODEL_LOADER = {}\n"
        + texts("__init__.py", "register_model_loader", "get_model_loader"),
    )
    utils = _module(
        monkeypatch,
        f"{_LOADERS}.weight_utils",
        "DEFAULT_SAFETENSORS_PREFETCH_NUM_THREADS = DEFAULT_SAFETENSORS_PREFETCH_BLOCK_SIZE = 1\n"
        + expert
        + filters
        + texts(
            "weight_utils.py", "safetensors_weights_iterator", "filter_duplicate_safetensors_files"
        ),
        tqdm=_tqdm,
        enable_tqdm=bool,
        _BAR_FORMAT="",
        _natural_sort_key=str,
        # As on a network file system, whose files vLLM prefetches into the page cache.
        _get_fs_type=lambda _files: "nfs",
        _get_checkpoints_size_bytes=lambda _files: 1,
        _get_available_ram_bytes=lambda: 1 << 40,
        _prefetch_all_checkpoints=_forbidden,
    )
    methods = ["Source", "__init__", "_prepare_weights", "_get_weights_iterator"]
    methods += ["download_model", "get_all_weights"]
    _module(
        monkeypatch,
        f"{_LOADERS}.default_loader",
        "class DefaultModelLoader(BaseModelLoader):\n    counter_before_loading_weights = 0.0\n"
        + texts("default_loader.py", *(f"DefaultModelLoader.{name}" for name in methods)),
        BaseModelLoader=loaders.BaseModelLoader,
        maybe_download_from_modelscope=lambda _name, _revision: None,
        list_filtered_repo_files=lambda model_name_or_path, allow_patterns, **_rest: [
            file for pattern in allow_patterns for file in Path(model_name_or_path).glob(pattern)
        ],
        filter_duplicate_safetensors_files=utils.filter_duplicate_safetensors_files,
        filter_files_not_needed_for_inference=list,
        safetensors_weights_iterator=utils.safetensors_weights_iterator,
        pt_weights_iterator=lambda files, *_rest: iter([("from .bin", files)]),
        **dict.fromkeys(
            (
                "multi_thread_safetensors_weights_iterator",
                "fastsafetensors_weights_iterator",
                "instanttensor_weights_iterator",
                "multi_thread_pt_weights_iterator",
                "np_cache_weights_iterator",
            ),
            _forbidden,
        ),
    )
    importlib.import_module("longshore.vllm").register()
    return loaders


@dataclasses.dataclass
class LoadConfig:
    """The fields of vLLM's configuration that its text uses."""

    load_format: str = "longshore"
    model_loader_extra_config: Any = dataclasses.field(default_factory=dict)
    download_dir: str | None = None
    ignore_patterns: list[str] | None = None
    use_tqdm_on_load: bool = False
    pt_load_map_location: str = "cpu"
    safetensors_load_strategy: str | None = None
    safetensors_prefetch_num_threads: int = 1
    safetensors_prefetch_block_size: int = 1


def sglang(monkeypatch: pytest.MonkeyPatch, folder: Path, *, version: str = "0.5.23") -> Any:
    """Import the stand-in of SGLang, with its real registry of hooks; return the loader's module."""
    numpy_as_torch(monkeypatch)
    _module(monkeypatch, "sglang", __version__=version)
    path = folder / _SGLANG.replace(".", "/")
    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    _module(monkeypatch, "sglang.srt.plugins").hook_registry = registry
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    text = (folder / "sglang/srt/plugins/hook_registry.py").read_text()
    exec(compile(text, registry.__name__, "exec"), vars(registry))
    names = ("buffered_multi_thread_safetensors_weights_iterator", "safetensors_weights_iterator")
    utils = _module(
        monkeypatch,
        f"{_SGLANG}.weight_utils",
        "\n".join(text_of(path / "weight_utils.py", name) for name in names),
        tqdm=type("tqdm", (), {"__new__": lambda _cls, it=None, **_o: it, "_get_free_pos": int}),
        torch=types.SimpleNamespace(distributed=types.SimpleNamespace(is_initialized=bool)),
        BAR_FORMAT="",
        _prefetch_all_checkpoints=_forbidden,
        _drop_file_cache_after_load=_forbidden,
    )
    formats = types.SimpleNamespace(
        **{name: name for name in ("AUTO", "SAFETENSORS", "MISTRAL", "NPCACHE", "PT", "DUMMY")},
        **{name: name for name in ("INSTANTTENSOR", "FASTSAFETENSORS")},
    )
    flags = types.SimpleNamespace(
        weight_loader_disable_mmap=True,
        weight_loader_prefetch_checkpoints=True,
        weight_loader_prefetch_num_threads=1,
        weight_loader_drop_cache_after_load=False,
    )
    methods = ("Source", "_get_weights_iterator", "_filter_mtp_weights", "_get_all_weights")
    return _module(
        monkeypatch,
        f"{_SGLANG}.loader",
        "class DefaultModelLoader:\n"
        "    DEFAULT_NUM_THREADS = 8\n    counter_before_loading_weights = 0.0\n"
        '    _MTP_PATTERN = re.compile(r"model\\.mtp\\.layers\\.(\\d+)\\.")\n'
        "    def __init__(self, config): self.load_config = config\n"
        "    def _prepare_weights(self, model, *_rest):\n"
        "        return model, sorted(glob.glob(model + '/*.safetensors')), True\n"
        "    def load_model(self, *, model_config, device_config):\n"
        "        return dict(self._get_all_weights(model_config, None))\n"
        "    def commit_model_weights(self): pass\n"
        + "\n".join(text_of(path / "loader.py", f"DefaultModelLoader.{name}") for name in methods),
        LoadFormat=formats,
        get_model=lambda: flags,
        maybe_add_mtp_safetensors=lambda files, *_rest: files,
        **{name: getattr(utils, name) for name in names},
        **dict.fromkeys(
            (
                "fastsafetensors_weights_iterator",
                "instanttensor_weights_iterator",
                "multi_thread_pt_weights_iterator",
                "np_cache_weights_iterator",
                "pt_weights_iterator",
            ),
            _forbidden,
        ),
    )


def _forbidden(*arguments: Any, **keywords: Any) -> Any:
    raise AssertionError(f"must not be called: {arguments} {keywords}")
