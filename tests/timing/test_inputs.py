"""Remarks on the values that calls compute with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.inputs import Remark, sentences
from convtime.timing.sampling.inputs import remarks_on as remarks_on_tensors
from convtime.timing.sampling.object_graph import some_tensors
from tests.helpers.texts import flat

NAN = math.nan
QUICK: dict[str, Any] = {"warmup": 1, "budget": 0.1, "max_samples": 10}
ON_CPU = "work that depends on its values may take a different time with random ones"
INDICES = "as indices, equal values read the same data, which are then in the cache"
IS_NAN = "results computed from it are NaN too, and may take a different time than with numbers"
DENORMAL = "a CPU is many times slower on denormals, unless it flushes them to zero"


def remarks_on(candidates: list[Candidate], *, on_gpu: bool) -> list[list[Remark]]:
    tensors = [some_tensors(candidate, 500)[0] for candidate in candidates]
    return remarks_on_tensors(candidates, tensors, on_gpu=on_gpu)


def said_of(fn: Callable[..., object], *args: Any, **kwargs: Any) -> tuple[str, ...]:
    """Before any call, on a CPU."""
    remarks = remarks_on([Candidate(fn, *args, kwargs=kwargs, name="one")], on_gpu=False)
    (said,) = sentences(remarks)
    return said


def test_remarkable_numbers_are_said() -> None:
    for x, said in (
        (torch.zeros(16, 16, dtype=torch.bfloat16).t(), f"all zeros: {ON_CPU}"),
        (torch.full((8,), 1 - 2j), f"1-2j throughout: {ON_CPU}"),
        (torch.zeros(8, dtype=torch.float8_e5m2), f"all zeros: {ON_CPU}"),
        (torch.full((4, 4), -0.5), f"-0.5 throughout: {ON_CPU}"),
        (torch.ones(1).expand(64, 64), f"1 throughout in the 484 elements looked at: {ON_CPU}"),
        (torch.full((64,), 7), f"7 throughout: {INDICES}"),
        (torch.zeros(64, dtype=torch.uint16), f"all zeros: {INDICES}"),
        (torch.ones(9, dtype=torch.bool), "all True: as a mask, it selects everything"),
        (torch.zeros(9, dtype=torch.bool), "all False: as a mask, it selects nothing"),
    ):
        assert said_of(torch.neg, x) == (f"args[0] is {said}",)


@settings(max_examples=40)
@given(st.integers(0, 500), st.sampled_from([NAN, 1e-40, 1e-310, -math.inf]))
def test_shares_of_nan_and_denormals_are_said(count: int, value: float) -> None:
    dtype = torch.float64 if value == 1e-310 else torch.float32
    x = torch.rand(500).add(1).to(dtype)
    x[:count] = value
    remark = {NAN: f"NaN: {IS_NAN}", -math.inf: None}.get(value, f"denormal: {DENORMAL}")
    if count == 500 and value is not NAN:
        assert len(said_of(torch.neg, x)) == 1  # constant
    elif remark is None or count / 500 < 0.01:
        assert said_of(torch.neg, x) == ()
    else:
        assert said_of(torch.neg, x) == (f"args[0] is {count / 500:.0%} {remark}",)


def test_of_large_tensors_a_sample_is_looked_at() -> None:
    for shape, count in (((2_000_000,), "1,024"), ((1000, 2000), "992"), ((2_000_000, 1), "1,024")):
        x = torch.zeros(shape)
        said = f"args[0] is all zeros in the {count} elements looked at: {ON_CPU}"
        assert said_of(torch.neg, x) == (said,)
        x[shape[0] // 2 :] = torch.rand_like(x[: shape[0] // 2])
        assert said_of(torch.neg, x) == ()
    for size in (1025, 2047, 2048, 3000):
        x = torch.zeros(size)
        x[-size // 20 :] = 1
        assert said_of(torch.neg, x) == (), "the sample reaches the end"


class Subclass(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_ordinary_numbers_and_what_has_none_are_not_worth_a_word() -> None:
    freed, zeros = torch.zeros(16, 16), torch.zeros(4)
    every_second, every_128th = torch.rand(2, 512, 4096)
    freed.untyped_storage().resize_(0)
    every_second[:, ::2] = every_128th[:, ::128] = 0
    for x in (
        torch.rand(7, 6, 5, 4, 3)[:, ::2, :, 1:].permute(2, 0, 1, 4, 3),
        torch.arange(100),
        torch.complex(torch.ones(100), torch.rand(100)),
        torch.tensor([True, False]),
        torch.rand(100).relu(),
        torch.full((500,), 1e-6, dtype=torch.float16) * torch.arange(500),  # no CPU computes so
        every_second,
        every_128th,
        torch.zeros(()),
        torch.zeros(1),
        torch.zeros(0),
        zeros.to_sparse(),
        zeros.to("meta"),
        zeros.as_subclass(Subclass),
        torch.quantize_per_tensor(zeros, 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([zeros, torch.zeros(3)]),
        zeros.to(torch.complex64).conj(),
        freed,
    ):
        assert said_of(torch.neg, x) == ()


def test_tensors_are_named_as_the_caller_knows_them() -> None:
    held, x = torch.zeros(8, 8), torch.rand(8, 8)
    module = torch.nn.Linear(8, 8)
    torch.nn.init.zeros_(module.weight)
    zeros = f"all zeros: {ON_CPU}"
    assert said_of(torch.add, x, torch.zeros(8, 8)) == (f"args[1] is {zeros}",)
    assert said_of(torch.add, x, other=held) == (f"kwargs['other'] is {zeros}",)
    assert said_of(torch.stack, [x, held]) == (f"a tensor in args[0] is {zeros}",)
    assert said_of(lambda: x @ held) == (f"a tensor in closure variable 'held' is {zeros}",)
    assert said_of(held.relu) == (f"fn is {zeros}",)
    assert said_of(module, x) == (f"a tensor in fn is {zeros}",)
    with torch.inference_mode():
        assert len(said_of(torch.neg, torch.zeros(8, 8))) == 1
    with torch.device("meta"):
        assert len(said_of(torch.neg, held)) == 1


def test_small_vectors_beside_large_tensors_are_often_constant() -> None:
    x, vector = torch.rand(64, 768), torch.ones(768)
    assert said_of(torch.nn.functional.layer_norm, x, (768,), vector, vector) == ()
    assert said_of(torch.nn.BatchNorm1d(768), x) == ()
    assert len(said_of(torch.matmul, x, torch.ones(768, 1))) == 1


def test_what_the_call_or_its_setup_overwrites_is_no_input() -> None:
    x, zeros = torch.rand(64), torch.zeros(64)
    for call in (
        lambda: convtime.time_op(torch.neg, x, kwargs={"out": zeros.clone()}, **QUICK),
        lambda: convtime.time_op(torch.Tensor.copy_, zeros.clone(), x, **QUICK),
        lambda: convtime.time_op(torch.neg, y := zeros.clone(), before=y.normal_, **QUICK),
    ):
        assert call().inputs == ()
    assert len(convtime.time_op(torch.relu_, zeros, **QUICK).inputs) == 1
    for change, said in (
        (lambda x: x.mul_(0), f"args[0] is all zeros since a call wrote to it: {ON_CPU}"),
        (lambda x: x.untyped_storage().resize_(0), f"args[0] is all zeros: {ON_CPU}"),
        (lambda x: x.add_(1), ""),
    ):
        values = torch.rand(64) if "since" in said else torch.zeros(64)
        assert convtime.time_op(change, values, **QUICK).inputs == ((said,) if said else ())


def test_a_call_that_changes_the_shape_of_its_argument_is_named() -> None:
    for shape, change, now in (
        ((64,), lambda x: x.set_(torch.empty(0)), (0,)),
        ((8, 8), lambda x: x.resize_(0), (0,)),
        ((8, 8), lambda x: x.resize_(4, 2), (4, 2)),
        ((8, 8), lambda x: x.squeeze_(), (8, 8)),
        ((8, 1, 8), lambda x: x.squeeze_(), (8, 8)),
    ):
        said = (
            f"args[0] had the shape {shape} and has {now} since a call changed it: later calls did "
            "other work than the first"
        )
        for values in (torch.rand(shape), torch.zeros(shape)):
            inputs = convtime.time_op(change, values, **QUICK).inputs
            if now == shape:
                assert said not in inputs
            else:
                assert inputs == (said,)


def test_remarks_are_part_of_results_and_of_what_they_print() -> None:
    x, zeros = torch.rand(16, 16), torch.zeros(16, 16)
    calls = {"x": lambda: x.neg(), "neg": lambda: zeros.neg(), "abs": lambda: zeros.abs()}
    compared = convtime.compare(calls, **QUICK)
    said = f"a tensor in closure variable 'zeros' is all zeros: {ON_CPU}"
    of_each = [measured.inputs for measured in compared.measurements.values()]
    assert of_each == [(), (said,), (said,)]
    assert str(compared).splitlines()[-1] == f"note on neg, abs: {said}"
    one = compared.measurements["neg"]
    assert convtime.Measurement.from_dict(one.to_dict()).inputs == one.inputs
    assert f"inputs: {said}" in flat(one)
    assert "is all zeros" in one._repr_html_()


def test_what_cannot_be_looked_at_is_said() -> None:
    def look(x: torch.Tensor) -> torch.Tensor:
        (said,) = said_of(torch.neg, x)
        assert said.startswith("the inputs could not be inspected: NotImplementedError: ")
        return x

    torch.vmap(look)(torch.zeros(4, 16))


@pytest.mark.cuda
class TestOnAGpu:
    def test_all_comes_to_the_host_in_one_copy(self) -> None:
        shapes = [(4096, 4096), (64, 3, 224, 224), (1000, 7), (300,)]
        x = [torch.rand(shape, device="cuda") for shape in shapes]
        x[1] = x[1].to(memory_format=torch.channels_last).half()
        candidates = [Candidate(int, x[:2], name="one"), Candidate(int, x[2:], name="two")]
        with torch.profiler.profile() as profile:
            found = remarks_on(candidates, on_gpu=True)
        assert not any(remark.sentence for remarks in found for remark in remarks)
        copies = [event.name for event in profile.events() if event.name.startswith("Memcpy DtoH")]
        assert len(copies) == 1

    def test_zeros_are_said_to_take_less_power(self) -> None:
        zeros = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)
        one = convtime.time_op(torch.matmul, zeros, zeros, **QUICK)
        assert one.inputs == (
            "args[0] is all zeros in the 1,024 elements looked at: such numbers take less power "
            "than random ones, so that under load a GPU's clock stays higher",
        )

    def test_nothing_is_looked_at_while_a_graph_is_captured(self) -> None:
        zeros = torch.zeros(64, 64, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert remarks_on([Candidate(torch.neg, zeros, name="one")], on_gpu=True) == [[]]
            zeros.neg()  # an empty graph is warned of
