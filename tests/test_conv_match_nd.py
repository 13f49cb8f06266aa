"""The problems of conv_match_nd; how its rows are judged is tested with conv_match."""

import collections
import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import conv_match_nd  # noqa: E402
import conv_problems  # noqa: E402
import conv_problems_nd  # noqa: E402
import results  # noqa: E402
from conv_match_parts.passes import measure_problem  # noqa: E402
from conv_match_parts.rows import PASSES, same_bits, same_kernels, same_tag  # noqa: E402

from convtime.conv.call import TensorLayout  # noqa: E402

GOALS = results.load_goals()["conv_match_nd"]


def parameters(layers):
    return sum(
        layer.count * (math.prod(layer.weight_shape) + layer.bias * layer.out_channels)
        for layer in layers
    )


def batch_norms(layers):
    """A scale and a shift for each channel of every convolution without a bias."""
    return sum(2 * layer.out_channels for layer in layers)


def test_unet_3d_is_as_published():
    layers = list(conv_problems_nd.unet_3d())
    assert parameters(layers) == 19_069_955  # section 3 of the paper
    assert layers[-1].output_shape == (1, 3, 28, 44, 44)
    assert sum(layer.transposed for layer in layers) == 3


def test_r3d_has_as_many_parameters_as_torchvisions():
    layers = list(conv_problems_nd.r3d_18())
    assert parameters(layers) + batch_norms(layers) + 512 * 400 + 400 == 33_371_472
    assert layers[-1].output_size == (2, 7, 7)


def test_audio_networks_are_as_published():
    assert [layer.size for layer in conv_problems_nd.m5()] == [(32_000,), (2_000,), (500,), (125,)]
    assert next(conv_problems_nd.m5()).output_size == (8_000,)
    *features, positions = conv_problems_nd.wav2vec2()
    assert parameters(features) + 2 * 512 == 4_200_448  # torchaudio's, with its group norm
    assert positions.size == (49,)  # one in 20 ms


def test_transposed_networks_are_as_published():
    generator = list(conv_problems_nd.dcgan())
    assert parameters(generator) + batch_norms(generator[:-1]) == 3_576_704
    assert generator[-1].output_shape == (128, 3, 64, 64)
    for before, after in itertools.pairwise(generator):
        assert before.output_shape == after.input_shape
    decoders = {layer.name: layer for layer in conv_problems_nd.diffusion_decoders()}
    assert all(layer.transposed for layer in decoders.values())
    assert decoders["image128"].output_shape == (8, 128, 64, 64)
    assert decoders["video128"].output_shape == (1, 128, 16, 64, 64)
    assert decoders["mel1"].output_size == (80, 62 * 256)  # samples, and a row a band
    assert decoders["audio65536"].output_size == (64 * 2048,)


def test_there_are_as_many_problems_as_the_goal_asks_for():
    problems = conv_problems_nd.all_problems()
    assert len(problems) == conv_match_nd.PROBLEMS
    assert len(set(problems.values())) == len(problems)
    assert results.meets(len(problems) * len(PASSES), GOALS["problems"])
    sets = collections.Counter(name.split()[0] for name in problems)
    assert sets["random"] >= 200
    assert set(sets) == {"random", *conv_problems_nd.NETWORKS}
    volume = problems["unet_3d up256 float16 nhwc"]
    assert volume.w == TensorLayout((512, 512, 2, 2, 2), (4096, 1, 2048, 1024, 512))
    assert volume.output_sizes == volume.grad_output.sizes
    audio = problems["m5 conv2 float16 nhwc"]
    assert audio.x == TensorLayout((64, 128, 2000), (256_000, 2000, 1))


def test_random_problems_are_the_same_for_a_seed():
    first = list(conv_problems_nd.random_problems(20))
    assert list(conv_problems_nd.random_problems(20)) == first
    assert list(conv_problems_nd.random_problems(20, seed=1)) != first


def test_random_problems_are_what_pytorch_takes():
    for problem in conv_problems_nd.random_problems():
        dtype = getattr(torch, problem.dtype)
        x, w = (
            torch.empty_strided(layout.sizes, layout.strides, dtype=dtype, device="meta")
            for layout in (problem.x, problem.w)
        )
        y = getattr(torch, problem.op)(x, w, None, *problem.arguments)
        assert problem.output_sizes == problem.grad_output.sizes == y.shape
        assert problem.x.misalignment % dtype.itemsize == 0


def test_random_problems_cover_all_kinds_and_parameters():
    problems = list(conv_problems_nd.random_problems())
    kinds = collections.Counter(problem.op for problem in problems)
    assert set(kinds) == {
        "conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"
    }  # fmt: skip
    assert min(kinds.values()) >= 30
    transposed = [problem for problem in problems if problem.transposed]

    def differ(numbers):
        return len(set(numbers)) > 1

    def channels_last(layout):
        return layout.strides[1] == 1 and layout.sizes[1] > 1

    for count, least in (
        *((sum(p.dtype == dtype for p in problems), 20) for dtype in conv_problems.BYTES),
        (sum(p.dtype == "float32" and not p.flags.allow_tf32 for p in problems), 20),
        (sum(p.flags.deterministic for p in problems), 20),
        (sum(p.bias for p in problems), 80),
        (sum(differ(p.dilation) for p in problems), 30),
        (sum(differ(p.stride) for p in problems), 30),
        (sum(differ(p.padding) for p in problems), 30),
        (sum(differ(p.w.sizes[2:]) for p in problems), 30),
        (sum(1 < p.groups < p.x.sizes[1] for p in problems), 30),
        (sum(1 < p.groups == p.x.sizes[1] for p in problems), 30),
        (sum(any(p.output_padding) for p in transposed), 30),
        (sum(any(map(int.__ge__, p.output_padding, p.stride)) for p in transposed), 10),
        (sum(p.x.misalignment > 0 for p in problems), 40),
        (sum(channels_last(p.x) != channels_last(p.w) for p in problems), 40),
    ):  # fmt: skip
        assert count >= least


def test_the_table_counts_its_own_problems():
    row = {"key": "random 1", "error": "PyTorch: refused"}
    text = conv_match_nd.table([row])
    assert f"Problems not run: {conv_match_nd.PROBLEMS - 1}; refused by PyTorch itself: 1." in text


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path):
    arguments = ["conv_match_nd.py", "--device", "cpu", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match="is of a GPU"):
        conv_match_nd.main()


@pytest.mark.cuda
@pytest.mark.parametrize(("rank", "transposed"), conv_problems_nd.KINDS)
def test_a_problem_of_each_kind_on_a_gpu(rank, transposed):
    from convtime.conv.plan_oracle import PlanOracle

    problem = next(
        problem
        for problem in conv_problems_nd.random_problems()
        if (problem.rank, problem.transposed, problem.groups) == (rank, transposed, 1)
        and not any(problem.output_padding)
    )
    device = torch.device("cuda", torch.cuda.current_device())
    with PlanOracle(device) as oracle:
        row = measure_problem(problem, oracle, device)
    backend = "CudnnTranspose" if transposed else "Cudnn"
    assert list(row["passes"]) == ["fprop", "dgrad", "wgrad"]
    for entry in row["passes"].values():
        assert entry["backend"] == backend
        assert same_tag(entry)
        assert same_kernels(entry)
        assert same_bits(entry) or not entry["pytorch_repeats"]
