"""Fixtures and helpers of all tests, and the summary that scripts/steps.sh reads."""

from __future__ import annotations

import gc
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The tests use directories and caches of their own, and must not ask the Hugging Face Hub.
os.environ["HF_HUB_OFFLINE"] = "1"


def header(entries: dict[str, Any], data: bytes) -> bytes:
    """Return a safetensors file with this header, valid or not."""
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def crc32c(data: bytes) -> str:
    """Compute CRC-32C bit by bit: a slow and simple oracle."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFF:08x}"


@pytest.fixture
def example(tmp_path: Path) -> str:
    """A small safetensors file."""
    import numpy as np
    from safetensors.numpy import save_file

    path = str(tmp_path / "example.safetensors")
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    save_file({"weight": weight, "bias": np.ones(4, np.float32)}, path, {"format": "np"})
    return path


@pytest.fixture
def descriptors() -> Callable[[], set[str]]:
    """List the open descriptors and the mapped memfds of this process."""

    def are_open() -> set[str]:
        gc.collect()
        found = {f"fd {name}" for name in os.listdir("/proc/self/fd")}
        with open("/proc/self/maps") as maps:
            found |= {f"memfd at {line.split()[0]}" for line in maps if "memfd:longshore" in line}
        return found

    return are_open


@pytest.fixture(autouse=True)
def _names_in_docstrings(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, Any], tmp_path: Path
) -> Iterator[None]:
    if request.node.__class__.__name__ == "DoctestItem":
        doctest_namespace["example"] = request.getfixturevalue("example")
        doctest_namespace["target"] = str(tmp_path / "target.safetensors")
        doctest_namespace["crc32c"] = crc32c
        # Docstrings use relative file names: run them in an empty directory.
        os.chdir(tmp_path)
    yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print results as scripts/steps.sh parses them; it counts skipped tests as passed."""
    outcomes = {name: terminalreporter.stats.get(name, []) for name in ("passed", "skipped")}
    failed = len(terminalreporter.stats.get("failed", []))
    failed += len(terminalreporter.stats.get("error", []))
    for report in outcomes["passed"]:
        if report.when == "call":
            terminalreporter.write_line(f"test {report.nodeid} ... ok <{report.duration:.3f}s>")
    for report in outcomes["skipped"]:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"SKIPPED {report.nodeid}: {reason}")
    passed = sum(map(len, outcomes.values()))
    verdict = "FAILED" if failed else "ok"
    terminalreporter.write_line(
        f"test result: {verdict}. {passed} passed; {failed} failed; 0 ignored"
    )
