"""A run that is saved, and one that is compared with it, each a pytest of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import results
import torch

from gate_parts.operations import SIZES, names_on

FAIL_ON = "slower:2%"  # well below what is planted

_SUITE = Path(__file__).with_name("gate_suite.py")
# By its module's name, whether convtime is installed or stands in a folder of Python's path.
_PLUGIN = ("-p", "no:convtime", "-p", "pytest_convtime")
_TIMEOUT_SECONDS = 300


def measure_pair(
    device: torch.device, plants: Mapping[str, results.Row], slower: Collection[str]
) -> results.Row:
    """What the gate says of a run in which some operations have 5 % more to do.

    Raises:
        RuntimeError: a pytest did not come to a verdict.
    """
    begin = time.perf_counter()
    sizes = {name: SIZES[name] for name in names_on(device)}
    larger = sizes | {name: plants[name]["size"] for name in slower}
    with tempfile.TemporaryDirectory() as folder:
        _pytest(folder, device, sizes, "--convtime-save", "before")
        output = _pytest(
            *(folder, device, larger, "--convtime-against", "before"),
            *("--convtime-fail-on", FAIL_ON, "--convtime-json", "changes.json"),
            "--convtime-relative",
        )
        changes = _changes(Path(folder, "changes.json"), output)
    return {
        "slower": list(slower),
        "found": {name: changes[name] for name in sizes},
        "seconds": time.perf_counter() - begin,
    }


def _pytest(folder: str, device: torch.device, sizes: Mapping[str, int], *arguments: str) -> str:
    paths = [str(results.HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONPATH": os.pathsep.join(paths),
        "GATE_SIZES": json.dumps(sizes),
        "GATE_DEVICE": str(device),
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder),
            *("-p", "no:cacheprovider", *_PLUGIN, str(_SUITE), *arguments),
        ],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode > 1 or f"{len(sizes)} passed" not in output:
        raise RuntimeError(f"pytest ended with {done.returncode}: {_last_line(output)}")
    return output


def _changes(path: Path, output: str) -> dict[str, results.Row]:
    """Of each operation, in the order of the tests."""
    if not path.exists():
        raise RuntimeError(f"pytest compared nothing: {_last_line(output)}")
    changes = json.loads(path.read_text(encoding="utf-8"))["changes"]
    kept = ("verdict", "ratio", "p_value", "sentence")
    return {
        change["name"].partition("[")[2].rpartition("]")[0]: {name: change[name] for name in kept}
        for change in changes
    }


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["it said nothing"])[-1]
