"""Whether candidates compute the same result."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime.timing import result_check
from convtime.timing.candidate import Candidate
from convtime.timing.comparison import Agreement
from convtime.timing.options import Options
from convtime.timing.sampling.measure import TimeLimit
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"device": "cpu", "warmup": 1, "stop": "count", "max_samples": 6}
QUICK |= {"min_samples": 1, "interference": False}


def check(
    *fns: Callable[..., object] | Candidate,
    how: result_check.Check = "close",
    limit: TimeLimit | None = None,
) -> Agreement:
    """The finding for the last of them; the first is the baseline."""
    candidates = [
        Candidate(fn, name=str(place)) if not isinstance(fn, Candidate) else fn.but(name=str(place))
        for place, fn in enumerate(fns)
    ]
    options = Options(device="cpu")
    found = result_check.check_results(candidates, how, options, limit or TimeLimit(None))
    assert list(found) == [str(place) for place in range(1, len(fns))]
    return found[str(len(fns) - 1)]


def of(theirs: object, ours: object, how: result_check.Check = "close") -> Agreement:
    """The finding for a candidate with that result, of a baseline with another."""
    return check(lambda: theirs, lambda: ours, how=how)


def test_compare_says_whether_the_results_are_the_same() -> None:
    x = torch.randn(64, 64)
    calls = {"mm": lambda: x @ x, "same": lambda: torch.mm(x, x), "wrong": lambda: x @ x + 0.1}
    compared = convtime.compare(calls, **QUICK)
    found = compared.same_results
    assert [(name, each.same) for name, each in found.items()] == [("same", True), ("wrong", False)]
    assert found["wrong"].largest_error == pytest.approx(0.1, rel=1e-3)
    assert "wrong: OTHER RESULT: 4,096 of 4,096 numbers differ, by 0.1 at most" in flat(compared)
    assert compared.exit_code("different") == 1
    assert convtime.Comparison.from_dict(compared.to_dict()).same_results == found
    assert convtime.compare([int, int], check=None, **QUICK).same_results == {}


def test_the_check_comes_after_the_timing_and_runs_the_setup() -> None:
    log: list[str] = []

    def call() -> torch.Tensor:
        log.append("call")
        return torch.ones(1)

    compared = convtime.compare([Candidate(call, before=lambda: log.append("setup"))] * 2, **QUICK)
    timed = 6 + compared.measurements["call"].warmup_calls // 2
    assert log == ["setup", "call"] * (2 * timed + 3)


# Of each number, and of the root mean square of all.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 2e-5),
    torch.float16: (1e-3, 8e-3),
    torch.bfloat16: (1.6e-2, 6e-2),
}
INF, NAN = math.inf, math.nan


@settings(max_examples=60)
@given(
    st.sampled_from([*TOLERANCES]),
    st.sampled_from([*TOLERANCES]),
    st.sampled_from([1.0, 100.0, 1e-3]),
    st.booleans(),
    st.integers(0, 9),
)
def test_floating_point_numbers_are_compared_within_tolerances(
    dtype: torch.dtype, our_dtype: torch.dtype, scale: float, is_close: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    relative, of_scale = max(TOLERANCES[dtype], TOLERANCES[our_dtype])
    theirs = scale * random.normal(size=64)
    spoiled = random.choice(64, 12, replace=False)
    if not is_close:
        theirs[spoiled] = random.choice([INF, -INF, NAN], 12)
    numbers = torch.tensor(theirs).to(dtype)
    theirs = numbers.double().numpy()
    rms = np.sqrt(np.mean(np.square(theirs[np.isfinite(theirs)])))
    allowed = np.nan_to_num(relative * abs(theirs), posinf=0) + of_scale * rms
    shares = (
        random.choice([-0.8, 0, 0.8], 64) if is_close else random.choice([-1.008, 0, 1.008, 2], 64)
    )
    ours = theirs + shares * allowed
    if not is_close:
        ours[random.choice(64, 12, replace=False)] = random.choice([INF, -INF, NAN], 12)
    our_numbers = torch.tensor(ours).to(our_dtype)
    ours = our_numbers.double().numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_check, "_CHUNK", 10)  # elements compared at a time
        found = of(numbers, our_numbers)

    finite = np.isfinite(theirs) & np.isfinite(ours)
    errors = np.where(finite, abs(np.where(finite, ours, 0) - np.where(finite, theirs, 0)), 0)
    far = finite & (errors > allowed)
    nans, our_nans = np.isnan(theirs), np.isnan(ours)
    infinite, ours_infinite = np.isinf(theirs), np.isinf(ours)
    kinds = {
        "NaN where the baseline has numbers": our_nans & ~nans,
        "numbers where the baseline has NaN": nans & ~our_nans,
        "infinite where the baseline is finite": ours_infinite & np.isfinite(theirs),
        "finite where the baseline is infinite": infinite & np.isfinite(ours),
        "infinite with another sign": infinite & ours_infinite & (theirs != ours),
        f"by {errors.max():.3g} at most": far,
    }
    differing = sum(int(those.sum()) for those in kinds.values())
    assert found.same is not bool(differing)
    assert found.largest_error == pytest.approx(errors.max())
    if differing:
        assert found.sentence.startswith(f"{differing} of 64 numbers differ")
        for kind, those in kinds.items():
            told = f"{those.sum()} {kind}" if ": " in found.sentence else kind
            assert (told in found.sentence) == (kind in found.sentence) == those.any()


INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint64]


@settings(max_examples=40)
@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.data())
def test_integers_are_compared_without_rounding_or_overflow(
    dtype: torch.dtype, our_dtype: torch.dtype, data: st.DataObject
) -> None:
    def drawn(dtype: torch.dtype) -> list[int]:
        info = torch.iinfo(dtype)
        ends = st.sampled_from([info.min, info.max, 0, 1, info.max // 2])
        numbers = st.integers(info.min, info.max) | ends
        return data.draw(st.lists(numbers, min_size=3, max_size=3))

    theirs, ours = drawn(dtype), drawn(our_dtype)
    found = of(torch.tensor(theirs, dtype=dtype), torch.tensor(ours, dtype=our_dtype))
    errors = [abs(one - other) for one, other in zip(theirs, ours, strict=True)]
    assert found.same is not any(errors)
    assert found.largest_error == float(max(errors))
    if any(errors):
        count = sum(map(bool, errors))
        said = f"{count} of 3 numbers differ, by {max(errors):,} at most"
        assert found.sentence.startswith(said)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rounding_of_long_sums_is_no_difference_and_an_error_is(dtype: torch.dtype) -> None:
    terms = torch.randn(64, 1 << 14, generator=torch.Generator().manual_seed(0)).to(dtype)
    shuffled = terms[:, torch.randperm(1 << 14, generator=torch.Generator().manual_seed(1))]
    wide = torch.promote_types(dtype, torch.float32)  # in which kernels add up what is narrower
    one_by_one = shuffled.to(wide).cumsum(1)[:, -1].to(dtype)
    assert of(terms.sum(1), one_by_one).same is True
    one_by_one[7] += 25  # the root mean square of the sums is 128
    assert of(terms.sum(1), one_by_one).sentence.startswith("1 of 64 numbers differ, by ")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (0.5, 0.5 * (1 + 1e-9)),
        (1, 1.0),
        (0.0, -0.0),
        (torch.tensor([0.0, NAN]), torch.tensor([-0.0, NAN])),
        (torch.ones(3), torch.ones(3) * (1 + 1e-6)),
        (torch.ones(2), torch.ones(2).half()),
    ],
)
def test_exact_is_to_the_bit(theirs: Any, ours: Any) -> None:
    assert of(theirs, ours).same is True
    assert of(theirs, theirs, how="exact").same is True
    found = of(theirs, ours, how="exact")
    assert found.same is False
    if found.largest_error == 0:
        assert "1 of 2 numbers differ: 1 by the sign of 0 or the bits of NaN" in found.sentence


ONE, TWO = torch.ones(1), torch.full((1,), 2.0)
Mode = enum.Enum("Mode", "FAST SLOW")
Pair = collections.namedtuple("Pair", "first second")
Output = dataclasses.make_dataclass("Output", ["loss", "count"])


class Attrs(types.SimpleNamespace):
    """As attrs makes them, which need not be installed."""

    __attrs_attrs__ = (types.SimpleNamespace(name="loss"), types.SimpleNamespace(name="count"))


@pytest.mark.parametrize(
    ("theirs", "ours", "same", "said"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), False, r"its shape is \(3, 2\), not \(2, 3\)"),
        ({"a": ONE}, [ONE], False, r"a sequence of 1, not a mapping with \['a'"),
        ((ONE, 1), (ONE, 2), False, r"at \[1\], it gives 2, not 1"),
        ((ONE, None), (ONE, ONE), False, r"at \[1\], it gives a tensor, not None"),
        (0.5, 0.5001, False, "it gives 0.5001, not 0.5"),
        (NAN, NAN, True, "the same values"),
        (2**70, 2**70 + 1, False, "it gives"),
        (True, 1, False, "it gives 1, not True"),
        (Output(ONE, 3), Output(ONE, 4), False, r"at \.count, it gives 4, not 3"),
        (Pair(ONE, ONE), Pair(ONE, TWO), False, r"at \.second"),
        ((ONE, object()), (ONE, object()), None, r"type object at \[1\] is not compared"),
        (np.ones(3), np.array([1, NAN, 4]), False, "2 of 3 .* 1 NaN where .*, 1 by 3 at most"),
        (ONE.double() * 1e308, ONE.double() * -1e308, False, r"by 1\.8e\+308 at most"),
        pytest.param(10**400, 1.0, False, "it gives 1.0, not 10+", id="beyond floats"),
        (Mode.FAST, Mode.SLOW, False, "SLOW.* not .*FAST"),
        (Attrs(loss=ONE, count=3), Attrs(loss=TWO, count=3), False, r"at \.loss"),
        ((object(), ONE), (object(), TWO, ONE), False, "a sequence of 3, not a sequence of 2"),
        (torch.ones(2) + 1j, torch.ones(2) + 1j, True, "complex64"),
        (torch.ones(0), torch.ones(0), True, "the same numbers"),
        (torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2).to(torch.float8_e4m3fn), True, "fl"),
        (None, torch.ones(1), None, "since the baseline's result has nothing"),
        (torch.ones(1), None, None, "its result has nothing that can be"),
        (torch.ones(1), torch.ones(1).to_sparse(), None, "only dense tensors are compared"),
        (torch.ones(1), torch.ones(1, device="meta"), None, "only dense tensors are compared"),
    ],
)
def test_results_of_every_kind(theirs: Any, ours: Any, same: bool | None, said: str) -> None:
    found = of(theirs, ours)
    assert found.same is same
    assert re.search(said, found.sentence), found.sentence


def test_random_functions_are_not_held_to_be_wrong() -> None:
    x = torch.randn(100)
    dropout = torch.nn.Dropout()
    for fns, said in (
        ((lambda: dropout(x), lambda: x), "the baseline does not repeat: between two calls, "),
        ((lambda: x, lambda: dropout(x)), "it does not repeat: between two calls, "),
    ):
        found = check(*fns)
        assert found.same is None
        assert found.sentence.startswith(said)


def test_what_writes_to_its_tensors_is_said_and_spoils_no_other() -> None:
    x, zeros = torch.randn(100), torch.zeros(4)
    add, in_place = Candidate(torch.add, x, 1), Candidate(x.add_, 1)
    found = check(add, in_place)
    assert found.same is True
    assert found.sentence.endswith("; it writes to tensors that it is given")
    assert check(add, in_place, add).same is True
    found = check(in_place, add)
    assert found.same is None
    assert found.sentence.startswith("the baseline does not repeat")

    def write_behind_torchs_back() -> torch.Tensor:
        zeros.numpy()[:] += 1  # no version counts this
        return zeros

    found = check(lambda: zeros + 1, write_behind_torchs_back, lambda: zeros + 1)
    said = "the baseline's result changed: something writes to the candidates' inputs"
    assert found == Agreement(None, said)


def test_backward_passes_are_compared_by_their_gradients() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return 3 * grad

    x = torch.randn(10, requires_grad=True)
    right = Candidate(lambda x: 2 * x, x, backward=True)
    found = check(right, Candidate(lambda x: x + x, x, backward=True))
    assert (found.same, x.grad) == (True, None)
    other = x.detach().clone().requires_grad_()
    for candidate, same, said in (
        (Candidate(Wrong.apply, x, backward=True), False, "gradients: 10 of 10 numbers differ"),
        (Candidate(lambda x: 2 * x, other, backward=True), None, "belong to different tensors"),
    ):
        found = check(right, candidate)
        assert (found.same, said in found.sentence) == (same, True)


def test_calls_run_in_the_modes_of_the_caller() -> None:
    weight = torch.ones(1, requires_grad=True)
    seen: list[bool] = []

    def call() -> torch.Tensor:
        result = weight * 2
        seen.append(result.requires_grad)
        return result

    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode, torch.device("meta"):
            assert check(call, call).same is True
        assert set(seen) == {False}


def test_what_cannot_be_called_again_is_said_and_costs_no_measurement() -> None:
    turns = iter([torch.ones(1)] * 2)
    found = check(lambda: torch.ones(1), lambda: next(turns), lambda: 0)
    assert (found.same, found.sentence) == (False, "it gives 0, not a tensor")

    def fails() -> None:
        raise LookupError("no more")

    said = "not checked, since a call to check its result raised LookupError: no more"
    assert check(lambda: torch.ones(1), fails) == Agreement(None, said)
    found = check(lambda: 1, lambda: 1, limit=TimeLimit(-1.0))
    assert found == Agreement(None, "not checked, since the timeout has passed")


def test_results_too_large_for_a_copy_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_check, "_free_host_bytes", lambda: 100)
    found = check(lambda: torch.ones(100), lambda: torch.ones(100))
    assert found.same is None
    assert "memory to copy the baseline's result (MemoryError: 400 bytes" in found.sentence


@pytest.mark.cuda
def test_results_on_a_gpu_are_compared_there_on_the_stream_of_the_timing() -> None:
    x = torch.randn(512, 512, device="cuda")
    stream = torch.cuda.Stream()
    seen: list[torch.cuda.Stream] = []

    def multiply(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.cuda.current_stream())
        return x @ x

    candidates = [
        Candidate(multiply, x, name="mm"),
        Candidate(lambda x: (x.double() @ x.double()).float(), x, name="in double"),
        Candidate(lambda x: (x @ x).cpu(), x, name="on the CPU"),
        Candidate(lambda x: x @ x + 1, x, name="wrong"),
    ]
    allocated = []
    for _ in range(2):  # The first time, cuBLAS allocates a workspace for the stream.
        with torch.cuda.device(0):
            found = result_check.check_results(
                candidates, "close", Options(stream=stream), TimeLimit(None)
            )
        assert [each.same for each in found.values()] == [True, True, False]
        allocated.append(torch.cuda.memory_allocated())
    assert set(seen) == {stream}
    assert allocated[0] == allocated[1]


def test_results_that_contain_themselves_are_compared_as_far_as_they_go() -> None:
    cyclic: list[Any] = [torch.ones(1)]
    cyclic.append(cyclic)
    deep: Any = torch.ones(1)
    for _ in range(1000):
        deep = [deep]
    for result in (cyclic, deep):
        found = of(result, result)
        assert found.same is None
        assert "is not compared" in found.sentence
