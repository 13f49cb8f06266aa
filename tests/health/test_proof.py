"""Promises that are checked on a user's GPU: how they are judged, kept and told."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given

from convtime import cli
from convtime.device import proof as proofs
from convtime.device.proof import NOT_PROVED, Promise, Proof, status, store
from convtime.health import proof as study
from convtime.health.proof import KnownDifference, KnownRatio, ProofRecord, promises
from convtime.timing.verdict import Ratio
from tests.helpers.measurements import make
from tests.helpers.texts import flat

VERSIONS = {"driver": "580", "cuda": "13.0", "torch": "2.11.0", "convtime": "0.1.0"}
TICK = 32e-9


def difference(method: Any, error: float, expected: float = 20e-6) -> KnownDifference:
    measured = expected + error
    return KnownDifference(method, expected, measured, (measured - 20e-9, measured + 20e-9), TICK)


def ratio(
    expected: float, verdict: str, value: float, low: float = 0.0, high: float = math.inf
) -> KnownRatio:
    return KnownRatio("relu", expected, verdict, Ratio(value, low, high))


EQUAL = ratio(1.0, "same", 1.0, 0.99, 1.01)
GOOD = ProofRecord(
    differences=tuple(
        difference(method, 10e-9) for method in ("kernel", "event", "graph") for _ in range(6)
    ),
    ticks={"globaltimer": TICK, "event": TICK, "record": TICK},
    ratios=(ratio(0.5, "faster", 0.504), ratio(1.0, "same", 1.0)),
    pairs=(EQUAL,) * 40,
    regimes={"burst": (170e-6, 170.5e-6), "sustained": (200e-6, 201e-6)},
)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"differences": (difference("kernel", 35e-9),) * 6}, ""),  # within half a tick
        ({"differences": (difference("kernel", 45e-9),) * 6}, "intervals hold known durations"),
        ({"differences": (difference("kernel", -45e-9),) * 6}, "intervals hold known durations"),
        ({"ticks": {"record": None}}, "ticks are known"),
        ({"ratios": (ratio(0.5, "slower", 0.5),)}, "overlapping work"),
        ({"ratios": (ratio(0.5, "faster", 0.511),)}, "overlapping work"),
        ({"ratios": (ratio(0.5, "faster", 0.489),)}, "overlapping work"),
        ({"ratios": (ratio(0.5, "faster", 0.509),)}, ""),
        ({"pairs": (ratio(1.0, "slower", 0.9, 0.9, 1.03),) * 6 + (EQUAL,) * 34}, ""),
        ({"pairs": (ratio(1.0, "slower", 0.9, 0.9, 1.03),) * 7 + (EQUAL,) * 33},
         "equal operations"),
        ({"pairs": (ratio(1.0, "same", 1.001, 1.001, 1.003),) * 12 + (EQUAL,) * 28},
         "equal operations"),
        ({"regimes": {"burst": (170e-6, 173.3e-6), "sustained": (200e-6, 196.1e-6)}}, ""),
        ({"regimes": {"burst": (170e-6, 173.5e-6)}}, "regime burst repeats"),
        ({"regimes": {"burst": (170e-6, 166.5e-6)}}, "regime burst repeats"),
    ],
)  # fmt: skip
def test_each_promise_can_be_broken(changes: dict[str, Any], name: str) -> None:
    assert [promise.holds for promise in promises(GOOD)] == [True] * 9
    judged = promises(dataclasses.replace(GOOD, **changes))
    broken = [promise.name for promise in judged if promise.holds is False]
    assert len(broken) == bool(name)
    assert all(each.startswith(name) for each in broken)


@given(
    st.sampled_from([("kernel", 0.01, 64e-9), ("event", 0.02, 250e-9), ("graph", 0.03, 500e-9)]),
    st.lists(st.tuples(st.floats(1e-6, 2e-4), st.floats(-1.5, 1.5)), min_size=1, max_size=4),
)
def test_known_durations_hold_within_a_share_or_an_absolute_limit_and_a_tick(
    limits: tuple[str, float, float], drawn: list[tuple[float, float]]
) -> None:
    assume(all(abs(abs(error) - 1) > 1e-9 for _, error in drawn))  # which are rounded
    method, share, least = limits
    found = [
        difference(method, error * (TICK + max(least, share * expected)), expected)
        for expected, error in drawn
    ]
    judged = {each.name: each.holds for each in promises(ProofRecord(differences=tuple(found)))}
    expected = all(abs(error) <= 1 for _, error in drawn)
    assert judged[f"known durations by {method}"] == expected


def test_what_was_not_measured_is_neither_held_nor_broken() -> None:
    judged = promises(ProofRecord(failures={"kernel": "CUPTI is taken"}))
    assert {promise.holds for promise in judged} == {None}
    assert any("CUPTI is taken" in promise.sentence for promise in judged)
    reached = promises(ProofRecord(regimes={"burst": "the clock is locked"}))
    assert any("the clock is locked" in promise.sentence for promise in reached)


@given(st.integers(1, 8), st.integers(0, 8), st.floats(0.5, 0.95))
def test_chance_alone_breaks_no_promise(count: int, held: int, share: float) -> None:
    """By the probability of each sequence of intervals that hold or do not."""
    held = min(held, count)
    chance = sum(
        math.prod(share if each else 1 - share for each in outcome)
        for outcome in itertools.product((False, True), repeat=count)
        if sum(outcome) <= held
    )
    assert study.is_too_few(held, count, share) == (chance < 0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def proof(*holds: bool | None) -> Proof:
    made = tuple(Promise(f"promise {number}", each, "") for number, each in enumerate(holds))
    return Proof("NVIDIA H200", "GPU-1", VERSIONS, "2026-11-24T01:02:03+00:00", made)


def test_a_stored_proof_is_told_on_that_gpu_with_those_versions(folder: Path) -> None:
    assert status("GPU-1", VERSIONS) == NOT_PROVED
    store(proof(True, True))
    assert status("GPU-1", VERSIONS) == "proved here on 2026-11-24: 2 of 2 promises hold"
    assert status("GPU-2", VERSIONS) == NOT_PROVED
    assert "driver 580 only" in status("GPU-1", {**VERSIONS, "driver": "590"})
    store(proof(True, False, None))
    assert "1 of 3 promises hold; broken: promise 1; not checked: promise 2" in status(
        "GPU-1", VERSIONS
    )
    (path,) = folder.rglob("proof-GPU-1.json")
    path.write_text("{")
    proofs._read.cache_clear()
    assert status("GPU-1", VERSIONS) == NOT_PROVED
    assert "promises: not proved" in flat(make(provenance={"proof": NOT_PROVED}))
    assert "promises" not in flat(make(provenance={"proof": None}))


def test_the_command_prints_keeps_and_judges(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not torch.cuda.is_available():
        assert cli.main(["doctor", "--prove"]) == 2
        assert "--prove needs a GPU" in capsys.readouterr().err
    for holds, code in ((True, 0), (False, 1)):
        monkeypatch.setattr("convtime.cli.doctor.resolve_device", lambda _: torch.device("cuda", 0))
        monkeypatch.setattr("convtime.cli.doctor.prove", lambda *_, holds=holds: proof(holds))
        assert cli.main(["doctor", "--prove"]) == code
        assert ("BROKEN" in capsys.readouterr().out) == (not holds)
    assert "broken: promise 0" in status("GPU-1", VERSIONS)


@pytest.mark.cuda
@pytest.mark.timing
def test_the_promises_hold_on_this_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "_EQUAL_PAIRS", 2)
    proved = study.prove(torch.device("cuda", 0))
    assert proved.holds, [each for each in proved.promises if each.holds is False]
    assert sum(each.holds is True for each in proved.promises) >= 7
