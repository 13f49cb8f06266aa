"""torch's settings that decide which convolution kernels may run."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from convtime.conv.flags import Flags

BACKENDS: Any = torch.backends  # of which the stubs know half


def test_flags_are_applied_and_set_back() -> None:
    before = Flags.current()
    other = Flags(
        enabled=not before.enabled,
        benchmark=not before.benchmark,
        benchmark_limit=before.benchmark_limit,
        deterministic=not before.deterministic,
        allow_tf32=not before.allow_tf32,
        deterministic_algorithms=not before.deterministic_algorithms,
        depthwise_kernel=before.depthwise_kernel,
    )
    with other.applied():
        assert Flags.current() == other
    assert Flags.current() == before
    with pytest.raises(KeyError), other.applied():
        raise KeyError
    assert Flags.current() == before


def test_both_kinds_of_precision_flags_are_understood() -> None:
    cudnn = BACKENDS.cudnn
    with Flags().applied():  # so that all is set back
        cudnn.allow_tf32 = False
        assert not Flags.current().allow_tf32
        with Flags(allow_tf32=True).applied():
            assert cudnn.conv.fp32_precision == "tf32"
        assert not Flags.current().allow_tf32
        cudnn.allow_tf32 = True
        assert Flags.current().allow_tf32
        cudnn.conv.fp32_precision = "ieee"
        assert not Flags.current().allow_tf32


@pytest.fixture
def conv_precision() -> Iterator[Any]:
    """That of cuDNN's convolutions, here inherited from torch.backends.fp32_precision."""
    conv, above = BACKENDS.cudnn.conv, BACKENDS.fp32_precision
    before = conv.fp32_precision
    conv.fp32_precision = "none"
    yield conv
    BACKENDS.fp32_precision = above
    conv.fp32_precision = before


def test_a_precision_is_set_back_and_stays_inherited_where_it_is_wanted(
    conv_precision: Any,
) -> None:
    for before in ("none", "ieee", "tf32"):
        conv_precision.fp32_precision = before
        with Flags(allow_tf32=before != "tf32").applied():
            assert (conv_precision.fp32_precision == "tf32") == (before != "tf32")
        assert conv_precision.fp32_precision == before
    conv_precision.fp32_precision = "none"
    for first, second in (("tf32", "ieee"), ("ieee", "tf32"), ("none", "tf32")):
        BACKENDS.fp32_precision = first
        with Flags.current().applied():
            assert conv_precision.fp32_precision == first
        BACKENDS.fp32_precision = second
        assert conv_precision.fp32_precision == second
