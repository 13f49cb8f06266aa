"""Choosing plans: what is asked for, what is confirmed, and plans on a GPU."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime.cli import main
from convtime.cli.exit_codes import BAD_INPUT, DONE
from convtime.conv.binding import call_of
from convtime.conv.call import PASSES, ConvCall
from convtime.conv.plan_choice import PlanChoice
from convtime.conv.plans import loading, replay
from convtime.conv.plans import tune as tuning
from convtime.conv.plans.passes import ConvPass, pass_of
from convtime.conv.plans.plan_set import Choice, Operand, Plans, StoredPlan
from convtime.conv.plans.replay import ReplayResult, digest_of
from convtime.conv.plans.search import Limits
from convtime.conv.problem import ConvProblem
from tests.helpers.plans import ENTRY, FACTS, PLANS, PROBLEM


def test_a_problem_is_asked_for_by_the_call_that_it_describes() -> None:
    call = pass_of(PROBLEM).call
    assert call.problem.in_channels == 64
    assert call.problem.groups == 1
    tensors = call.tensors("cpu", backward=False)
    assert tensors.x.is_contiguous(memory_format=torch.channels_last)
    grouped = dataclasses.replace(PROBLEM, w=Operand((32, 16, 3, 3), (144, 1, 48, 16), 8))
    call = pass_of(grouped).call
    assert call.problem.groups == 4
    assert call.tensors("cpu", backward=False).w.data_ptr() % 32 == 8


def test_a_digest_is_of_the_values_whatever_the_strides() -> None:
    numbers = torch.arange(24.0)
    for given, dtype in itertools.product(
        (
            numbers.reshape(2, 12, 1, 1).to(memory_format=torch.channels_last),
            numbers.reshape(2, 12).t()[:, :, None, None],
            numbers.as_strided((1, 1, 1, 1), (7, 5, 3, 9)),
            numbers.as_strided((1, 12, 1, 1), (12, 1, 12, 12)),
            torch.empty(0, 3, 1, 1),
        ),
        (torch.float16, torch.float32),
    ):
        result = torch.empty_strided(given.shape, given.stride(), dtype=dtype).copy_(given)
        plain = torch.tensor(result.tolist(), dtype=dtype).reshape(result.shape)
        assert digest_of(result) == digest_of(plain)
        if result.numel():
            assert digest_of(result) != digest_of(plain + 1)


def test_arguments_out_of_range_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    arguments: list[tuple[dict[str, Any], str]] = [
        ({"budget": 0}, "budget must be a number above 0"),
        ({"margin": 0.02}, "margin must be a number above 0 and at most 0.01, got 0.02"),
        ({"tolerance": -1}, "tolerance must be a number above 0"),
        ({"workspace_limit": 0.5}, "workspace_limit (bytes) must be a whole number, 0 or more"),
        ({"layouts": ("nhwc",)}, "layouts must be some of"),
        ({"layouts": "channels_last"}, "layouts must be some of"),
        ({"passes": ("forward",)}, "passes must be some of"),
        ({"passes": ()}, "passes must be some of"),
        *([] if torch.cuda.is_available() else [({}, "plans are chosen on a GPU")]),
    ]
    for each, message in arguments:
        with pytest.raises(ValueError, match=re.escape(message)):
            convtime.conv.tune(F.conv2d, torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1), **each)
    with pytest.raises(ValueError, match="plans are used by layers without a policy"):
        convtime.nn.replace(torch.nn.Conv2d(1, 1, 1), policy="benchmark", plans=PLANS)
    assert main(["tune", "n1c8h8k8f3p1", "--device", "cpu"]) == BAD_INPUT
    assert "GPU" in capsys.readouterr().err


def test_the_command_tunes_the_problems_that_it_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[ConvPass]] = []

    def tuned(conv_passes: list[ConvPass], **_: Any) -> Plans:
        asked.append(conv_passes)
        return PLANS

    def on_cpu(problem: ConvProblem, dtype: str, layout: str, _: object) -> ConvCall:
        return call_of(problem, dtype, layout, torch.device("cpu"))

    monkeypatch.setattr("convtime.cli.tune.resolve_device", torch.device)
    monkeypatch.setattr("convtime.cli.tune.call_of", on_cpu)
    monkeypatch.setattr("convtime.cli.tune.tune", tuned)
    again, other = "conv2d:n2c8h9w9k8r3s3p1:bias", "conv1d:n1c4w9k4s3:nhwc"
    for backward, passes in ((["--backward"], PASSES), ([], PASSES[:1])):
        words = ["tune", again, other, again, "--dtype", "float16", *backward]
        assert main([*words, "--device", "cuda"]) == DONE
        conv_passes = asked.pop()
        assert [each.pass_name for each in conv_passes] == [*passes, *passes]
        first, last = conv_passes[0], conv_passes[-1]
        assert (first.count, last.count) == (2, 1)
        assert first.call.problem == ConvProblem(2, 8, (9, 9), 8, (3, 3), padding=(1, 1))
        assert last.call.problem == ConvProblem(1, 4, (9,), 4, (3,))
        assert {each.call.dtype for each in conv_passes} == {"float16"}


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(
    ("uses", "source", "tag"), [(2, "explicit", "eng38"), (1, "explicit", ""), (2, "default", "")]
)
def test_a_replay_tells_the_engine_and_whether_the_plan_could_be_used(
    monkeypatch: pytest.MonkeyPatch, used: bool, uses: int, source: str, tag: str
) -> None:
    """By a stand-in for the plans of a GPU: what its cache has before the call and after it."""
    before = PlanChoice(
        *("eng38", source, 0),
        pass_name="fprop",
        policy="heuristic",
        device="cuda:0",
        dtype="float16",
        deterministic=False,
        allow_tf32=True,
        uses=1,
        rebuilds=0,
    )
    after = dataclasses.replace(before, uses=uses, rebuilds=uses)
    caches = iter(([before], [after]))
    monkeypatch.setattr(replay, "plan_cache", lambda: next(caches))
    monkeypatch.setattr(replay, "is_in_use", lambda _: used)
    monkeypatch.setattr(replay, "load_plans", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    result = torch.arange(4.0)
    monkeypatch.setattr(replay, "convtime_call", lambda *_: lambda: result)
    pytorchs = dataclasses.replace(ENTRY, choice=Choice("pytorch"))
    found = replay.replay(Plans((pytorchs, ENTRY), 0.01, {}), torch.device("cpu"))
    why = "" if used else "it could not be used"
    assert found == [ReplayResult("", ""), ReplayResult(tag, digest_of(result), why)]


def test_a_plan_is_kept_if_a_fresh_process_gives_its_engine_and_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changing = dataclasses.replace(ENTRY, facts=dataclasses.replace(FACTS, repeats=False))
    without = dataclasses.replace(ENTRY, facts=None)
    pytorchs = dataclasses.replace(ENTRY, choice=Choice("pytorch"))
    good = ReplayResult("eng38", "bits")
    cases: list[tuple[StoredPlan, ReplayResult, ReplayResult, str]] = [
        *((entry, good, good, "") for entry in (ENTRY, changing, without, pytorchs)),
        (ENTRY, ReplayResult("eng38", "bits", "it failed"), good, "it failed"),
        (ENTRY, good, ReplayResult("eng38", "bits", "it failed"), "it failed"),
        (
            ENTRY,
            ReplayResult("", "bits"),
            ReplayResult("", "bits"),
            "asked for the plan of another",
        ),
        (ENTRY, good, ReplayResult("eng3", "bits"), "a fresh process ran eng3"),
        (ENTRY, good, ReplayResult("", "bits"), "a fresh process ran PyTorch"),
        (ENTRY, good, ReplayResult("eng38", "others"), "a fresh process gave other bits"),
        (without, good, ReplayResult("eng38", "others"), "a fresh process gave other bits"),
        (changing, good, ReplayResult("eng38", "others"), ""),
        (pytorchs, ReplayResult("", ""), ReplayResult("", "others"), ""),
    ]
    monkeypatch.setattr(tuning, "replay", lambda *_: [here for _, here, _, _ in cases])
    monkeypatch.setattr(tuning, "replay_elsewhere", lambda *_: [there for *_, there, _ in cases])
    plans = Plans(tuple(entry for entry, *_ in cases), 0.01, {})
    found = tuning.confirm_choices(plans, torch.device("cpu")).entries
    for (entry, *_, why), kept in zip(cases, found, strict=True):
        if not why:
            assert kept == entry
            continue
        assert kept.choice == Choice("pytorch")
        assert kept.problem == entry.problem
        if kept.facts is not None:
            assert kept.facts.refused[:-1] == FACTS.refused
            tag, reason = kept.facts.refused[-1]
            assert tag == str(ENTRY.choice)
            assert why in reason


def test_plans_outlive_a_confirmation_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(tuning, "_gpu", torch.device)
    monkeypatch.setattr(tuning, "_tune_passes", lambda *_: [ENTRY])
    monkeypatch.setattr(tuning, "passes_of_call", lambda *_: [])
    monkeypatch.setattr(tuning, "confirm_choices", fail)
    failures = {
        "an illegal memory access;": RuntimeError("an illegal memory access\nand more"),
        "it was interrupted;": KeyboardInterrupt(),
    }
    for why, error in failures.items():  # noqa: B007 (`fail` raises it)
        with pytest.warns(UserWarning, match=f"in a fresh process is unknown: .*{why}"):
            plans = convtime.conv.tune(F.conv2d, device="cpu")
        assert plans.entries == (ENTRY,)


@pytest.mark.parametrize("workers", [None, 1])
def test_a_search_that_fails_costs_no_other_plan(
    monkeypatch: pytest.MonkeyPatch, workers: int | None
) -> None:
    problems = [dataclasses.replace(PROBLEM, padding=(padding, 1)) for padding in range(4)]
    conv_passes = [pass_of(each, f"conv{place}") for place, each in enumerate(problems)]

    def search(conv_pass: ConvPass, *_: Any) -> StoredPlan:
        name = conv_pass.name
        if name in ("conv0", "conv2"):
            raise RuntimeError("out of memory")
        return dataclasses.replace(ENTRY, name=name, problem=problems[int(name[-1])])

    monkeypatch.setattr(tuning, "tune_pass", search)
    monkeypatch.setattr(tuning, "_gpu", torch.device)
    limits = Limits(1.0, 0.01, 1.1)
    with contextlib.ExitStack() as stack:
        threads = workers and concurrent.futures.ThreadPoolExecutor(workers)
        executor = stack.enter_context(threads) if threads else None
        rest: Any = (limits, executor, None, {"device": "cpu"})
        with pytest.warns(UserWarning, match="found for conv0 fprop and 1 more: .*of memory"):
            entries = tuning._tune_passes(conv_passes, *rest)
        assert [entry.name for entry in entries] == ["conv1", "conv3"]
        with pytest.raises(RuntimeError, match="found for conv0 fprop: .*out of memory"):
            tuning._tune_passes(conv_passes[:1], *rest)


LINE = "conv2d:n8c64h28w28k64r3s3p1"
PADDED: dict[str, Any] = {"kwargs": {"padding": 1}}


@pytest.mark.cuda
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def unload(self) -> Iterator[None]:
        yield
        convtime.conv.load_plans(None)
        convtime.conv.clear_plan_cache()

    @staticmethod
    def operands() -> list[torch.Tensor]:
        x = torch.randn(8, 64, 28, 28, device="cuda", dtype=torch.float16)
        w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.float16) / 24
        return [x.to(memory_format=torch.channels_last), w]

    @staticmethod
    def close(
        plans: Plans, x: torch.Tensor, w: torch.Tensor, most: float, **call: Any
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Compare PyTorch's output and gradients with those of the plans, and return both."""
        x, w = x.requires_grad_(), w.requires_grad_()
        expected = F.conv2d(x, w, **call)
        grad = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, (x, w), grad)
        convtime.conv.load_plans(plans)
        convtime.conv.clear_plan_cache()
        ours = convtime.ops.conv2d(x, w, **call)
        found = torch.autograd.grad(ours, (x, w), grad)
        pairs = [(expected, ours), *zip(wanted, found, strict=True)]
        for theirs, got in pairs:
            assert (got - theirs).float().norm() < most * theirs.float().norm()
        return pairs

    @pytest.mark.thorough
    def test_chosen_plans_run_in_all_passes_and_give_the_same_results(self) -> None:
        x, w = self.operands()
        plans = convtime.conv.tune(F.conv2d, x, w, **PADDED, passes=PASSES, budget=0.5)
        assert [entry.problem.pass_name for entry in plans.entries] == [*PASSES]
        self.close(plans, x, w, 1e-2, padding=1)
        ran = {choice.pass_name: choice for choice in convtime.conv.plan_cache()}
        for entry in plans.entries:
            assert entry.facts is not None
            assert entry.facts.speedup.high > 0.99
            assert entry.facts.seconds <= 1.02 * entry.facts.pytorch_seconds
            if entry.choice.backend == "cudnn":
                choice = ran[entry.problem.pass_name]
                assert choice.source == "explicit"
                assert Choice.of_tag(choice.tag).engine == entry.choice.engine
        # Depthwise ones may run cuDNN in place of PyTorch's kernel.
        convtime.conv.load_plans(None)
        x, w = torch.randn(8, 64, 28, 28, device="cuda"), torch.randn(64, 1, 3, 3, device="cuda")
        call: dict[str, Any] = {"padding": 1, "groups": 64}
        plans = convtime.conv.tune(F.conv2d, x, w, kwargs=call, passes=PASSES, budget=0.5)
        self.close(plans, x, w, 1e-3, **call)

    def test_a_named_engine_is_used_and_another_problem_is_not_touched(self) -> None:
        x, w = self.operands()
        (found,) = convtime.conv.engines(F.conv2d, x, w, **PADDED).passes
        other = next(each for each in found.timed if each.tag != found.pytorch_tag)
        plans = convtime.conv.tune(F.conv2d, x, w, **PADDED, budget=0.2)
        (entry,) = plans.entries
        pinned = dataclasses.replace(entry, choice=Choice.of_tag(other.tag))
        convtime.conv.load_plans(dataclasses.replace(plans, entries=(pinned,)))
        convtime.conv.clear_plan_cache()
        convtime.ops.conv2d(x, w, padding=1)
        convtime.ops.conv2d(x[:4], w, padding=1)
        first, second = convtime.conv.plan_cache()
        assert Choice.of_tag(first.tag) == pinned.choice
        assert second.source == "instant"

    def test_a_plan_that_cannot_be_used_is_named_once_and_pytorchs_takes_its_place(self) -> None:
        x, w = self.operands()
        plans = convtime.conv.tune(F.conv2d, x, w, **PADDED, budget=0.2, confirm=False)
        broken = dataclasses.replace(plans.entries[0], choice=Choice("cudnn", 9999))
        convtime.conv.load_plans(dataclasses.replace(plans, entries=(broken,)))
        expected = F.conv2d(x, w, padding=1)
        with pytest.warns(UserWarning, match=r"stored plan for .*eng9999.* cannot be used"):
            got = convtime.ops.conv2d(x, w, padding=1)
        assert torch.equal(got, expected)
        assert not loading.is_in_use(broken)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(convtime.ops.conv2d(x, w, padding=1), expected)

    @pytest.mark.thorough
    def test_another_layout_computes_the_same(self) -> None:
        x = torch.randn(8, 64, 28, 28, device="cuda")
        w = torch.randn(64, 64, 3, 3, device="cuda") / 24
        plans = convtime.conv.tune(F.conv2d, x, w, **PADDED, passes=PASSES, budget=0.3, knobs=False)
        last = [each.to(memory_format=torch.channels_last) for each in (x, w)]
        engines = convtime.conv.engines(F.conv2d, *last, **PADDED, backward=True)
        entries = tuple(
            dataclasses.replace(entry, choice=Choice.of_tag(found.timed[0].tag, "channels_last"))
            for entry, found in zip(plans.entries, engines.passes, strict=True)
        )
        plans = dataclasses.replace(plans, entries=entries)
        for theirs, got in self.close(plans, x, w, 1e-2, padding=1):  # in TF32
            assert got.stride() == theirs.stride()
        assert all(map(loading.is_in_use, entries))

    def test_what_a_program_has_run_can_be_tuned(self) -> None:
        convtime.conv.clear_plan_cache()
        x, w = (each.requires_grad_() for each in self.operands())
        convtime.ops.conv2d(x, w, padding=1).sum().backward()
        plans = convtime.conv.tune(convtime.conv.plan_cache(), budget=0.2, confirm=False)
        assert {entry.problem.pass_name for entry in plans.entries} == {*PASSES}
        convtime.conv.load_plans(plans)
        convtime.conv.clear_plan_cache()
        convtime.ops.conv2d(x, w, padding=1)
        (choice,) = convtime.conv.plan_cache()
        assert choice.source == "explicit"

    @pytest.mark.thorough
    def test_a_model_and_the_command_write_check_and_use_plans(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(tmp_path / "plans.json")
        model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU())
        model = model.to("cuda", torch.float16).to(memory_format=torch.channels_last)
        x = torch.randn(4, 16, 32, 32, device="cuda", dtype=torch.float16)
        expected = model(x)
        plans = convtime.conv.tune(model, x, passes=("fprop",), budget=0.2)
        plans.save(path)
        with convtime.nn.replace(model, plans=path):
            torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)
        (entry,) = plans.entries
        assert loading.is_in_use(entry)
        os.unlink(path)
        assert main(["tune", LINE, "--dtype", "float16", "--budget", "0.2", "--save", path]) == DONE
        assert "plans for 1 problem" in capsys.readouterr().out
        assert main(["tune", "--revalidate", path]) == DONE
        capsys.readouterr()
        assert main(["conv", LINE, "--dtype", "float16", "--plans", path]) == DONE
        assert "plans of" in capsys.readouterr().out
