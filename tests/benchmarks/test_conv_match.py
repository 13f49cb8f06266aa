"""The calls of conv_match, and how its rows are judged."""

import collections
import contextlib
import dataclasses
import json
import random
import signal
import sys

import conv_match
import conv_problems
import conv_problems_nd
import pytest
import results
import torch
from common.running import RESULT, RUN_AGAIN
from conv_match_parts import child, combined, run, searches
from conv_match_parts.poison import poison
from conv_match_parts.rows import (
    AUTOGRAD,
    LARGE,
    MODE_B,
    MODE_B_PROBLEMS,
    PASSES,
    SEARCHED_PROBLEMS,
    SEARCHES,
    is_outlier,
    is_outside,
    mismatches,
    same_search,
)

from convtime.conv.call import ConvCall
from convtime.conv.problem import ConvLayer, ConvProblem
from convtime.conv.sources.resnet50 import resnet50
from convtime.core import codec

GOALS = results.load_goals()["conv_match"]


def problems_of(layers):
    return [layer.problem for layer in layers]


def parameters(problems):
    return sum(
        problem.out_channels * (problem.in_channels // problem.groups) * problem.kernel_size[0] ** 2
        + problem.bias * problem.out_channels
        for problem in problems
    )


def batch_norms(problems):
    """A scale and a shift for each channel of every convolution without a bias."""
    return sum(2 * problem.out_channels for problem in problems if not problem.bias)


CLASSIFIER = 1280 * 1000 + 1000


def test_vgg16_is_as_published():
    problems = problems_of(conv_problems.vgg16(batch=1))
    assert len(problems) == 13
    assert parameters(problems) == 14_714_688  # torchvision's features
    assert sum(problem.flops for problem in problems) == 2 * 15_346_630_656


@pytest.mark.parametrize(
    ("network", "published"),
    [(conv_problems.mobilenet_v2, 3_504_872), (conv_problems.efficientnet_b0, 5_288_548)],
)
def test_mobile_networks_have_as_many_parameters_as_torchvisions(network, published):
    problems = problems_of(network())
    assert parameters(problems) + batch_norms(problems) + CLASSIFIER == published
    assert problems[-1].output_size == (7, 7)


def test_convnext_has_as_many_parameters_as_torchvisions():
    problems = problems_of(conv_problems.convnext_tiny())
    widths, blocks = (96, 192, 384, 768), (3, 3, 9, 3)
    # Of a block: layer norm, two linear layers with biases, and a scale for each channel.
    rest = sum(
        count * (2 * width + 8 * width * width + 5 * width + width)
        for width, count in zip(widths, blocks, strict=True)
    )
    norms = 2 * (96 + 96 + 192 + 384 + 768)
    assert parameters(problems) + rest + norms + 768 * 1000 + 1000 == 28_589_128


def test_unet_is_as_published():
    problems = problems_of(conv_problems.unet())
    up_convolutions = sum(2 * width * width * 4 + width for width in (512, 256, 128, 64))
    # 31,030,593 with one class; the paper has two.
    assert parameters(problems) + up_convolutions == 31_030_593 + 65
    assert problems[-1].output_size == (388, 388)
    assert problems[9].output_size == (28, 28)


def test_there_are_as_many_problems_as_the_goal_asks_for():
    calls = conv_problems.all_calls()
    assert len(calls) + MODE_B_PROBLEMS + SEARCHED_PROBLEMS == conv_match.PROBLEMS
    assert len(set(calls.values())) == len(calls)
    assert results.meets(len(calls) * len(PASSES), GOALS["problems"])
    sets = collections.Counter(name.split()[0] for name in calls)
    assert sets["random"] >= 300
    others = {"deepbench", "random", "deterministic", "misaligned", LARGE}
    assert set(sets) == others | set(conv_problems.NETWORKS)
    assert min(sets["deterministic"], sets["misaligned"]) >= 50
    assert results.meets(SEARCHED_PROBLEMS * len(PASSES), GOALS["benchmark_passes"])
    assert sets["resnet50"] == 2 * len(resnet50(32))


@pytest.mark.parametrize("name", ["conv_match", "conv_match_nd"])
def test_calls_are_those_that_were_measured(name):
    source = {"conv_match": conv_problems, "conv_match_nd": conv_problems_nd}[name]
    path = results.HERE / "results" / f"{name}.json"
    rows = {row["key"]: row for row in json.loads(path.read_text())["rows"] if "problem" in row}
    calls = source.all_calls()
    for key in rows:
        call = calls[key.removeprefix(f"{MODE_B} ").removeprefix(f"{SEARCHES} ")]
        if key.startswith(SEARCHES):
            call = dataclasses.replace(call, flags=dataclasses.replace(call.flags, benchmark=True))
        fields = json.loads(json.dumps(codec.encode(call) | codec.encode(call.problem)))
        measured = rows[key]["problem"]
        assert {field: fields[field] for field in measured} == measured


def test_random_calls_are_what_pytorch_takes():
    for call in conv_problems.random_calls():
        dtype, problem = getattr(torch, call.dtype), call.problem
        x, w = (
            torch.empty_strided(layout.sizes, layout.strides, dtype=dtype, device="meta")
            for layout in (call.x, call.w)
        )
        y = torch.conv2d(
            x, w, None, problem.stride, problem.padding, problem.dilation, problem.groups
        )
        assert problem.output_shape == call.grad_output.sizes == y.shape
        assert call.x.misalignment % dtype.itemsize == 0


def second_thread(**changes):
    found = {"bit_identical": True, "pytorch_repeats": True, "rebuilt": True}
    return found | {"convtime_kernels": None} | changes


def entry(ours=1000, pytorch=1000, **changes):
    """A pass that matches."""
    return {
        "backend": "Cudnn",
        "pytorch_tag": "ConvFwd_eng1",
        "pytorch_unknown": "",
        "convtime_tag": "ConvFwd_eng1",
        "bit_identical": True,
        "pytorch_repeats": True,
        "same_strides": True,
        "second_thread": second_thread(),
        "peak_bytes": [512, 512],
        "kernels": [["gemm", [1, 1, 1], [128, 1, 1]]],
        "convtime_kernels": None,
        "ns": {"pytorch": [pytorch, pytorch], "convtime": [ours, ours]},
    } | changes


def problem_row(key="random 1", dgrad=None, **changes):
    passes = {"fprop": entry(**changes), "dgrad": dgrad or entry(), "wgrad": entry()}
    return {"key": key, "problem": {"dtype": "float32"}, "passes": passes}


def search(**changes):
    """A pass whose plans both sides searched alike, and found different ones to be the fastest."""
    return {
        "pytorch_tag": "ConvFwd_eng2",
        "pytorch_unknown": "",
        "again_tag": "ConvFwd_eng1",
        "convtime_tag": "ConvFwd_eng1",
        "candidates": ["ConvFwd_eng1", "ConvFwd_eng2"],
        "convtime_candidates": None,
        "bit_identical": True,
        "pytorch_repeats": True,
        "kernels": [["gemm", [1, 1, 1], [128, 1, 1]]],
        "convtime_kernels": None,
    } | changes


def search_row(**changes):
    searches = {"fprop": search(**changes), "dgrad": search()}
    return {"key": "benchmark random 1", "problem": {"dtype": "float32"}, "searches": searches}


def host_row(added=0, ours=7000, modules=False, bias=False):
    floor, theirs = 5000, 9000
    host = {"F.conv2d": [theirs + added], "convtime": [ours + added], "floor": [floor]}
    if bias:
        host["floor with bias"] = [floor + added]
    if modules:
        host = {"nn.Conv2d": [theirs, theirs], "convtime.nn.Conv2d": [ours, ours]}
    return {"key": f"host {added} {modules}{' bias' if bias else ''}", "host": host}


def summary(*rows):
    return conv_match.summarise(list(rows))


def test_a_summary_has_a_value_for_every_goal():
    found = summary(problem_row(), search_row(), host_row(), host_row(modules=True))
    assert set(found) == set(GOALS)
    for name in set(found) - {"problems", "benchmark_passes"}:
        assert results.meets(found[name], GOALS[name]), name
    assert found["problems"] == 3
    assert found["benchmark_passes"] == 2
    assert found["host_added_over_f_conv2d"] == 0.5
    assert found["module_host_over_nn_conv2d"] == pytest.approx(7 / 9)


def test_what_was_not_measured_is_missed():
    assert "host_added_over_f_conv2d" not in summary(problem_row())
    without_floor = host_row()
    del without_floor["host"]["floor"]
    assert "host_added_over_f_conv2d" not in summary(without_floor)
    assert summary({"key": "random 1", "error": "PyTorch: refused"}) == {"problems": 0}
    row = problem_row()
    for found in row["passes"].values():
        del found["same_strides"], found["second_thread"]
    assert not {"strides_match", "second_thread_match", "benchmark_passes"} & set(summary(row))
    with_bias = host_row(added=3000, bias=True)
    del with_bias["host"]["floor with bias"]
    assert "host_added_over_f_conv2d" not in summary(host_row(), with_bias)


def test_the_worst_of_the_hosts_times_counts():
    found = summary(host_row(), host_row(added=3000), host_row(ours=8000))
    assert found["host_added_over_f_conv2d"] == 0.75


def test_what_adds_the_bias_is_left_out_on_both_sides():
    assert summary(host_row(added=3000, bias=True)) == summary(host_row())


def test_passes_that_are_left_to_aten_are_not_counted_and_have_to_match():
    others = {
        "backend": "CudaDepthwise2d",
        "pytorch_tag": None,
        "ns": {"pytorch": [2], "convtime": [1]},
    }
    found = summary(problem_row(dgrad=entry(**others)))
    assert found["problems"] == 2
    assert found["time_ratio_geomean_min"] == found["kernels_match"] == 1
    found = summary(problem_row(dgrad=entry(**others, convtime_kernels=[])))
    assert found["kernels_match"] == 0


def test_passes_of_several_results_have_no_plan_of_their_own():
    combined = entry()
    for name in ("pytorch_tag", "pytorch_unknown", "convtime_tag", "second_thread"):
        del combined[name]
    row = problem_row()
    row["passes"]["gradients"] = combined
    found = summary(row)
    assert found["problems"] == 4
    assert found["tag_match"] == found["second_thread_match"] == 1
    assert list(mismatches([row])) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"error": "boom"}, "boom"),
        ({"pytorch_tag": None, "pytorch_unknown": "a tie"}, "PyTorch's plan is not known: a tie"),
        ({"convtime_candidates": ["ConvFwd_eng1"]},
         "timed ConvFwd_eng1, PyTorch: ConvFwd_eng1, ConvFwd_eng2"),
        ({"bit_identical": False}, "other bits or kernels with ConvFwd_eng2"),
        ({"convtime_kernels": []}, "other bits or kernels with ConvFwd_eng2"),
    ],
)  # fmt: skip
def test_a_search_that_differs_does_not_count(changes, said):
    row = search_row(**changes)
    if "error" in changes:
        row["searches"]["fprop"] = changes
    assert summary(row)["benchmark_passes"] == 1
    assert list(mismatches([row])) == [f"benchmark random 1, fprop: {said}"]
    text = conv_match.table([row])
    assert "1 of 2 passes have the same candidates" in text
    unknown = int("error" in changes or "pytorch_tag" in changes)
    assert f"PyTorch's log does not tell its fastest in {unknown}." in text


def test_a_search_may_differ_where_pytorch_does_not_repeat():
    row = search_row(bit_identical=False, pytorch_repeats=False)
    assert summary(row)["benchmark_passes"] == 2
    text = conv_match.table([row])
    assert (
        "convtime's is PyTorch's in 0 of 2, and PyTorch's in another thread is its own in 0 of 2"
        in text
    )


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"convtime_tag": "ConvFwd_eng2"}, "tag_match", 2 / 3),
        ({"pytorch_tag": None, "convtime_tag": None}, "tag_match", 2 / 3),
        ({"backend": "CudaDepthwise2d", "pytorch_tag": None}, "tag_match", 1),
        ({"backend": "CudnnTranspose", "pytorch_tag": None}, "tag_match", 2 / 3),
        ({"convtime_kernels": []}, "kernels_match", 2 / 3),
        ({"bit_identical": False}, "bit_identical_where_pytorch_repeats", 2 / 3),
        (
            {"bit_identical": False, "pytorch_repeats": False},
            "bit_identical_where_pytorch_repeats",
            1,
        ),
        ({"same_strides": False}, "strides_match", 2 / 3),
        ({"second_thread": second_thread(bit_identical=False)}, "second_thread_match", 2 / 3),
        (
            {"second_thread": second_thread(bit_identical=False, pytorch_repeats=False)},
            "second_thread_match",
            1,
        ),
        ({"second_thread": second_thread(convtime_kernels=[])}, "second_thread_match", 2 / 3),
        ({"second_thread": second_thread(rebuilt=False)}, "second_thread_match", 1),
        ({"second_thread": {"error": "boom"}}, "second_thread_match", 2 / 3),
        ({"peak_bytes": [512, 1024]}, "peak_memory_ratio_max", 2),
        ({"ours": 900}, "time_ratio_geomean_min", 0.9),
        ({"ours": 1100}, "time_ratio_geomean_max", 1.1),
        ({"ours": 1100}, "time_ratio_outliers", 1),
    ],
)
def test_each_value_is_of_its_own_fields(changes, name, value):
    assert summary(problem_row(**changes))[name] == pytest.approx(value)


def test_a_pass_that_convtime_fails_is_a_mismatch_everywhere():
    broken = {
        "backend": "Cudnn",
        "pytorch_tag": "ConvBwdData_eng1",
        "pytorch_unknown": "",
        "error": "convtime: boom",
    }
    found = summary(problem_row(dgrad=broken))
    for name in ("tag_match", "kernels_match", "bit_identical_where_pytorch_repeats"):
        assert found[name] == pytest.approx(2 / 3)
    assert list(mismatches([problem_row(dgrad=broken)])) == ["random 1, dgrad: convtime: boom"]


@pytest.mark.parametrize(
    ("pytorch", "ours", "changes", "outlier"),
    [
        (1000, 1031, {}, False),  # less than a tick
        (1000, 1040, {}, True),
        (1000, 960, {}, True),
        (10_000, 10_290, {}, False),  # many ticks, but inside of the limits
        (10_000, 10_310, {}, True),
        (10_000, 20_000, {"convtime_tag": "ConvFwd_eng2"}, False),  # another plan
        (10_000, 20_000, {"convtime_kernels": []}, False),
        (10_000, 20_000, {"pytorch_tag": None}, False),
        (10_000, 20_000, {"backend": "CudaDepthwise2d", "pytorch_tag": None}, True),
    ],
)
def test_outliers(pytorch, ours, changes, outlier):
    assert is_outlier(entry(ours, pytorch, **changes)) == outlier


def test_a_ratio_of_times_that_range_widely_is_no_outlier():
    generator = random.Random(0)  # no secret
    pytorch = [generator.uniform(20_000, 40_000) for _ in range(200)]
    wide = [1.06 * generator.uniform(20_000, 40_000) for _ in pytorch]
    narrow = [1.06 * each for each in pytorch]

    def timed(ours):
        return entry(ns={"pytorch": pytorch, "convtime": ours})

    assert is_outside(timed(wide))
    assert not is_outlier(timed(wide))
    assert is_outlier(timed(narrow))


def test_the_table_says_what_is_wrong_and_what_was_not_run():
    rows = [
        problem_row(ours=1100, peak_bytes=[1, 2], same_strides=False, second_thread={"error": ""}),
        problem_row("vgg16 conv float32", convtime_tag="ConvFwd_eng2", convtime_kernels=[]),
        problem_row("unet up float32", bit_identical=False, pytorch_tag=None,
                    pytorch_unknown="the child died"),
        {"key": "random 2", "error": "PyTorch: refused"},
        host_row(),
        {"key": "memory", "memory": [{"shapes": 2000, "host_bytes": 2**30, "plans": 1500}]},
    ]  # fmt: skip
    text = conv_match.table(rows)
    assert f"Problems not run: {conv_match.PROBLEMS - 4}; refused by PyTorch itself: 1." in text
    assert "Mismatches: 8." in text
    for part in (
        "random, float32 | 3 | 3 of 3 | 3 of 3 | 3 of 3 | 2 of 3 | 2 of 3 | 1.0323 (1.000, 1.100)",
        "- random 1, fprop: other strides",
        "- random 1, fprop: other bits or kernels in a second thread",
        "- random 1, fprop: time ratio 1.1000 with the same plan",
        "- random 1, fprop: peak memory 2.000 times PyTorch's",
        "- vgg16 conv float32, fprop: plan ConvFwd_eng2, PyTorch's: ConvFwd_eng1",
        "- vgg16 conv float32, fprop: other kernels (0, PyTorch's 1)",
        "- unet up float32, fprop: plan ConvFwd_eng1, PyTorch's: the child died",
        "- unet up float32, fprop: other bits",
        "F.conv2d 9.00, convtime 7.00, floor 5.00",
        "2,000: 1024 MiB, 1,500 plans",
    ):
        assert part in text


LOST = {"error": "PyTorch: CUDA error: misaligned address"}


@pytest.fixture
def run_on(monkeypatch, tmp_path):
    """Runs the benchmark on rows in place of calls, with no GPU; gives its file's keys."""
    device = torch.device("cuda", 0)
    for name, fake in (
        ("find_gpu", lambda name: device),
        ("PlanOracle", contextlib.nullcontext),
        ("provenance", lambda device: {}),
        ("measure_call", lambda row, oracle, device: row),
    ):
        monkeypatch.setattr(run, name, fake)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def run_on(rows):
        command = ["conv_match.py", "--commit", "abc", "--output", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", command)
        run.run("conv_match", None, lambda: rows, ("match",))
        (path,) = tmp_path.iterdir()
        return [row["key"] for row in json.loads(path.read_text())["rows"]]

    return run_on


def fine():
    return {"passes": problem_row()["passes"]}


def test_it_asks_to_be_run_again_where_the_gpu_was_lost(run_on):
    rows = {"a": LOST, "b": fine(), "c": LOST}
    with pytest.raises(SystemExit) as error:
        run_on(rows)
    assert error.value.code == RUN_AGAIN == 3
    assert run_on(rows) == ["a", "b", "c"]  # nothing is left


@pytest.mark.cuda
@pytest.mark.parametrize("what", [MODE_B, SEARCHES])
def test_a_child_measures_on_a_gpu(what):
    call = conv_problems.all_calls()["resnet50 conv1 float16 nhwc"]
    with child.Child(what, torch.device("cuda", torch.cuda.current_device())) as other:
        row = other.measure(call)
    assert list(mismatches([{"key": "conv1", **row}])) == []
    if what == SEARCHES:
        assert set(row["searches"]) == {"fprop", "dgrad", "wgrad"}
        assert all(map(same_search, row["searches"].values()))
    else:
        assert set(row["passes"]) == {"fprop", "dgrad", "wgrad", "gradients", "autograd"}


def assert_poisoned(size, dtype):
    device = torch.device("cuda", torch.cuda.current_device())
    tensors = [torch.zeros(size // 2, dtype=torch.uint8, device=device) for _ in range(4)]
    del tensors[1:3]  # between two that are in use
    poison(device, size)
    assert torch.empty(size // dtype.itemsize, dtype=dtype, device=device).isnan().all()


@pytest.mark.cuda
@pytest.mark.parametrize("size", [2**10, 2**22, 2**28])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_memory_is_poisoned(size, dtype):
    assert_poisoned(size, dtype)


@pytest.mark.cuda
def test_gaps_that_the_stream_does_not_allocate_from_are_left_alone():
    def tensors_with_a_gap():
        tensors = [torch.zeros(512, dtype=torch.uint8, device="cuda") for _ in range(3)]
        del tensors[1]
        return tensors

    with torch.cuda.stream(torch.cuda.Stream()):
        elsewhere = tensors_with_a_gap()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tensors_with_a_gap()
    assert_poisoned(2**10, torch.float16)
    assert len(elsewhere) == len(captured) == 2


@pytest.mark.parametrize("bias", [False, True])
def test_combined_calls_are_the_gradients_of_both_sides(bias):
    problem = ConvProblem(2, 4, (6, 6), 3, (3, 3), bias=bias)
    call = conv_problems.of_layer(ConvLayer(("conv",), problem), "float32", "nchw")
    tensors = call.tensors("cpu")
    leaves = [tensors.x, tensors.w, *([tensors.bias] if bias else [])]
    for leaf in leaves:
        leaf.requires_grad_()
    output = torch.nn.functional.conv2d(tensors.x, tensors.w, tensors.bias)
    expected = torch.autograd.grad(output, leaves, tensors.grad_output)
    with torch.no_grad():
        for name, sides in combined.combined_calls(call, tensors).items():
            for side in sides:
                found = side()
                if name == AUTOGRAD:
                    assert torch.equal(found[0], output)
                    found = found[1:]
                assert len(found) == len(expected)
                assert all(map(torch.equal, found, expected))


_STARTS = f"import sys, time; print({RESULT + '{}'!r}, flush=True); sys.stdin.readline(); "


@pytest.mark.parametrize(
    ("ends", "status", "patience"),
    [("sys.exit(7)", 7, 60.0), ("time.sleep(60)", -signal.SIGKILL, 1.0)],
)
def test_a_child_that_dies_or_hangs_is_a_mismatch(monkeypatch, ends, status, patience):
    # Python begins soonest without the site's packages, for which patience counts, too.
    monkeypatch.setattr(child, "_COMMAND", (sys.executable, "-S", "-c", _STARTS + ends))
    monkeypatch.setattr(child, "_ANSWER_SECONDS", patience)
    call = conv_problems.all_calls()["resnet50 conv1 float16 nhwc"]
    for what in (MODE_B, SEARCHES):
        with child.Child(what, torch.device("cuda", 0)) as other:
            for _ in range(2):  # a new one each time
                (line,) = mismatches([{"key": "conv1", **other.measure(call)}])
                assert line == f"conv1, fprop: the process that measures ended with {status}"


def test_a_child_begins_its_log_anew(monkeypatch):
    writes = (
        "import os; log = os.environ['CUDNN_FRONTEND_LOG_FILE']; "
        "assert not os.path.exists(log); open(log, 'w').write('a plan'); sys.exit(7)"
    )
    monkeypatch.setattr(child, "_COMMAND", (sys.executable, "-c", _STARTS + writes))
    call = conv_problems.all_calls()["resnet50 conv1 float16 nhwc"]
    with child.Child(SEARCHES, torch.device("cuda", 0)) as other:
        for _ in range(2):
            assert "ended with 7" in str(other.measure(call))


def test_a_child_that_cannot_start_ends_the_run(monkeypatch):
    monkeypatch.setattr(child, "_COMMAND", (sys.executable, "-c", "import sys; sys.exit(7)"))
    call = conv_problems.all_calls()["resnet50 conv1 float16 nhwc"]
    with (
        child.Child(SEARCHES, torch.device("cuda", 0)) as other,
        pytest.raises(RuntimeError, match="that measures benchmark ended with 7"),
    ):
        other.measure(call)


def test_what_pytorch_refuses_to_search_is_no_mismatch(monkeypatch, tmp_path):
    def refuse(*_):
        raise RuntimeError("gave up")

    monkeypatch.setattr(ConvCall, "backend", lambda *_: "Cudnn")
    monkeypatch.setattr(searches, "logged", refuse)
    call = conv_problems.all_calls()["resnet50 layer4.0.conv1 float32 nchw"]
    row = searches.measure_searches(call, torch.device("cpu"), tmp_path / "log")
    assert row["error"] == "PyTorch: RuntimeError: gave up"
    assert list(mismatches([{"key": "conv1", **row}])) == []
