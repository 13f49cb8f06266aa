"""What is tried of a convolution, and that each way computes the same."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from convtime import Comparison
from convtime.conv import advice
from convtime.conv.advice import Advice, measured_advice
from convtime.conv.call import FPROP, PASSES, WGRAD, ConvCall, ConvTensors, TensorLayout
from tests.helpers.measurements import make


def call_of(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, **parameters: Any
) -> tuple[ConvCall, ConvTensors]:
    call = ConvCall.of_layouts(
        str(x.dtype).removeprefix("torch."),
        TensorLayout.of(x),
        TensorLayout.of(w),
        bias=bias is not None,
        **parameters,
    )
    return call, dataclasses.replace(call.tensors(x.device), x=x, w=w, bias=bias)


def image() -> tuple[ConvCall, ConvTensors]:
    return call_of(torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3), torch.randn(5), padding=1)


def advised(
    call: ConvCall, pass_name: str, tensors: ConvTensors, times: Callable[[int], float] = float
) -> tuple[tuple[Advice, ...], Mapping[str, torch.Tensor], Mapping[str, float]]:
    """The advice where the calls take known times by their place, their results and times."""
    results: dict[str, torch.Tensor] = {}
    seconds: dict[str, float] = {}

    def compare(calls: Mapping[str, Callable[[], torch.Tensor]], **_options: Any) -> Comparison:
        for place, (name, called) in enumerate(calls.items()):
            results[name], seconds[name] = called(), times(place)
        return Comparison(
            {name: make(name=name, seconds=(each,) * 9) for name, each in seconds.items()}
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, "compare", compare)
        return measured_advice(call, pass_name, tensors, 0.05), results, seconds


HALF = "compute in bfloat16"


def test_layouts_dtypes_and_bias_are_tried_and_what_cannot_run_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advice, "_WARMUP_SECONDS", 0.0)
    call, tensors = image()
    nhwc = "keep input and weight in channels_last"
    half = {HALF, f"{HALF} and channels_last"}
    last = call_of(tensors.x.contiguous(memory_format=torch.channels_last), tensors.w)
    line = call_of(torch.randn(2, 3, 6), torch.randn(5, 3, 3))
    double = call_of(tensors.x.double(), tensors.w.double())
    for tried, expected in (
        ((call, FPROP, tensors), {nhwc, "leave out the bias", *half}),
        ((call, WGRAD, tensors), {nhwc, *half}),
        ((last[0], FPROP, last[1]), {"keep input and weight contiguous (NCHW)", *half}),
        ((line[0], FPROP, line[1]), {HALF}),
        ((double[0], FPROP, double[1]), {nhwc}),
    ):
        found = measured_advice(*tried, 0.001)
        assert {each.text for each in found} == expected
    usual = ConvCall.pytorch_call

    def refusing(self: ConvCall, name: str, tensors: ConvTensors) -> Callable[[], torch.Tensor]:
        if tensors.x.dtype == torch.bfloat16:
            return lambda: tensors.x.view(7)  # which raises RuntimeError
        return usual(self, name, tensors)

    monkeypatch.setattr(ConvCall, "pytorch_call", refusing)
    assert measured_advice(line[0], FPROP, line[1], 0.001) == ()


def test_other_layouts_and_dtypes_give_the_same_numbers() -> None:
    call, tensors = image()
    for pass_name in PASSES:
        _, results, _ = advised(call, pass_name, tensors, lambda place: 1e-6 * (place + 1))
        expected = call.pytorch_call(pass_name, tensors)()
        if "leave out the bias" in results:
            assert tensors.bias is not None
            results["leave out the bias"].add_(tensors.bias[:, None, None])
        assert len(results) > 3
        for found in results.values():
            torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.3)
        assert (results[HALF].dtype, results[HALF].is_contiguous()) == (torch.bfloat16, True)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=5, max_size=5))
def test_what_saves_the_most_comes_first(times: list[int]) -> None:
    found, _, seconds = advised(*image()[:1], FPROP, image()[1], lambda place: times[place] * 1e-6)
    here = times[0] * 1e-6
    assert [each.saved for each in found] == pytest.approx(
        sorted((here - each * 1e-6 for each in times[1:]), reverse=True), abs=1e-12
    )
    for each in found:
        assert (each.seconds, each.instead_of) == pytest.approx((seconds[each.text], here))
        assert each.saved is not None
        verb = "saves" if each.saved >= 0 else "costs"
        assert f"({verb} " in str(each)
        assert f" of {times[0]}.000 µs here)" in str(each)
    assert Advice("do it").saved is None
    assert str(Advice("do it", note="with care")) == "do it; with care"


def test_channels_that_are_padded_change_nothing() -> None:
    call, tensors = image()
    nhwc = dataclasses.replace(tensors, x=tensors.x.contiguous(memory_format=torch.channels_last))
    padded = advice._padded(call, nhwc)
    assert padded is not None
    assert padded.grad_output is not None
    assert padded.x.shape == padded.grad_output.shape == (2, 8, 6, 6)
    assert padded.x.is_contiguous(memory_format=torch.channels_last)
    assert padded.w.shape == (8, 8, 3, 3)
    found = call.pytorch_call(FPROP, padded)()
    expected = F.conv2d(tensors.x, tensors.w, tensors.bias, padding=1)
    torch.testing.assert_close(found[:, :5], expected)
    assert not found[:, 5:].any()
    full = call_of(torch.randn(2, 8, 6, 6), torch.randn(16, 8, 3, 3))
    grouped = call_of(torch.randn(2, 6, 6, 6), torch.randn(6, 1, 3, 3), groups=6)
    assert advice._padded(*full) is advice._padded(*grouped) is None


@pytest.mark.cuda
def test_on_a_gpu_channels_are_padded_and_tf32_is_allowed() -> None:
    x, w = torch.randn(2, 3, 6, 6, device="cuda"), torch.randn(5, 3, 3, 3, device="cuda")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        call, tensors = call_of(x, w)
        call = dataclasses.replace(call, flags=dataclasses.replace(call.flags, allow_tf32=False))
        texts = [each.text for each in measured_advice(call, FPROP, tensors, 0.05)]
    for expected in ("pad the channels to multiples of 8", "allow TF32", "compute in float16"):
        assert any(text.startswith(expected) for text in texts)
