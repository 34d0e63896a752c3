"""Compares the results of `run_vllm.py`: `compare.py LOG_OF_AUTO LOG…`. Prints a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def result(log: str) -> dict[str, Any]:
    """Return the JSON object in a log; other processes may write after it."""
    lines = Path(log).read_text(errors="replace").splitlines()
    found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith('{"param')))
    return found


def main() -> int:
    """Print a line for each log; return 1 if one differs from the first."""
    wanted = result(sys.argv[1])
    failed = False
    print(f"{'way':10} {'parameters':>10} {'answers':>8} {'distinct':>8} {'sleep':>6} {'as auto':>9}")
    for log in sys.argv[1:]:
        found = result(log)
        (parameters,) = found["parameters"]
        answers = found["answers"]
        compared = ("parameters", "answers", "reloaded")
        # `reloaded` has the keys of the first load, and must be equal to it.
        same = all(found[key] == wanted[key] for key in compared)
        same &= found["reloaded"] == {key: found[key] for key in compared[:2]}
        failed |= not same or found["slept"] != wanted["slept"] or len(answers) == 0
        distinct = len({tuple(answer) for answer in answers})
        print(
            f"{Path(log).stem:10} {len(parameters):10} {len(answers):8} {distinct:8} "
            f"{'yes' if found['slept'] else 'no':>6} {'equal' if same else 'DIFFERENT':>9}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
