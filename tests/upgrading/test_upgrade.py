import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from convtime import cli
from convtime.upgrading import upgrade as upgrading
from convtime.upgrading.interpreters import FailedError
from convtime.upgrading.probe import Layer
from tests.helpers.pass_facts import FACTS


class FakeSide:
    """An interpreter with one layer, whose calls take some seconds or fail."""

    environment: ClassVar = {"gpu_uuid": None, "gpu": None, "torch": "2"}
    on_gpu, kind = False, "cpu"

    def __init__(self, which: str, seconds: float | None) -> None:
        self.which = which
        self._seconds = seconds
        layer = {"key": "0", "module": "", "dtype": "float32", "sizes": "", "layout": ""}
        self.loaded = {"layers": {"0": {**layer, "attributes": {}}}, "scripted": []}

    def ask(self, do: str, which: str, **_: Any) -> dict[str, Any]:
        if which == "backward":
            raise FailedError("it has no gradient")
        if do == "facts":
            return {name: getattr(FACTS, name) for name in FACTS_OF_A_PASS}
        if self._seconds is None:
            raise FailedError("out of memory")
        return {"seconds": self._seconds, "clock_hz": None}

    def settings(self) -> dict[str, str]:
        return {}


FACTS_OF_A_PASS = ("first_call_seconds", "memory_bytes", "bits", "backend", "kernels", "error")


def fake_interpreters(*pairs: tuple[float | None, float | None]) -> Any:
    """The pair that times comes second; the others confirm."""

    def made(count: int, **_options: Any) -> Iterator[tuple[FakeSide, FakeSide]]:
        for _ in range(count):
            old, new = left.pop(0)
            yield FakeSide("old", old), FakeSide("new", new)

    left = [*pairs]
    return SimpleNamespace(pairs=made, command="convtime upgrade")


def test_a_failure_in_a_confirming_pair_leaves_the_first_verdict():
    pairs = (1e-3, 1e-3), (1e-3, 2e-3), (1e-3, 2e-3), (1e-3, None)
    found = upgrading.upgrade(fake_interpreters(*pairs), pairs=2, budget=0)
    (change,) = (each.change for each in found.layers)
    assert change.verdict == "slower"
    assert change.ratio.value == pytest.approx(2)
    assert found.missing[-1] == "whether 0 forward repeats: it gave no time again"


def test_rounds_alternate_until_the_budget_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(self: FakeSide, _do: str, **_: Any) -> dict[str, Any]:
        asked.append(self.which)
        return {"seconds": 1e-3, "clock_hz": None}

    monkeypatch.setattr(FakeSide, "ask", ask)
    sides: Any = (FakeSide("old", None), FakeSide("new", None))
    one = upgrading._Pass(("0",), "forward")
    for budget, rounds in ((0, 12), (3, 15), (1e9, 60)):  # 12 are made in any case, and 60 at most
        clock = SimpleNamespace(perf_counter=itertools.count().__next__)  # of a second per reading
        monkeypatch.setattr(upgrading, "time", clock)
        bursts = upgrading._time_bursts(one, sides, budget)
        assert [len(answers) for answers in bursts] == [rounds, rounds]
        turns = [("old", "new"), ("new", "old")] * (rounds // 2 + 1)
        assert asked[-2 * rounds :] == [which for turn in turns[:rounds] for which in turn]


def test_a_pass_that_both_interpreters_cannot_repeat_is_no_difference_between_them():
    found = upgrading.upgrade(fake_interpreters((1e-3, 1e-3), (None, None)), budget=0)
    assert not found.layers
    assert "the old interpreter: out of memory and the new interpreter" in found.failures[0]
    found = upgrading.upgrade(fake_interpreters((1e-3, 1e-3), (None, 1e-3)), budget=0)
    assert [each.change.verdict for each in found.layers] == ["new"]


def test_modules_are_compared_by_what_both_versions_of_torch_know():
    mine = [{"module": f"Mine({number})", "attributes": {}} for number in (1, 2)]
    assert upgrading._modules(*mine) == ("Mine(1)", "Mine(2)")
    assert upgrading._modules(mine[0], None) == ("Mine(1)", "")

    class Norm(torch.nn.LayerNorm):
        shown = ""

        def extra_repr(self) -> str:  # as that of another torch
            return self.shown

    norms = Norm(4), Norm(4), Norm(4, eps=0.1)
    norms[1].shown = norms[2].shown = "bias=True"
    old, new, other = (Layer("0", norm, ((), {})).described() for norm in norms)
    new["attributes"]["more"] = "1"
    assert upgrading._modules(old, new) == (old["module"], old["module"])
    assert upgrading._modules(old, other) == (old["module"], other["module"])

    class Act(torch.nn.Module):
        def extra_repr(self) -> str:
            return repr(torch.relu)

    assert " at 0x" in repr(Act())
    assert "0x" not in Layer("act", Act(), ((), {})).described()["module"]


def test_passes_without_kernels_on_both_sides_have_no_time_on_a_gpu():
    none = dataclasses.replace(FACTS, kernels=())
    sides = {"both": [FACTS, FACTS], "none": [none, none], "old": [FACTS, none]}
    passes = [upgrading._Pass((name,), "forward", [*facts]) for name, facts in sides.items()]
    passes.append(upgrading._Pass(("failed",), "forward", [none, None], ["", "it ended"]))
    assert upgrading._idle(passes) == [passes[1]]
    # A profiler that sees no kernel at all says nothing about any pass.
    assert not upgrading._idle([passes[1]])


def test_bad_input_is_one_sentence_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)
    (tmp_path / "test_planted.py").touch()
    model, conv, given = "package:model", "conv2d:n1c1h4w4k1r1s1", ("--input", "2,3,16,16")
    for arguments, said in (
        (("package", *given), "MODEL must look like package.module:factory"),
        ((model, *given, "--margin", "2"), "--margin must be a share"),
        ((model, *given, "--device", "meta"), "--device must be cpu, cuda or cuda:N"),
        ((conv, *given), "--input requires a model"),
        ((conv, model, *given), "MODEL must be one model"),
        (("test_planted.py", "--layer", "0"), "--layer is for models"),
        (("test_nope.py::test_x",), "test_nope.py does not exist"),
        (("test_planted.py", "nope"), "nope does not exist"),
        ((model, *given, "--new", "/nowhere/python"), "--new must be a Python interpreter"),
    ):
        interpreters = ("--old", sys.executable, "--new", sys.executable)
        assert cli.main(["upgrade", *interpreters, *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
