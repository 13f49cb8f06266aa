"""What is tried of a convolution, and that each way computes the same, on a CPU."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from convtime.conv import advice
from convtime.conv.call import DGRAD, FPROP, WGRAD, ConvCall, TensorLayout


def call_of(x, w, bias=None, **parameters):
    call = ConvCall.of_layouts(
        str(x.dtype).removeprefix("torch."),
        TensorLayout.of(x),
        TensorLayout.of(w),
        bias=bias is not None,
        **parameters,
    )
    tensors = dataclasses.replace(call.tensors("cpu"), x=x, w=w, bias=bias)
    return call, tensors


def variants(call, tensors, pass_name=FPROP):
    return {each.text: each for each in advice._variants(call, pass_name, tensors)}


def test_of_an_image_in_float32_layouts_dtypes_and_bias_are_tried():
    call, tensors = call_of(torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3), torch.randn(5))
    assert list(variants(call, tensors)) == [
        "keep input and weight in channels_last",
        "leave out the bias",
        "compute in bfloat16 and channels_last",
        "compute in bfloat16",
    ]
    assert "leave out the bias" not in variants(call, tensors, WGRAD)
    nhwc = tensors.x.contiguous(memory_format=torch.channels_last)
    call, tensors = call_of(nhwc, tensors.w)
    assert "keep input and weight contiguous (NCHW)" in variants(call, tensors)
    call, tensors = call_of(torch.randn(2, 3, 6), torch.randn(5, 3, 3))
    assert list(variants(call, tensors)) == ["compute in bfloat16"]


@pytest.mark.parametrize("pass_name", [FPROP, DGRAD, WGRAD])
def test_other_layouts_and_dtypes_give_the_same_numbers(pass_name):
    call, tensors = call_of(torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3), padding=1)
    expected = call.pytorch_call(pass_name, tensors)()
    tried = variants(call, tensors, pass_name)
    assert tried
    for variant in tried.values():
        found = advice._called(call, pass_name, variant)().float()
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.2)


def test_channels_that_are_padded_change_nothing():
    x, w, bias = torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3), torch.randn(5)
    call, tensors = call_of(x, w, bias, padding=1)
    padded = advice._padded(call, tensors)
    assert padded.x.shape == (2, 8, 6, 6)
    assert padded.w.shape == (8, 8, 3, 3)
    assert padded.grad_output.shape == (2, 8, 6, 6)
    found = call.pytorch_call(FPROP, padded)()
    torch.testing.assert_close(found[:, :5], F.conv2d(x, w, bias, padding=1))
    assert not found[:, 5:].any()
    nhwc = dataclasses.replace(tensors, x=x.contiguous(memory_format=torch.channels_last))
    assert advice._padded(call, nhwc).x.is_contiguous(memory_format=torch.channels_last)


def test_where_there_is_nothing_to_pad_nothing_is():
    call, tensors = call_of(torch.randn(2, 8, 6, 6), torch.randn(16, 8, 3, 3))
    assert advice._padded(call, tensors) is None
    call, tensors = call_of(torch.randn(2, 6, 6, 6), torch.randn(6, 1, 3, 3), groups=6)
    assert advice._padded(call, tensors) is None


def test_what_saves_the_most_comes_first_and_what_cannot_run_is_left_out(monkeypatch):
    call, tensors = call_of(torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3))
    broken = advice._Variant("break it", dataclasses.replace(tensors, w=torch.randn(5, 4, 3, 3)))
    usual = advice._variants
    monkeypatch.setattr(advice, "_variants", lambda *given: [broken, *usual(*given)])
    found = advice.measured_advice(call, FPROP, tensors, 0.05)
    assert "break it" not in [each.text for each in found]
    assert [each.saved for each in found] == sorted((e.saved for e in found), reverse=True)
    assert len({each.instead_of for each in found}) == 1
