"""What all tests share, and how they are counted."""

from __future__ import annotations

import gc
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def header(entries: dict[str, Any], data: bytes) -> bytes:
    """A safetensors file of what the header is to say, right or wrong."""
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def crc32c(data: bytes) -> str:
    """CRC-32C bit by bit: an oracle that is slow and plain."""
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
    """What this process has open: descriptors, and memory of memfds."""

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
        # Relative names in them are of nothing that is there.
        os.chdir(tmp_path)
    yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """In the words that scripts/steps.sh counts: what was skipped is among what passed there."""
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
