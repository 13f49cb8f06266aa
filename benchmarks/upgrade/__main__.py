"""Runs of `convtime upgrade`, on groups of layers and on unchanged models."""

import functools
import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import results
import torch
from common import running

from convtime.upgrading.interpreters import KEPT_MEMORY
from upgrade import IN_HALF, RESNET50
from upgrade.plants import ON_GPU, Group, Site, errata
from upgrade.truth import measure_truth

_MARGIN = 0.005
_TIMEOUT_SECONDS = 420


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    def of_model(model: str) -> running.Measure:
        return functools.partial(measure_unchanged, model, device)

    groups = {key: functools.partial(measure_group, group, device) for key, group in ON_GPU.items()}
    return {
        RESNET50: of_model("common.resnet:ResNet50"),
        **groups,
        IN_HALF: of_model("upgrade.planted_model:resnet50_in_half"),
    }


def measure_group(group: Group, device: torch.device) -> results.Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = _interpreter(folder, "old", group.old(), {})
        was = _truth(old, device, log=folder / "plans.log" if group.blocks_engines else None)
        variables = {}
        if group.blocks_engines:
            file = folder / "errata.json"
            file.write_text(json.dumps(errata(was["plans"])))
            variables["CUDNN_ERRATA_JSON_FILE"] = str(file)
        new = _interpreter(folder, "new", group.new(was), variables)
        now = _truth(new, device)
        longest = max(math.prod(site["input"]) for site in group.sites.values())
        length = longest + longest // 8  # some sites are longer on the new side
        changes, seconds = _upgrade(
            old, new, "upgrade.planted_model:model", str(length), device, folder
        )
    return {
        "plants": {
            name: _plant(group, name, was["seconds"][name], now["seconds"][name], changes)
            for name in group.sites
            if group.cause(name) is not None
        },
        "unchanged": {
            f"{name} {which}": _kept(change)
            for (name, which), change in changes.items()
            if name in group.sites and group.unchanged(name, which)
        },
        "seconds": seconds,
    }


def measure_unchanged(model: str, device: torch.device) -> results.Row:
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        changes, seconds = _upgrade(python, python, model, "32,3,224,224", device, Path(folder))
    unchanged = {" ".join(key): _kept(change) for key, change in changes.items()}
    return {"plants": {}, "unchanged": unchanged, "seconds": seconds}


Changes = dict[tuple[str, str], Any]  # by layer and pass


def _plant(
    group: Group, name: str, was: dict[str, float], now: dict[str, float], changes: Changes
) -> results.Row:
    true = {which: now[which] / was[which] for which in was}
    which = max(true, key=lambda each: true[each])
    change = changes[name, which]
    cause = change["cause"]
    return {
        "planted": group.plants.get(name, "flags" if group.flagged else "blocked engines"),
        "right_cause": group.cause(name),
        "which": which,
        "truth": true[which],
        "cause": cause and cause["cause"],
        "evidence": cause and cause["evidence"],
        **_kept(change),
    }


def _kept(change: Mapping[str, Any]) -> results.Row:
    ratio = change["change"]["ratio"]
    return {
        "verdict": change["change"]["verdict"],
        "ratio": None if ratio is None else ratio["value"],
        "sentence": change["change"]["sentence"],
    }


def _interpreter(folder: Path, name: str, described: Site, variables: Mapping[str, str]) -> str:
    """A script that runs this Python with a description of the model, and with variables."""
    (folder / f"{name}.json").write_text(json.dumps(described))
    every = {"UPGRADE_MODEL": str(folder / f"{name}.json"), **variables}
    assignments = " ".join(f"{variable}={shlex.quote(value)}" for variable, value in every.items())
    script = folder / f"python-{name}"
    script.write_text(f'#!/bin/sh\n{assignments} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return str(script)


def _truth(python: str, device: torch.device, log: Path | None = None) -> Any:
    variables = dict(KEPT_MEMORY)
    if log is not None:
        variables |= {"CUDNN_FRONTEND_LOG_INFO": "1", "CUDNN_FRONTEND_LOG_FILE": str(log)}
    command = [python, *running.fresh_call(measure_truth, device)]
    done = running.capture(command, _TIMEOUT_SECONDS, **variables)
    for row in running.printed_results(done.stdout):
        return row
    raise RuntimeError(f"the truth is unknown: {running.last_line(done.stderr)}")


def _upgrade(
    old: str, new: str, model: str, shape: str, device: torch.device, folder: Path
) -> tuple[Changes, float]:
    """What the command finds, and its seconds."""
    file = folder / "upgrade.json"
    command = [
        *(sys.executable, "-m", "convtime", "upgrade", "--old", old, "--new", new, model),
        *("--input", shape, "--device", str(device)),
        *("--margin", str(_MARGIN), "--json", str(file)),
    ]
    begin = time.perf_counter()
    done = running.capture(command, _TIMEOUT_SECONDS)
    seconds = time.perf_counter() - begin
    if done.returncode or not file.exists():
        said = running.last_line(done.stderr or done.stdout)
        raise RuntimeError(f"convtime upgrade ended with {done.returncode}: {said}")
    found = json.loads(file.read_text(encoding="utf-8"))
    every = (*found["step"], *found["layers"])
    return {(change["layers"][0], change["which"]): change for change in every}, seconds


if __name__ == "__main__":
    running.run("upgrade", make_cases)
