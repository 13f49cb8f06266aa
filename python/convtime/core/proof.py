"""Which of convtime's promises were checked on a GPU of this machine, and hold there."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from convtime.core import codec
from convtime.core.files import exclusive_state, replace_file, state_folder

#: What a proof is of, beside the GPU: one that was made with another of these does not count.
VERSIONS = ("driver", "cuda", "torch", "convtime")

NOT_PROVED = "not proved on this device (run: convtime doctor --prove)"


@dataclasses.dataclass(frozen=True)
class Promise:
    """One promise, as it was checked.

    Attributes:
        name: what is promised.
        holds: whether it holds; None if it could not be checked.
        sentence: what was measured against which limit, or why it could not be checked.
    """

    name: str
    holds: bool | None
    sentence: str


@dataclasses.dataclass(frozen=True)
class Proof(codec.Stored):
    """Promises that were checked on one GPU.

    Attributes:
        gpu: the GPU's name.
        gpu_uuid: its UUID.
        versions: of driver, CUDA, torch and convtime.
        date: when, in UTC.
        promises: what was checked.
    """

    SCHEMA: ClassVar[str] = "1.0"

    gpu: str
    gpu_uuid: str
    versions: Mapping[str, str | None]
    date: str
    promises: tuple[Promise, ...]

    @property
    def holds(self) -> bool:
        """Whether no promise was found broken."""
        return all(promise.holds is not False for promise in self.promises)


def store(proof: Proof) -> None:
    """Keeps a proof in the user's state folder, in place of an earlier one of the same GPU."""
    with exclusive_state() as folder:
        replace_file(_path(folder, proof.gpu_uuid), proof.to_json())


def told(gpu_uuid: str, versions: Mapping[str, str | None]) -> str:
    """What a measurement on a GPU says of its proof, in a few words."""
    path = _path(state_folder(), gpu_uuid)
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return NOT_PROVED
    proof = _read(path, changed)
    if proof is None:
        return NOT_PROVED
    others = [
        f"{what} {proof.versions.get(what)}"
        for what in VERSIONS
        if proof.versions.get(what) != versions.get(what)
    ]
    if others:
        return f"proved with {', '.join(others)} only; run: convtime doctor --prove"
    return f"proved here on {proof.date[:10]}: {summary(proof)}"


def summary(proof: Proof) -> str:
    """How many promises hold, and which do not."""
    broken = [promise.name for promise in proof.promises if promise.holds is False]
    unchecked = [promise.name for promise in proof.promises if promise.holds is None]
    held = len(proof.promises) - len(broken) - len(unchecked)
    said = f"{held} of {len(proof.promises)} promises hold"
    said += f"; broken: {', '.join(broken)}" if broken else ""
    return said + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")


@functools.lru_cache(maxsize=16)
def _read(path: Path, _changed: int) -> Proof | None:
    """The proof in a file, or None if the file is not one of this version."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        return Proof.from_dict(data)
    except (OSError, ValueError):
        return None


def _path(folder: Path, gpu_uuid: str) -> Path:
    return folder / f"proof-{gpu_uuid}.json"
