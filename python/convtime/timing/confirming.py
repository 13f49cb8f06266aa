"""Repeat a comparison in a fresh process.

One process is a single sample of conditions that differ between processes, such as memory pages.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate
from convtime.timing.comparison import Comparison
from convtime.timing.verdict import Ratio

_CHILD = "convtime.timing.fresh_process"
#: Time allowed in addition to the timing, mostly for the import of torch.
_PATIENCE_SECONDS = 120.0


def send(
    candidates: Sequence[Candidate], options: Mapping[str, Any], what: str = "confirm=True"
) -> bytes:
    """Serialize the candidates and options for a fresh process.

    Args:
        candidates: the baseline first.
        options: options of the function that the process calls.
        what: the option that asks for the process.

    Raises:
        ValueError: for a candidate that cannot be sent.
    """
    for candidate in candidates:
        _check(candidate, what)
    return _pickled(
        {
            "threads": torch.get_num_threads(),
            "candidates": {candidate.name: candidate for candidate in candidates},
            "options": dict(options),
        }
    )


def confirm(sent: bytes, seconds: float) -> Mapping[str, Ratio]:
    """Return the ratios that a fresh process measures, by name.

    Args:
        sent: result of :func:`send`.
        seconds: time that the timing may take in that process.

    Raises:
        RuntimeError: if that process fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "comparison.json")
        run_fresh([sys.executable, "-m", _CHILD, str(result)], seconds, sent)
        return ratios_in(result)


def run_fresh(command: Sequence[str], seconds: float, given: bytes = b"") -> bytes:
    """Run the command of a fresh process, and return its standard output.

    Raises:
        RuntimeError: if it fails.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            env=fresh_environment(),
            capture_output=True,
            timeout=_PATIENCE_SECONDS + seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"a fresh process was still running after {error.timeout:.0f} s"
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise RuntimeError(f"a fresh process failed: {said[-1]}")
    return done.stdout


def fresh_environment() -> dict[str, str]:
    """Return the environment of a process that can import what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def ratios_in(file: Path) -> Mapping[str, Ratio]:
    """Return the ratios to the baseline from the file of a comparison."""
    compared = Comparison.from_dict(json.loads(file.read_text(encoding="utf-8")))
    return {name: compared.ratio(name) for name in compared.others}


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    pickle.dump(value, buffer)
    return buffer.getvalue()


def _check(candidate: Candidate, what: str) -> None:
    try:
        for function in (candidate.fn, candidate.before):
            # Pickle would send it by a name that the fresh process does not define.
            if getattr(function, "__module__", None) == "__main__":
                name = getattr(function, "__qualname__", function)
                raise pickle.PicklingError(f"{name} is defined in __main__")
        _pickled(candidate)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{what} sends the candidates to a fresh process, and {candidate.name!r} cannot "
            f"be sent ({first_line(error)}); define its function in a module"
        ) from error
