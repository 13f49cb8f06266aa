"""Records of convtime's promises that were checked on a GPU of this machine."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from convtime.core import codec
from convtime.core.files import exclusive_state, replace_file, state_folder
from convtime.view.shown import Shown

#: A proof counts only for the same GPU and the same versions of the components.
VERSIONS = ("driver", "cuda", "torch", "convtime")

NOT_PROVED = "not proved on this device (run: convtime doctor --prove)"


@dataclasses.dataclass(frozen=True)
class Promise:
    """One checked promise.

    Attributes:
        name: short description of the promise.
        holds: whether it holds; None if it could not be checked.
        sentence: the measured value and its limit, or why it could not be checked.
    """

    name: str
    holds: bool | None
    sentence: str


@dataclasses.dataclass(frozen=True, repr=False)
class Proof(codec.Stored, Shown, show="convtime.device.show_proof"):
    """Promises that were checked on one GPU.

    Attributes:
        gpu: the GPU's name.
        gpu_uuid: the GPU's UUID.
        versions: versions of driver, CUDA, torch and convtime.
        date: date of the check, in UTC.
        promises: the checked promises.
    """

    gpu: str
    gpu_uuid: str
    versions: Mapping[str, str | None]
    date: str
    promises: tuple[Promise, ...]

    @property
    def holds(self) -> bool:
        """Whether none of the promises was found broken."""
        return all(promise.holds is not False for promise in self.promises)

    @property
    def summary(self) -> str:
        """How many promises hold, and the names of the others."""
        broken = [promise.name for promise in self.promises if promise.holds is False]
        unchecked = [promise.name for promise in self.promises if promise.holds is None]
        held = len(self.promises) - len(broken) - len(unchecked)
        summary = f"{held} of {len(self.promises)} promises hold"
        summary += f"; broken: {', '.join(broken)}" if broken else ""
        return summary + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")


def store(proof: Proof) -> None:
    """Store a proof in the user's state folder, replacing any earlier proof of the same GPU."""
    with exclusive_state() as folder:
        replace_file(_path(folder, proof.gpu_uuid), proof.to_json())


def status(gpu_uuid: str, versions: Mapping[str, str | None]) -> str:
    """Return a short proof status for measurements on a GPU."""
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
    return f"proved here on {proof.date[:10]}: {proof.summary}"


@functools.lru_cache(maxsize=16)
def _read(path: Path, _changed: int) -> Proof | None:
    """Read a proof from a file; return None if it does not match this schema version."""
    try:
        return Proof.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _path(folder: Path, gpu_uuid: str) -> Path:
    return folder / f"proof-{gpu_uuid}.json"
