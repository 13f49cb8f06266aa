"""The calls of conv_match_nd; how its rows are judged is tested with conv_match."""

import collections
import itertools
import math

import conv_match_nd
import conv_problems_nd
import pytest
import results
import torch
from conv_match_parts.passes import measure_call
from conv_match_parts.rows import (
    PASSES,
    same_bits,
    same_kernels,
    same_second_thread,
    same_tag,
)

from convtime.conv.call import TensorLayout

GOALS = results.load_goals()["conv_match_nd"]


def parameters(layers):
    return sum(
        layer.count
        * (math.prod(layer.problem.weight_shape) + layer.problem.bias * layer.problem.out_channels)
        for layer in layers
    )


def batch_norms(layers):
    """A scale and a shift for each channel of every convolution without a bias."""
    return sum(2 * layer.problem.out_channels for layer in layers)


def test_unet_3d_is_as_published():
    layers = list(conv_problems_nd.unet_3d())
    assert parameters(layers) == 19_069_955  # section 3 of the paper
    assert layers[-1].problem.output_shape == (1, 3, 28, 44, 44)
    assert sum(layer.problem.transposed for layer in layers) == 3


def test_r3d_has_as_many_parameters_as_torchvisions():
    layers = list(conv_problems_nd.r3d_18())
    assert parameters(layers) + batch_norms(layers) + 512 * 400 + 400 == 33_371_472
    assert layers[-1].problem.output_size == (2, 7, 7)


def test_audio_networks_are_as_published():
    waves = [layer.problem for layer in conv_problems_nd.m5()]
    assert [wave.size for wave in waves] == [(32_000,), (2_000,), (500,), (125,)]
    assert waves[0].output_size == (8_000,)
    *features, positions = conv_problems_nd.wav2vec2()
    assert parameters(features) + 2 * 512 == 4_200_448  # torchaudio's, with its group norm
    assert positions.problem.size == (49,)  # one in 20 ms


def test_transposed_networks_are_as_published():
    generator = list(conv_problems_nd.dcgan())
    assert parameters(generator) + batch_norms(generator[:-1]) == 3_576_704
    assert generator[-1].problem.output_shape == (128, 3, 64, 64)
    for before, after in itertools.pairwise(generator):
        assert before.problem.output_shape == after.problem.input_shape
    decoders = {layer.name: layer.problem for layer in conv_problems_nd.diffusion_decoders()}
    assert all(problem.transposed for problem in decoders.values())
    assert decoders["image128"].output_shape == (8, 128, 64, 64)
    assert decoders["video128"].output_shape == (1, 128, 16, 64, 64)
    assert decoders["mel1"].output_size == (80, 62 * 256)  # samples, and a row a band
    assert decoders["audio65536"].output_size == (64 * 2048,)


def test_there_are_as_many_problems_as_the_goal_asks_for():
    calls = conv_problems_nd.all_calls()
    assert len(calls) == conv_match_nd.PROBLEMS
    assert len(set(calls.values())) == len(calls)
    assert results.meets(len(calls) * len(PASSES), GOALS["problems"])
    sets = collections.Counter(name.split()[0] for name in calls)
    assert sets["random"] >= 200
    assert set(sets) == {"random", "deterministic", "misaligned", *conv_problems_nd.NETWORKS}
    volume = calls["unet_3d up256 float16 nhwc"]
    assert volume.w == TensorLayout((512, 512, 2, 2, 2), (4096, 1, 2048, 1024, 512))
    assert volume.problem.output_shape == volume.grad_output.sizes
    audio = calls["m5 conv2 float16 nhwc"]
    assert audio.x == TensorLayout((64, 128, 2000), (256_000, 2000, 1))


def test_random_calls_are_what_pytorch_takes():
    for call in conv_problems_nd.random_calls():
        dtype = getattr(torch, call.dtype)
        x, w = (
            torch.empty_strided(layout.sizes, layout.strides, dtype=dtype, device="meta")
            for layout in (call.x, call.w)
        )
        y = getattr(torch, call.problem.kind.function)(x, w, None, *call.arguments)
        assert call.problem.output_shape == call.grad_output.sizes == y.shape
        assert call.x.misalignment % dtype.itemsize == 0


@pytest.mark.cuda
@pytest.mark.parametrize("kind", conv_problems_nd.OTHER_KINDS, ids=lambda kind: kind.function)
def test_a_call_of_each_kind_on_a_gpu(kind):
    from convtime.conv.plan_oracle import PlanOracle

    call = next(
        call
        for call in conv_problems_nd.random_calls()
        if (call.problem.kind, call.problem.groups) == (kind, 1)
        and not any(call.problem.output_padding)
    )
    device = torch.device("cuda", torch.cuda.current_device())
    with PlanOracle(device) as oracle:
        row = measure_call(call, oracle, device)
    backend = "CudnnTranspose" if kind.transposed else "Cudnn"
    assert list(row["passes"]) == [*PASSES, "gradients", "autograd"]
    for name, entry in row["passes"].items():
        assert entry["backend"] == backend
        assert name not in PASSES or (same_tag(entry) and same_second_thread(entry))
        assert entry["same_strides"]
        assert same_kernels(entry)
        assert same_bits(entry) or not entry["pytorch_repeats"]
