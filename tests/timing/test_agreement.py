from __future__ import annotations

import dataclasses
import enum
import gc
import itertools
import math
import re
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import convtime
from convtime.timing import agreement
from convtime.timing.candidate import Candidate
from convtime.timing.comparison import Agreement
from convtime.timing.options import Options
from convtime.timing.sampling.supervision import TimeLimit
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {
    "device": "cpu",
    "warmup": 1,
    "stop": "count",
    "max_samples": 6,
    "min_samples": 1,
    "interference": False,
}


def check(
    baseline: Callable[..., object] | Candidate,
    *others: Callable[..., object] | Candidate,
    how: agreement.Check = "close",
) -> Agreement:
    """What is found of the last of the others."""
    candidates = [
        Candidate(fn, name=str(place)) if not isinstance(fn, Candidate) else fn.but(name=str(place))
        for place, fn in enumerate((baseline, *others))
    ]
    found = agreement.check_results(candidates, how, Options(device="cpu"), TimeLimit(None))
    assert list(found) == [str(place + 1) for place in range(len(others))]
    return found[str(len(others))]


def test_compare_says_whether_the_results_are_the_same() -> None:
    x = torch.randn(64, 64)
    compared = convtime.compare(
        {
            "mm": lambda: x @ x,
            "einsum": lambda: torch.einsum("ij,jk->ik", x, x),
            "wrong": lambda: x @ x + 0.1,
        },
        **QUICK,
    )
    assert set(compared.same_results) == {"einsum", "wrong"}
    assert compared.same_results["einsum"].same is True
    wrong = compared.same_results["wrong"]
    assert wrong.same is False
    assert wrong.largest_error == pytest.approx(0.1, rel=1e-3)
    said = "wrong: OTHER RESULT: 4,096 of 4,096 numbers differ, by 0.1 at most (fl"
    assert said in flat(compared)
    assert compared.exit_code("different") == 1
    assert convtime.Comparison.from_dict(compared.to_dict()).same_results == compared.same_results
    assert convtime.compare([int, int], check=None, **QUICK).same_results == {}


def test_the_check_comes_after_the_timing_and_respects_what_comes_before_calls() -> None:
    log: list[str] = []

    def call() -> torch.Tensor:
        log.append("call")
        return torch.ones(1)

    candidate = Candidate(call, before=lambda: log.append("setup"))
    compared = convtime.compare([candidate, candidate], **QUICK)
    timed = 6 + compared.measurements["call"].warmup_calls // 2
    assert log == ["setup", "call"] * (2 * timed + 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_of_long_sums_is_no_difference_and_an_error_is(dtype: torch.dtype) -> None:
    terms = torch.randn(256, 1 << 14, generator=torch.Generator().manual_seed(0)).to(dtype)
    shuffled = terms[:, torch.randperm(1 << 14, generator=torch.Generator().manual_seed(1))]

    wide = torch.promote_types(dtype, torch.float32)  # in which kernels add up what is narrower

    def one_by_one() -> torch.Tensor:
        return shuffled.to(wide).cumsum(1)[:, -1].to(dtype)

    found = check(lambda: terms.sum(1), one_by_one)
    assert found.same is True, found.sentence
    off = torch.zeros(256, dtype=dtype)
    off[7] = 25  # the sums' root mean square is 128
    found = check(lambda: terms.sum(1), lambda: one_by_one() + off)
    assert found.same is False, found.sentence
    assert found.sentence.startswith("1 of 256 numbers differ, by ")


def test_tf32_is_allowed_for_where_pytorch_may_use_it() -> None:
    """Each number's first 10 bits after the leading one are right, as of float16's."""
    on_gpu = torch.device("cuda")
    conv = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = conv.fp32_precision
    try:
        conv.fp32_precision = "tf32"
        assert agreement._of_dtype(torch.float32, on_gpu) == agreement._of_dtype(
            torch.float16, on_gpu
        )
        assert agreement._of_dtype(torch.float32, torch.device("cpu"))[0] == 1.3e-6
        conv.fp32_precision = "ieee"
        assert agreement._tf32_allowed() == (
            torch.backends.cudnn.rnn.fp32_precision == "tf32"  # type: ignore[attr-defined]
        )
    finally:
        conv.fp32_precision = before


def test_small_numbers_are_not_all_the_same() -> None:
    """An absolute tolerance would let anything pass that is small."""
    x = torch.randn(100) * 1e-7
    assert check(lambda: x, lambda: 2 * x).same is False
    assert check(lambda: x, lambda: x * (1 + 1e-6)).same is True


@pytest.mark.parametrize(
    ("ours", "same"), [(-0.0, False), (0.0, True)], ids=["another sign", "the same"]
)
def test_exact_is_to_the_bit(ours: float, same: bool) -> None:
    x, y = torch.tensor([0.0, math.nan]), torch.tensor([ours, math.nan])
    found = check(lambda: x, lambda: y, how="exact")
    assert found.same is same
    assert ("1 of 2 numbers differ" in found.sentence) is not same
    assert check(lambda: x, lambda: y).same is True


ONE, TWO = torch.ones(1), torch.full((1,), 2.0)
UNSIGNED = torch.tensor([2**64 - 1], dtype=torch.uint64)
MANY = torch.ones(100)
WITH_NAN = torch.tensor([math.nan] * 12 + [4.0] + [1.0] * 87)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    count: int


class Slotted:
    """As attrs makes them, which need not be installed."""

    __slots__ = ("count", "loss")
    __attrs_attrs__ = (types.SimpleNamespace(name="loss"), types.SimpleNamespace(name="count"))

    def __init__(self, loss: torch.Tensor, count: int) -> None:
        self.loss = loss
        self.count = count


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.mark.parametrize(
    ("theirs", "ours", "same", "said"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), False, r"its shape is \(3, 2\), not \(2, 3\)"),
        ([torch.ones(1)], [torch.ones(1)] * 2, False, "a sequence of 2, not .* 1"),
        ([torch.ones(1)] * 2, (torch.ones(1),) * 2, True, "the same numbers"),
        (
            {"a": torch.ones(1)},
            [torch.ones(1)],
            False,
            r"a sequence of 1, not a mapping with \['a'",
        ),
        ({"a": ONE, "b": TWO}, {"b": TWO, "a": ONE}, True, "the same numbers"),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, False, r"mapping with \['b'\], not .* \['a'"),
        ((ONE, 1), (ONE, 2), False, r"at \[1\], it gives 2, not 1"),
        ((ONE, "a"), (ONE, "b"), False, r"at \[1\], it gives 'b', not 'a'"),
        ((ONE, None), (ONE, ONE), False, r"at \[1\], it gives a tensor, not None"),
        ((ONE, ONE), (ONE, None), False, r"at \[1\], it gives None"),
        (0.5, 0.5 * (1 + 1e-9), True, "the same values"),
        (0.5, 0.5001, False, "it gives 0.5001, not 0.5"),
        (math.nan, math.nan, True, "the same values"),
        (2**70, 2**70 + 1, False, "it gives"),
        (True, 1, False, "it gives 1, not True"),
        ({1, 2}, {2, 1}, True, "the same values"),
        (Output(ONE, 3), Output(ONE, 3), True, "the same numbers"),
        (Output(ONE, 3), Output(TWO, 3), False, r"at \.loss"),
        (Output(ONE, 3), Output(ONE, 4), False, r"at \.count, it gives 4, not 3"),
        (Pair(ONE, ONE), Pair(ONE, TWO), False, r"at \.second"),
        ((ONE, object()), (ONE, object()), None, r"type object at \[1\] is not compared"),
        (np.ones(3), np.ones(3), True, "the same numbers"),
        (np.ones(3), np.zeros(3), False, "3 of 3 numbers differ"),
        (torch.tensor([2**60]), torch.tensor([2**60 + 1]), False, "by 1 at most"),
        (ONE, ONE * math.nan, False, r"1 NaN where the baseline has numbers \("),
        (ONE * math.nan, ONE, False, r"1 numbers where the baseline has NaN \("),
        (ONE * math.inf, ONE, False, r"1 finite where the baseline is infinite \("),
        (ONE, ONE * math.inf, False, r"1 infinite where the baseline is finite \("),
        (ONE * math.inf, -ONE * math.inf, False, r"1 infinite with another sign \("),
        (MANY, WITH_NAN, False, "^13 of 100 numbers differ: 12 NaN where .*, 1 by 3 at most"),
        (ONE.double() * 1e308, ONE.double() * -1e308, False, r"by 1\.8e\+308 at most"),
        (torch.tensor([2**63 - 1]), torch.tensor([-(2**63)]), False, f"by {2**64 - 1:,} at most"),
        (torch.tensor([-1]), UNSIGNED, False, f"by {2**64:,} at most"),
        (UNSIGNED, torch.tensor([-1]), False, f"by {2**64:,} at most"),
        (torch.tensor([5]), torch.tensor([5]).to(torch.uint64), True, "uint64 where .* int64"),
        (torch.tensor([-1, 2, 3]), torch.tensor([-2, 2, 9]), False, "2 of 3 .* by 6 at most"),
        pytest.param(10**400, 1.0, False, "it gives 1.0, not 10+", id="beyond floats"),
        pytest.param(10**400, 10**400 + 1, False, "it gives 10+", id="large integers"),
        (Mode.FAST, Mode.FAST, True, "the same values"),
        (Mode.FAST, Mode.SLOW, False, "SLOW.* not .*FAST"),
        (Slotted(ONE, 3), Slotted(TWO, 3), False, r"at \.loss"),
        (Slotted(ONE, 3), Slotted(ONE, 4), False, r"at \.count, it gives 4, not 3"),
        ((object(), ONE), (object(), TWO), False, r"1 of 1 numbers differ.* at \[1\]"),
        ((object(), ONE), (object(), TWO, ONE), False, "a sequence of 3, not a sequence of 2"),
        ([torch.ones(1)] * 2, [torch.ones(1), torch.zeros(1)], False, r"by 1 at most.* at \[1\]"),
        (torch.ones(2), torch.ones(2).half(), True, "float16 where the baseline's is float32"),
        (torch.arange(3), torch.tensor([0, 1, 3]), False, "1 of 3 numbers differ, by 1 at most"),
        (torch.ones(2) > 0, torch.ones(2) > 0, True, "the same numbers"),
        (torch.tensor([math.inf]), torch.tensor([1.0]), False, "1 of 1 numbers differ"),
        (torch.tensor([math.nan]), torch.tensor([1.0]), False, "1 of 1 numbers differ"),
        (torch.ones(2) + 1j, torch.ones(2) + 1j, True, "complex64"),
        (torch.ones(0), torch.ones(0), True, "the same numbers"),
        (torch.ones(3).expand(2, 3), torch.ones(2, 3), True, "the same numbers"),
        (torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2).to(torch.float8_e4m3fn), True, "fl"),
        (None, torch.ones(1), None, "since the baseline's result has nothing"),
        (torch.ones(1), None, None, "its result has nothing that can be"),
        (torch.ones(1), torch.ones(1).to_sparse(), None, "only dense tensors are compared"),
        (torch.ones(1), torch.ones(1, device="meta"), None, "only dense tensors are compared"),
    ],
)
def test_results_of_every_kind(theirs: Any, ours: Any, same: bool | None, said: str) -> None:
    found = check(lambda: theirs, lambda: ours)
    assert found.same is same
    assert re.search(said, found.sentence), found.sentence


def test_chunks_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_CHUNK", 4)
    x, y = torch.ones(11), torch.ones(11)
    y[10], y[3] = 3, 2
    found = check(lambda: x, lambda: y)
    assert (found.same, found.largest_error) == (False, 2)
    assert found.sentence.startswith("2 of 11 numbers differ")


def test_random_functions_are_not_held_to_be_wrong() -> None:
    x = torch.randn(100)
    dropout = torch.nn.Dropout()
    found = check(lambda: dropout(x), lambda: x)
    assert found.same is None
    assert found.sentence.startswith("the baseline does not repeat: between two calls, ")
    found = check(lambda: x, lambda: dropout(x))
    assert found.same is None
    assert found.sentence.startswith("it does not repeat: between two calls, ")


def test_what_writes_to_its_tensors_is_said_and_spoils_no_other() -> None:
    x = torch.randn(100)
    add = Candidate(torch.add, x, 1)
    in_place = Candidate(x.add_, 1)
    found = check(add, in_place)
    assert found.same is True
    assert found.sentence.endswith("; it writes to tensors that it is given")
    assert check(add, in_place, add).same is True
    found = check(in_place, add)
    assert found.same is None
    assert found.sentence.startswith("the baseline does not repeat")


def test_what_is_written_behind_torchs_back_blames_nobody() -> None:
    x = torch.zeros(4)

    def write() -> torch.Tensor:
        x.numpy()[:] += 1  # no version counts this
        return x

    found = check(lambda: x + 1, write, lambda: x + 1)
    assert found.same is None
    assert found.sentence == (
        "the baseline's result changed: something writes to the candidates' inputs"
    )


def test_a_result_in_memory_that_is_used_again_is_kept() -> None:
    """As a captured graph's is: every call returns the same tensor."""
    static = torch.zeros(4)

    def filled(value: float) -> Callable[[], torch.Tensor]:
        return lambda: static.fill_(value)

    assert check(filled(1), filled(2)).same is False
    assert check(filled(1), filled(1)).same is True


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
    found = check(right, Candidate(Wrong.apply, x, backward=True))
    assert found.same is False
    assert "gradients: 10 of 10 numbers differ" in found.sentence
    other = x.detach().clone().requires_grad_()
    found = check(right, Candidate(lambda x: 2 * x, other, backward=True))
    assert found.same is None
    assert found.sentence.endswith("gradients belong to different tensors and are not compared")


def test_calls_run_in_the_modes_of_the_caller() -> None:
    weight = torch.ones(1, requires_grad=True)
    seen: list[bool] = []

    def call() -> torch.Tensor:
        result = weight * 2
        seen.append(result.requires_grad)
        return result

    with torch.no_grad():
        assert check(call, call).same is True
    assert set(seen) == {False}
    with torch.inference_mode():
        assert check(call, call).same is True
    assert set(seen) == {False}
    with torch.device("meta"):
        assert check(call, call).same is True


def test_what_cannot_be_called_again_is_said_and_costs_no_measurement() -> None:
    turns = iter([torch.ones(1)] * 2)
    found = check(lambda: torch.ones(1), lambda: next(turns), lambda: next(itertools.count()))
    assert (found.same, found.sentence) == (False, "it gives 0, not a tensor")

    def fails() -> None:
        raise LookupError("no more")

    found = check(lambda: torch.ones(1), fails)
    assert found.same is None
    assert found.sentence == (
        "not checked, since a call to check its result raised LookupError: no more"
    )


def test_results_too_large_for_a_copy_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_free_host_bytes", lambda: 100)
    found = check(lambda: torch.ones(100), lambda: torch.ones(100))
    assert found.same is None
    assert "there is not enough memory to copy the baseline's result (MemoryError: 400 bytes" in (
        found.sentence
    )


def test_no_result_is_kept() -> None:
    def alive() -> int:
        gc.collect()
        return sum(
            type(each) is torch.Tensor and each.shape == (12345,) for each in gc.get_objects()
        )

    before = alive()
    check(lambda: torch.ones(12345), lambda: torch.zeros(12345))
    assert alive() == before


def test_a_timeout_that_has_passed_leaves_the_results_unchecked() -> None:
    candidates = [Candidate(torch.ones, 1, name=name) for name in "ab"]
    found = agreement.check_results(candidates, "close", Options(device="cpu"), TimeLimit(-1.0))
    assert found["b"] == Agreement(None, "not checked, since the timeout has passed")


@pytest.mark.parametrize("check", ["loosely", 1, torch.ones(2)])
def test_other_checks_are_refused(check: Any) -> None:
    with pytest.raises(ValueError, match="check must be 'close', 'exact' or None, got "):
        convtime.compare([int, int], check=check, **QUICK)


@pytest.mark.cuda
def test_results_on_a_gpu_are_compared_there() -> None:
    x = torch.randn(512, 512, device="cuda")
    candidates = [
        Candidate(torch.mm, x, x, name="mm"),
        Candidate(lambda x: (x.double() @ x.double()).float(), x, name="in double"),
        Candidate(lambda x: (x @ x).cpu(), x, name="on the CPU"),
        Candidate(lambda x: x @ x + 1, x, name="wrong"),
    ]
    with torch.cuda.device(0):
        found = agreement.check_results(candidates, "close", Options(), TimeLimit(None))
    assert [each.same for each in found.values()] == [True, True, False]


@pytest.mark.cuda
def test_the_check_keeps_no_memory_of_the_gpu() -> None:
    x = torch.randn(1 << 20, device="cuda")
    candidates = [Candidate(torch.relu, x, name=name) for name in "ab"]
    before = torch.cuda.memory_allocated()
    found = agreement.check_results(candidates, "exact", Options(), TimeLimit(None))
    assert found["b"].same is True
    assert torch.cuda.memory_allocated() == before


@pytest.mark.cuda
def test_results_too_large_for_the_gpu_are_not_checked() -> None:
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    candidates = [Candidate(lambda: x, name=name) for name in "ab"]
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (32 << 20)) / total)
    try:
        found = agreement.check_results(candidates, "close", Options(), TimeLimit(None))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found["b"].same is None
    assert (
        "there is not enough memory to copy the baseline's result (OutOfMem" in found["b"].sentence
    )


@pytest.mark.cuda
def test_the_check_runs_on_the_stream_of_the_timing() -> None:
    stream = torch.cuda.Stream()
    seen: list[torch.cuda.Stream] = []
    x = torch.randn(16, device="cuda")

    def call() -> torch.Tensor:
        seen.append(torch.cuda.current_stream())
        return x + 1

    candidates = [Candidate(call, name=name) for name in "ab"]
    agreement.check_results(candidates, "close", Options(stream=stream), TimeLimit(None))
    assert set(seen) == {stream}


def test_results_that_contain_themselves_are_compared_as_far_as_they_go() -> None:
    def cyclic() -> list[Any]:
        result: list[Any] = [torch.ones(1)]
        result.append(result)
        return result

    def deep() -> Any:
        result: Any = torch.ones(1)
        for _ in range(1000):
            result = [result]
        return result

    for call in (cyclic, deep):
        found = check(call, call)
        assert found.same is None
        assert "is not compared" in found.sentence


def test_a_value_is_compared_to_the_bit_where_that_is_asked_for() -> None:
    almost = 0.5 * (1 + 1e-9)
    assert check(lambda: 0.5, lambda: almost).same is True
    assert check(lambda: 0.5, lambda: almost, how="exact").same is False
    assert check(lambda: 1, lambda: 1.0).same is True
    assert check(lambda: 1, lambda: 1.0, how="exact").same is False
    assert check(lambda: 0.0, lambda: -0.0).same is True
    assert check(lambda: 0.0, lambda: -0.0, how="exact").same is False
    assert check(lambda: math.nan, lambda: math.nan, how="exact").same is True


def test_a_difference_in_bits_alone_is_said_to_be_one() -> None:
    x, y = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    found = check(lambda: x, lambda: y, how="exact")
    assert "1 of 2 numbers differ: 1 by the sign of 0 or the bits of NaN" in found.sentence


def test_a_tensor_at_many_places_is_copied_and_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = torch.ones(100), torch.ones(100)
    monkeypatch.setattr(agreement, "_free_host_bytes", lambda: 2 * x.nbytes)
    compared = 0
    of_tensor = agreement._of_tensor

    def counting(*args: Any) -> Agreement:
        nonlocal compared
        compared += 1
        return of_tensor(*args)

    monkeypatch.setattr(agreement, "_of_tensor", counting)
    assert check(lambda: [x] * 3000, lambda: [y] * 3000).same is True
    assert compared == 2  # the baseline with itself, and with the other


def test_sentences_about_large_results_stay_short() -> None:
    one, other = dict.fromkeys(range(5000), 1), dict.fromkeys(range(5001), 1)
    assert len(check(lambda: one, lambda: other).sentence) < 200
    assert len(check(lambda: "a" * 10_000, lambda: "b" * 10_000).sentence) < 200
    nested: Any = ONE
    for _ in range(150):
        nested = [nested]
    assert len(check(lambda: nested, lambda: nested).sentence) < 200


def test_the_baselines_own_result_is_free_when_others_are_called() -> None:
    """Results may be as large as half of the memory: of one of them there is a copy already."""
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def baseline() -> tuple[torch.Tensor, int]:
        memory = np.ones(100, np.float32)  # which the result's storage keeps
        made.append(weakref.ref(memory))
        return torch.from_numpy(memory), 1

    def other() -> tuple[torch.Tensor, int]:
        alive.append(sum(each() is not None for each in made))
        return torch.ones(100), 1

    assert check(baseline, other).same is True
    assert (len(made), alive) == (2, [0])
