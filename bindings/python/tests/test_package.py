"""The files and metadata of the wheel and of the source distribution, and the interpreters that load it."""

from __future__ import annotations

import email
import email.message
import importlib.metadata
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
WAIT_SECONDS = 300


def check(metadata: email.message.Message) -> None:
    assert metadata["Name"] == "longshore"
    assert metadata["License-Expression"] == "Apache-2.0 OR MIT"
    assert metadata.get_all("License-File") == list(LICENCES)
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL") or [])
    assert {"Repository", "Documentation", "Changelog"} <= set(urls)
    assert metadata["Keywords"] and metadata["Summary"]
    description = str(metadata.get_payload())
    assert description.strip() == (PACKAGE / "README.md").read_text().strip()


def test_the_wheel_has_licences_and_metadata() -> None:
    installed = importlib.metadata.distribution("longshore")
    check(email.message_from_string(installed.read_text("METADATA") or ""))
    files = {path.name: path for path in installed.files or []}
    for name in (*LICENCES, "py.typed", "_core.pyi"):
        assert name in files, name
    for name in LICENCES:
        assert files[name].read_text() == (PACKAGE / name).read_text()


def test_the_source_distribution_has_licences_and_metadata(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "maturin", "sdist", "--out", str(tmp_path)]
    manifest = ["--manifest-path", str(PACKAGE / "Cargo.toml")]
    subprocess.run([*build, *manifest], check=True, timeout=WAIT_SECONDS)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        content = {
            member.name.partition("/")[2]: opened.extractfile(member)
            for member in opened.getmembers()
            if member.isfile()
        }
        metadata, *licences = (content[name] for name in ("PKG-INFO", *LICENCES))
        assert metadata is not None
        check(email.message_from_string(metadata.read().decode()))
        for name, licence in zip(LICENCES, licences, strict=True):
            assert licence is not None and licence.read() == (PACKAGE / name).read_bytes()


def test_the_readme_is_for_readers_without_a_checkout() -> None:
    text = (PACKAGE / "README.md").read_text()
    assert not re.search(r"\bscripts/|\bbindings/|\.sh\b", text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links and all(link.startswith("https://") for link in links)


INTERPRETERS = """if True:
    import sys
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    other = interpreters.create()
    interpreters.run_string(other, sys.argv[1])
    interpreters.destroy(other)
    import longshore
    print(longshore.load)
"""

REFUSED = """
try:
    import longshore
except ImportError as error:
    print(error, flush=True)
"""


def test_sub_interpreters_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETERS, REFUSED],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    if "No module named '_xxsubinterpreters'" in done.stderr:
        pytest.skip("this Python has no sub-interpreters")
    # Python itself refuses modules that do not declare support for an own GIL.
    assert re.search("main interpreter only|not support loading in subint", done.stdout), done
    assert "<function load" in done.stdout
