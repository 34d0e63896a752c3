"""A plugin of pytest that imports longshore where a test imports `safetensors`.

Without torch, tests that use it are skipped, and the others of the same file run.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
from types import ModuleType
from typing import Any
from unittest import SkipTest

import jax
import longshore
import longshore.flax
import longshore.numpy


class _Absent:
    """An object of torch, which is not installed."""

    def __call__(self, *_args: Any, **_named: Any) -> Any:
        raise SkipTest("torch is not installed (LONGSHORE_TORCH=1 installs it)")

    def __getattr__(self, name: str) -> Any:
        return _Absent()


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent()


sys.modules["safetensors"] = longshore
sys.modules["safetensors.numpy"] = longshore.numpy
sys.modules["safetensors.flax"] = longshore.flax
# The tests of JAX use flax for a file to compare with.
flax: Any = ModuleType("flax.serialization")
flax.msgpack_serialize = lambda arrays: pickle.dumps(jax.device_get(arrays))
flax.msgpack_restore = pickle.loads
sys.modules["flax.serialization"] = flax
if importlib.util.find_spec("torch"):
    import longshore.torch
    from longshore._saving import torch as _saving

    def _remove_duplicate_names(
        state: dict[str, Any], *, preferred_names: Any = (), discard_names: Any = ()
    ) -> dict[str, list[str]]:
        return _saving.duplicates(state, preferred_names or set(state) - set(discard_names or ()))

    # Private functions that the tests call.
    private = {
        "_end_ptr": _saving._end,
        "_find_shared_tensors": _saving.sharing,
        "_is_complete": _saving._is_whole,
        "_remove_duplicate_names": _remove_duplicate_names,
    }
    module = ModuleType("safetensors.torch")
    module.__dict__.update(vars(longshore.torch) | private)
    sys.modules["safetensors.torch"] = module
else:
    for name in ("torch", "torch.nn", "safetensors.torch"):
        sys.modules[name] = _AbsentModule(name)
