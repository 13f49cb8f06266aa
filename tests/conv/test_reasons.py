"""Why PyTorch selects a backend, and whether its bits repeat."""

import dataclasses
import types
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from convtime.conv.call import ConvCall, Flags, TensorLayout
from convtime.conv.explaining import why
from convtime.conv.identity import compare_bits
from tests.helpers.convolutions import dense


def depthwise(dtype: str, *sizes: int, kernel: int = 3, **options: Any) -> ConvCall:
    w = dense(sizes[1], 1, *[kernel] * (len(sizes) - 2))
    return ConvCall.of_layouts(dtype, dense(*sizes), w, groups=sizes[1], **options)


def reason(backend: str, call: ConvCall) -> str:
    return why(backend, call, call.tensors("cpu", backward=False))


def test_why_a_depthwise_convolution_is_not_cudnns() -> None:
    cases: list[tuple[str, int, dict[str, Any], str]] = [
        ("float32", 64, {}, "only in float16, not in float32"),
        ("float16", 64, {"dilation": (2, 1)}, "only without dilation"),
        ("float16", 64, {"stride": (2, 1)}, "only with equal strides"),
        ("float16", 31, {}, "at least 32 channels, got 31"),
        ("float16", 32, {}, "some combinations"),
        ("float16", 64, {"flags": Flags(enabled=False)}, "torch.backends.cudnn.enabled is off"),
        ("float16", 64, {"flags": Flags(depthwise_kernel="native")}, "is 'native'"),
    ]
    for dtype, channels, options, expected in cases:
        call = depthwise(dtype, 1, channels, 8, 8, **options)
        assert expected in reason("CudaDepthwise2d", call)
    volume = depthwise("float16", 1, 64, 4, 4, 4)
    assert "in one or two spatial dimensions" in reason("CudaDepthwise3d", volume)
    audio = depthwise("float16", 1, 16, 9)
    assert "at least 32 channels, got 16" in reason("CudaDepthwise2d", audio)


def test_why_other_convolutions_are_or_are_not_cudnns() -> None:
    # An input of one dimension is made contiguous before its layout is looked at.
    audio = depthwise("float16", 1, 16, 9)
    audio = dataclasses.replace(audio, x=TensorLayout((1, 16, 9), (144, 1, 16)))
    assert "in float16 PyTorch uses cuDNN for depthwise" in reason("Cudnn", audio)
    last = torch.zeros(1, 64, 4, 4, 4).to(memory_format=torch.channels_last_3d)
    volume = depthwise("float16", 1, 64, 4, 4, 4)
    volume = dataclasses.replace(volume, x=TensorLayout.of(last))
    assert "with channels_last tensors" in reason("Cudnn", volume)
    wide = ConvCall.of_layouts(
        "float32",
        dense(1, 2, 5),
        dense(2, 2, 3),
        dilation=(2,),
        transposed=True,
        output_padding=(1,),
    )
    on_gpu: Any = types.SimpleNamespace(x=types.SimpleNamespace(is_cuda=True))
    assert "output_padding (1) is the stride or more" in why("SlowTranspose2d", wide, on_gpu)
    assert "nothing rules cuDNN out" in why("CudnnTranspose", wide, on_gpu)
    assert "oneDNN takes their dtype" in reason("Mkldnn", wide)
    assert "prefers it over oneDNN" in reason("Slow2d", wide)
    assert "without elements" in reason("MkldnnEmpty", wide)


@given(st.lists(st.booleans(), min_size=1, max_size=100), st.booleans())
def test_bits_that_pytorch_does_not_repeat(repeated: list[bool], same: bool) -> None:
    """PyTorch's further calls: whether each repeats the first; all after them do."""
    calls: list[bool] = []

    def theirs() -> torch.Tensor:
        calls.append(len(calls) >= len(repeated) or repeated[len(calls)])
        return torch.tensor([1.0 if calls[-1] else 2.0])

    ours = torch.tensor([1.0 if same else 3.0])
    identical, repeats = compare_bits(theirs, torch.tensor([1.0]), ours)
    assert identical == same
    assert repeats == (repeated[0] if same else all(repeated))
    # It is not called again once it is clear.
    assert calls.count(False) <= 1
    assert len(calls) == (1 if same else 100) or not calls[-1]
