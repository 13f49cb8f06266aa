"""Promises that are checked on a user's GPU: how they are judged, kept and told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from convtime import cli
from convtime.core import proof as proofs
from convtime.core.proof import NOT_PROVED, Promise, Proof, store, told
from convtime.health import proof as study
from convtime.health.proof import (
    EqualPair,
    KnownDifference,
    KnownRatio,
    ProofRecord,
    is_too_few,
    promises,
)
from tests.helpers.measurements import make
from tests.helpers.texts import flat

VERSIONS = {"driver": "580", "cuda": "13.0", "torch": "2.11.0", "convtime": "0.1.0"}


def difference(method: Any, error: float) -> KnownDifference:
    measured = 20e-6 + error
    return KnownDifference(
        method, 20e-6, measured, (measured - 20e-9, measured + 20e-9), tick=32e-9
    )


GOOD = ProofRecord(
    differences=tuple(
        difference(method, 10e-9) for method in ("kernel", "event", "graph") for _ in range(6)
    ),
    ticks={"globaltimer": 32e-9, "event": 32e-9, "record": 32e-9},
    ratios=(KnownRatio("streams", 0.5, "faster", 0.504), KnownRatio("line", 1.0, "same", 1.0)),
    pairs=(EqualPair("relu", "same", 0.99, 1.01),) * 40,
    regimes={"burst": (170e-6, 170.5e-6), "sustained": (200e-6, 201e-6)},
)


def broken(**changes: Any) -> list[str]:
    judged = promises(dataclasses.replace(GOOD, **changes))
    return [promise.name for promise in judged if promise.holds is False]


def test_good_records_hold_every_promise() -> None:
    assert [promise.holds for promise in promises(GOOD)] == [True] * 9


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"differences": (difference("kernel", 300e-9),)}, "known durations by kernel"),
        ({"differences": (difference("event", 600e-9),)}, "known durations by event"),
        ({"differences": (difference("kernel", 90e-9),) * 6}, "intervals hold known durations"),
        ({"ticks": {"record": None}}, "ticks are known"),
        ({"ratios": (KnownRatio("s", 0.5, "slower", 1.1),)}, "overlapping work"),
        ({"ratios": (KnownRatio("s", 0.5, "faster", 0.53),)}, "overlapping work"),
        ({"pairs": (EqualPair("relu", "slower", 1.02, 1.03),) * 40}, "equal operations"),
        (
            {"pairs": (EqualPair("relu", "same", 1.001, 1.003),) * 12 + GOOD.pairs[12:]},
            "equal operations",
        ),
        ({"regimes": {"burst": (170e-6, 180e-6)}}, "regime burst repeats"),
    ],
)
def test_each_promise_can_be_broken(changes: dict[str, Any], name: str) -> None:
    assert any(each.startswith(name) for each in broken(**changes))


def test_what_was_not_measured_is_neither_held_nor_broken() -> None:
    judged = promises(ProofRecord(failures={"kernel": "CUPTI is taken"}))
    assert {promise.holds for promise in judged} == {None}
    assert any("CUPTI is taken" in promise.sentence for promise in judged)
    reached = promises(ProofRecord(regimes={"burst": "the clock is locked"}))
    assert any("the clock is locked" in promise.sentence for promise in reached)


def test_chance_alone_breaks_no_promise() -> None:
    assert not is_too_few(5, 6, 0.9)  # one of six in two runs of five
    assert is_too_few(2, 6, 0.9)
    assert not is_too_few(36, 40, 0.95)
    assert is_too_few(30, 40, 0.95)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def proof(*holds: bool | None, **changes: Any) -> Proof:
    made = tuple(Promise(f"promise {number}", each, "") for number, each in enumerate(holds))
    return dataclasses.replace(
        Proof("NVIDIA H200", "GPU-1", VERSIONS, "2026-11-24T01:02:03+00:00", made), **changes
    )


def test_a_stored_proof_is_told_on_that_gpu_with_those_versions(folder: Path) -> None:
    assert told("GPU-1", VERSIONS) == NOT_PROVED
    store(proof(True, True))
    assert told("GPU-1", VERSIONS) == "proved here on 2026-11-24: 2 of 2 promises hold"
    assert told("GPU-2", VERSIONS) == NOT_PROVED
    assert "driver 580 only" in told("GPU-1", {**VERSIONS, "driver": "590"})
    store(proof(True, False, None))
    assert "1 of 3 promises hold; broken: promise 1; not checked: promise 2" in told(
        "GPU-1", VERSIONS
    )


def test_a_file_that_is_none_is_no_proof(folder: Path) -> None:
    store(proof(True))
    (path,) = folder.rglob("proof-GPU-1.json")
    path.write_text("{")
    proofs._read.cache_clear()
    assert told("GPU-1", VERSIONS) == NOT_PROVED


def test_measurements_on_a_gpu_tell_their_proof() -> None:
    assert "promises: not proved" in flat(make(provenance={"proof": NOT_PROVED}))
    assert "promises" not in flat(make(provenance={"proof": None}))


def test_the_command_prints_keeps_and_judges(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for holds, code in ((True, 0), (False, 1)):
        monkeypatch.setattr("convtime.cli.doctor.resolve_device", lambda _: torch.device("cuda", 0))
        monkeypatch.setattr("convtime.cli.doctor.prove", lambda *_, holds=holds: proof(holds))
        assert cli.main(["doctor", "--prove"]) == code
        assert ("BROKEN" in capsys.readouterr().out) == (not holds)
    assert "broken: promise 0" in told("GPU-1", VERSIONS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_prove(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--prove"]) == 2
    assert "--prove needs a GPU" in capsys.readouterr().err


@pytest.mark.cuda
@pytest.mark.timing
def test_the_promises_hold_on_this_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "_EQUAL_PAIRS", 2)
    proved = study.prove(torch.device("cuda", 0))
    assert proved.holds, [each for each in proved.promises if each.holds is False]
    assert sum(each.holds is True for each in proved.promises) >= 7
