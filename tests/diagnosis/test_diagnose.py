"""A diagnosis from call to text, on a CPU: no test of how long anything takes."""

import contextlib
import dataclasses
import json
import sys
import time
import types
import warnings

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime import Diagnosis, cli
from convtime.conv.advice import Advice
from convtime.core.errors import InputError
from convtime.diagnosis import (
    contrasts,
    host,
    neighbors,
    other_tools,
    process,
    serializing,
    tracing,
)
from convtime.diagnosis import diagnose as running
from convtime.diagnosis.calls import look_at_calls
from convtime.diagnosis.diagnosis import Cause, Skipped
from convtime.diagnosis.difference import Other, split
from convtime.diagnosis.subject import Subject, moved
from convtime.diagnosis.tracing import RANGE, Event, read_trace
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.measure import Place, find_place
from tests.helpers.clean_evidence import CLEAN, US, but, timing

QUICK = 0.05  # seconds of budget, which leave out all that takes longer


def subject_of(fn, *args, **kwargs):
    candidate = Candidate(fn, *args, **kwargs)
    return Subject(candidate, find_place([candidate], None))


@pytest.fixture(scope="module")
def found():
    """Everything that a CPU's diagnosis looks at, but a fresh process."""
    with pytest.MonkeyPatch.context() as patch:
        looked = [each for each in contrasts.CONTRASTS if each.name != "process"]
        patch.setattr(running, "CONTRASTS", tuple(looked))
        x = torch.zeros(64, 8, 4, 4).transpose(0, 1)
        return convtime.diagnose(torch.relu, x, device="cpu", budget=100, against=1.0)


def test_on_a_cpu_what_makes_sense_there_is_looked_at(found):
    left_out = {each.contrast for each in found.skipped}
    expected = {"cache", "pages", "placement", "layout", "data", "threads", "one thread"}
    expected |= {"denormals"}
    without = {"threads": {"threads", "one thread"}, "denormals": {"denormals"}}
    assert set(found.evidence.contrasts) == expected.difference(
        *(without.get(each, ()) for each in left_out)
    )
    assert left_out <= {"GPU contrasts", "threads", "denormals"}
    assert found.evidence.host is not None
    assert found.evidence.operators is not None
    assert set(found.evidence.contrasts["layout"]) == {"as-is", "contiguous", "channels_last"}
    assert set(found.evidence.contrasts["data"]) == {"as given", "zeros", "random"}
    assert found.evidence.work.remarkable_inputs == 1
    assert len(found.evidence.calls.first) == 3
    assert found.device == "cpu"


def test_a_call_without_work_for_the_gpu_is_said_to_give_it_none(monkeypatch):
    """As the core says it: by method="auto" such a call is timed on the host."""
    gpu = Place(torch.device("cuda", 0), (), "asked for")
    timed = []

    def time_work(subject, calls):
        timed.append(str(subject.place.device))
        if subject.on_gpu:
            return types.SimpleNamespace(method="cpu")
        return contrasts.time_work(subject, calls)

    monkeypatch.setattr(running, "find_place", lambda *_: gpu)
    monkeypatch.setattr(running, "on", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(running, "time_work", time_work)
    monkeypatch.setattr(
        running, "look_at_calls", lambda each: CLEAN.calls if each.on_gpu else look_at_calls(each)
    )
    found = convtime.diagnose(abs, 1, device="cuda:0", budget=QUICK)
    assert timed == ["cuda:0", "cpu"]
    assert (found.unused_gpu, found.device) == ("cuda:0", "cpu")
    assert not found.evidence.on_gpu
    assert found.evidence.calls.first == CLEAN.calls.first
    for shown in (str(found), found._repr_html_()):
        assert shown.count("issues no work on cuda:0") == 1
    assert "launch-bound" not in str(found)


def test_a_diagnosis_survives_json(found):
    read = Diagnosis.from_dict(json.loads(json.dumps(found.to_dict())))
    assert read == dataclasses.replace(found, provenance=read.provenance)


def test_of_another_number_nothing_is_lost(found):
    difference = found.difference
    parts = sum(part.seconds for part in difference.parts)
    assert difference.ours + parts + difference.unexplained == pytest.approx(1.0)
    assert difference.assumed


def test_it_shows_itself(found):
    assert "where a call's time goes" in str(found)
    assert "not looked at: GPU contrasts" in str(found)
    assert "unexplained" in str(found)
    assert "channels_last" in found.details()
    assert repr(found).startswith("<convtime.Diagnosis relu: ")
    assert "\n" not in repr(found)


def test_where_nothing_was_found_it_says_so(found):
    clean = dataclasses.replace(found, causes=(), difference=None)
    assert "no cause was found" in str(clean)
    assert clean.first == "nothing"
    assert "no cause was found" in clean._repr_html_()


def test_names_and_reasons_are_escaped(found):
    cause = Cause("cache", "<b>\x1b[31m", ("<i>",), 0.5, 0.9, None, (Advice("<u>"),))
    odd = dataclasses.replace(
        found, name="<script>\x1b", causes=(cause,), skipped=(Skipped("a", "<s>"),)
    )
    for shown in (str(odd), odd.details(), repr(odd), odd._repr_html_()):
        assert "\x1b" not in shown
    for tag in ("<script>", "<b>", "<i>", "<u>", "<s>"):
        assert tag not in odd._repr_html_()


def test_counters_of_a_step_of_many_kernels_take_long():
    (counters,) = (each for each in contrasts.CONTRASTS if each.name == "counters")
    assert counters.cost(but(SEEN, work={"kernels": 1})) < 2
    assert counters.cost(but(SEEN, work={"kernels": 400})) > 10


def test_a_budget_that_is_over_leaves_out_the_rest_and_says_so():
    quick = convtime.diagnose(torch.relu, torch.randn(9), device="cpu", budget=QUICK)
    reasons = {each.contrast: each.reason for each in quick.skipped}
    assert reasons["cache"].startswith("it would take about 0.8 s, but the budget has 0.")
    assert reasons["cache"].endswith(" s left")
    assert quick.evidence.contrasts == {}


def test_what_fails_in_a_contrast_is_said_and_the_rest_goes_on(monkeypatch):
    def fail(subject, evidence):
        raise RuntimeError("no\nsuch thing")

    looked = [
        each
        for each in contrasts.CONTRASTS
        if each.name in ("host", "data") and each.only_on != "cuda"
    ]
    looked[0] = dataclasses.replace(looked[0], look=fail)
    monkeypatch.setattr(running, "CONTRASTS", tuple(looked))
    found = convtime.diagnose(torch.relu, torch.randn(9), device="cpu", budget=100)
    assert Skipped("host", "no such thing", "the operating system's effects") in found.skipped
    assert "data" in found.evidence.contrasts


def test_what_it_calls_raises_as_it_is():
    with pytest.raises(ZeroDivisionError):
        convtime.diagnose(lambda: 1 / 0, device="cpu", budget=QUICK)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"budget": 0}, ValueError, "budget must be a positive number of seconds, got 0"),
        ({"budget": "1"}, ValueError, "budget must be a positive number of seconds, got '1'"),
        ({"counters": 1}, TypeError, "counters must be True or False, got 1"),
        ({"device": "tpu"}, ValueError, "device must be cpu, cuda or cuda:N, got 'tpu'"),
        ({"against": -1.0}, InputError, "against must give a number of seconds, .*, got -1.0"),
        ({"against": True}, InputError, "got True"),
        ({"against": [1.0]}, InputError, r"got \[1.0\]"),
        ({"against": lambda: "x"}, InputError, "callable against .* got 'x'"),
        ({"against": "no_such_file.json"}, InputError, "no_such_file.json: cannot be read"),
        pytest.param(
            {"against": "do_bench"},
            InputError,
            "against='do_bench' needs a GPU, .*; use against='timer'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it has a GPU"),
        ),
        ({"kwargs": 3}, TypeError, "kwargs must be a mapping of names to values, got 3"),
    ],
)
def test_bad_input_is_one_sentence(options, error, text):
    with pytest.raises(error, match=text) as raised:
        convtime.diagnose(abs, 1, **{"device": "cpu", "budget": QUICK, **options})
    assert "\n" not in str(raised.value)


def test_what_is_diagnosed_must_be_callable():
    with pytest.raises(TypeError, match="must be callable, got Tensor"):
        convtime.diagnose(torch.ones(1))  # type: ignore[arg-type]


def test_other_tools_numbers():
    candidate = Candidate(abs, 1)
    assert other_tools.other_of(2, candidate) == Other(2.0)
    assert other_tools.other_of(lambda: 3.0, candidate) == Other(3.0)
    timer = other_tools.other_of("timer", candidate)
    assert timer.tool == "torch Timer"
    assert 0 < timer.seconds < 1
    taken = torch.utils.benchmark.Timer("1 + 1").timeit(10)
    assert other_tools.other_of(taken, candidate).tool == "torch Timer"
    measured = convtime.time_op(abs, 1, device="cpu", budget=0.01)
    assert other_tools.other_of(measured, candidate) == Other(measured.median)


def test_a_file_of_nvbench_is_known_by_its_mean(tmp_path):
    file = tmp_path / "times.json"
    measured = convtime.time_op(abs, 1, device="cpu", stop="count", max_samples=10)
    nvbench = dataclasses.replace(measured, provenance={"tool": "nvbench"})
    convtime.write_measurements(nvbench, file)
    assert other_tools.other_of(file, Candidate(abs, 1)) == Other(measured.mean, "nvbench")
    convtime.write_measurements({"a": measured, "b": measured}, file)
    with pytest.raises(InputError, match="against must be a file .* with 2;"):
        other_tools.other_of(str(file), Candidate(abs, 1))


def test_on_a_cpu_a_timer_of_pytorchs_differs_by_threads_and_memory():
    seen = but(
        dataclasses.replace(CLEAN, on_gpu=False),
        contrasts={
            "threads": {"as-is": timing(100), "1 thread": timing(180)},
            "pages": {"retained": timing(100), "as-is": timing(130)},
            "one thread": {"in a loop": timing(205)},
        },
    )
    found = split(seen, Other(207 * US, "torch Timer"))
    assert [part.name for part in found.parts] == ["threads", "pages", "cache"]
    assert [part.seconds for part in found.parts] == pytest.approx([80 * US, 30 * US, -5 * US])
    assert found.unexplained == pytest.approx(2 * US)
    assert not found.assumed


SEEN = but(
    contrasts={
        "cache": {"cold": timing(100), "cold-clean": timing(95), "warm": timing(80)},
        "places": {"as-is": timing(84), "random": timing(82)},
        "method": {"graph": timing(90), "events, not queued": timing(140)},
    },
    work={"span": 103 * US, "mean": 101 * US, "fewest": 97 * US},
    calls={"loop": timing(130), "waiting": timing(150)},
    event_cost=2.6 * US,
)


@pytest.mark.parametrize(
    ("tool", "microseconds", "parts"),
    [
        ("triton do_bench", 108.6, ["placement", "gaps", "event cost", "statistics"]),
        ("torch Timer", 130, ["cache", "placement", "gaps", "launch"]),
        ("ncu", 97, ["flush", "placement"]),
        ("events around each call", 140, ["cache", "placement", "gaps", "event cost", "launch"]),
        (
            "a clock around each call and its wait",
            150,
            ["cache", "placement", "gaps", "launch", "waiting"],
        ),
    ],
)
def test_a_difference_is_split_by_how_the_tool_times(tool, microseconds, parts):
    found = split(SEEN, Other(microseconds * US, tool))
    assert not found.assumed
    assert [part.name for part in found.parts] == parts
    assert found.unexplained == pytest.approx(0, abs=1e-12)
    assert found.ours == 100 * US
    assert "\n" not in str(found)


def test_a_tool_that_is_not_known_is_taken_for_what_comes_closest():
    found = split(SEEN, Other(150.2 * US))
    assert found.assumed
    assert found.tool == "a clock around each call and its wait"
    assert found.unexplained == pytest.approx(0.2 * US)
    assert str(found).endswith(", waiting +20.00 µs, unexplained +200.0 ns")


def test_a_way_of_few_parts_is_taken_before_one_of_many_that_comes_a_little_closer():
    near = but(SEEN, work={"span": 101 * US, "mean": 100.2 * US}, event_cost=0.5 * US)
    found = split(near, Other(103 * US))  # do_bench gives 103.7
    assert found.tool == "kernel times of a profiler, cold"
    assert found.unexplained == pytest.approx(US)


def test_a_lower_clock_is_a_part_where_it_comes_closer():
    hot = but(SEEN, contrasts={"regime": {"burst": timing(100), "sustained": timing(118)}})
    found = split(hot, Other(126.6 * US, "triton do_bench"))
    assert found.parts[0].name == "clock"
    assert found.unexplained == pytest.approx(0, abs=1e-12)


def test_of_what_was_not_looked_at_nothing_is_a_part():
    bare = dataclasses.replace(CLEAN, contrasts={})
    found = split(bare, Other(99 * US, "ncu"))
    assert found.parts == ()
    assert found.unexplained == pytest.approx(-US)


def microseconds(name, start, end, *, on_device=False, correlation=0):
    return Event(name, 1000 * start, 1000 * end, on_device, correlation)


def test_a_trace_is_of_what_was_launched_within_the_calls():
    trace = read_trace(
        [
            microseconds(RANGE, 0, 100),
            microseconds("cudaLaunchKernel", 10, 15, correlation=1),
            microseconds("cudaMemcpyAsync", 20, 30, correlation=2),
            microseconds("cudaStreamSynchronize", 30, 90),
            microseconds("cudaMalloc", 91, 95),
            microseconds("cudaLaunchKernel", 110, 115, correlation=3),
            microseconds("relu", 40, 60, on_device=True, correlation=1),
            microseconds("Memcpy HtoD (Pageable -> Device)", 50, 80, on_device=True, correlation=2),
            microseconds("another's", 40, 90, on_device=True, correlation=3),
            microseconds(RANGE, 40, 90, on_device=True, correlation=1),
        ]
    )
    assert trace.calls == 1
    assert trace.busy == pytest.approx(40 * US)
    assert trace.kernels == pytest.approx(20 * US)
    assert trace.copies == pytest.approx(30 * US)
    assert trace.hidden_copies == pytest.approx(10 * US)
    assert trace.pageable == pytest.approx(30 * US)
    assert trace.pinned == 0
    assert trace.launches == 2
    assert (trace.waits, trace.allocations) == (1, 1)
    assert trace.waiting == pytest.approx(60 * US)
    assert trace.issuing == pytest.approx((100 - 60 - 4 - 10) * US)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaFree", "allocations"),
        ("cudaFreeAsync", None),
        ("cuMemCreate", "allocations"),
        ("cudaMallocAsync", None),
        ("cuMemcpyHtoDAsync_v2", None),
        ("cudaEventSynchronize", "waits"),
        ("cudaEventRecord", None),
        ("cuLaunchKernelEx", "launches"),
        ("cudaGraphLaunch", "launches"),
    ],
)
def test_calls_of_cuda_by_what_they_are(name, kind):
    trace = read_trace([microseconds(RANGE, 0, 10), microseconds(name, 1, 2)])
    for each in ("allocations", "waits", "launches"):
        expected = 1 if each == kind or (each == "launches" and "emcpy" in name) else 0
        assert getattr(trace, each) == expected, each


def test_a_trace_without_calls_is_none():
    with pytest.raises(ValueError, match="the profiler recorded no call"):
        read_trace([])


def test_other_tensors_keep_their_layout():
    x = torch.randn(6, 8)[:, ::2].t().requires_grad_()
    copy = moved(x)
    assert copy.stride() == x.stride()
    assert copy.data_ptr() != x.data_ptr()
    assert torch.equal(copy, x)
    expanded = torch.ones(1, 4).expand(3, 4)
    assert moved(expanded) is expanded


@pytest.mark.parametrize("given", [torch.ones(3), torch.ones(()), torch.ones(0, 4)])
def test_copies_lie_where_chance_has_it(given):
    """The allocator would put those of large tensors at multiples of 2 MiB alone."""
    copies = [moved(given) for _ in range(9)]
    starts = {copy.storage_offset() * copy.itemsize for copy in copies}
    assert all(torch.equal(copy, given) for copy in copies)
    assert all(start % 512 == 0 for start in starts)
    assert len(starts) > 1


@pytest.mark.parametrize(("asked", "emptied"), [(0.0, 0), (0.02, 0), (1.0, 1)])
def test_calls_that_ask_for_memory_are_traced_without_what_others_left(asked, emptied, monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(contrasts, "trace", lambda *_: done.append("traced"))
    look = next(each.look for each in contrasts.CONTRASTS if each.name == "trace")
    look(subject_of(abs, 1), but(calls={"allocations": asked}))
    assert done == ["emptied"] * emptied + ["traced"]


@pytest.mark.parametrize("name", ["layout", "data", "rotation", "batch", "process"])
def test_of_mapped_memory_nothing_is_varied_by_copies_that_lie_in_other_memory(name):
    obstacle = next(each.obstacle for each in contrasts.CONTRASTS if each.name == name)
    subject = subject_of(F.relu, torch.ones(2, 3, 4, 4))
    waiting = but(calls={"loop": timing(300)})
    assert obstacle(subject, waiting) == ""
    mapped = but(waiting, work={"mapped_bytes": 384})
    assert obstacle(subject, mapped).startswith("its tensors are in the host's memory")


@pytest.mark.parametrize(
    ("launches", "reason"), [(0.0, ""), (0.4, "other threads also use the GPU")]
)
def test_beside_other_threads_nothing_is_counted(launches, reason):
    obstacle = next(each.obstacle for each in contrasts.CONTRASTS if each.name == "counters")
    found = obstacle(subject_of(abs, 1), but(work={"other_launches": launches}))
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_a_tensor_in_two_places_is_one_tensor_there_too():
    x = torch.ones(3)
    changed = subject_of(torch.add, x, x).with_tensors(moved, "moved")
    assert changed.args[0] is changed.args[1]
    assert changed.args[0] is not x


def test_variables_and_parameters_are_others_there():
    x = torch.ones(3)
    moved_call = subject_of(lambda: (x,)).with_tensors(torch.zeros_like, "zeros")
    assert torch.equal(moved_call.fn()[0], torch.zeros(3))
    layer = torch.nn.Conv2d(2, 2, 3)
    called = subject_of(layer, torch.ones(1, 2, 4, 4)).with_tensors(
        lambda each: (
            each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each
        ),
        "channels_last",
    )
    assert isinstance(called.fn.weight, torch.nn.Parameter)
    assert called.fn.weight.requires_grad
    assert called.fn.weight.is_contiguous(memory_format=torch.channels_last)
    assert called.fn.bias is layer.bias
    assert layer.weight.is_contiguous()


def test_random_numbers_are_spread_like_the_given():
    given = 3 + 2 * torch.randn(10_000)
    made = contrasts._random(given)
    assert made.mean() == pytest.approx(3, abs=0.2)
    assert made.std() == pytest.approx(2, abs=0.2)
    assert contrasts._random(torch.zeros(1000)).std() == pytest.approx(1, abs=0.2)
    whole = torch.arange(3)
    assert contrasts._random(whole) is whole


def test_threads_are_as_before_afterwards(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(Subject, "time", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        host.look_at_threads(subject_of(abs, 1), CLEAN)
    assert torch.get_num_threads() == before


def test_a_fresh_process_times_what_it_is_handed():
    fresh = process.time_in_fresh_one(subject_of(F.relu, torch.ones(4), kwargs={"inplace": False}))
    assert 0 < fresh.median < 1


def test_what_a_fresh_process_cannot_have_is_said():
    def main():
        return None

    main.__module__ = "__main__"
    assert "in the main program" in process.obstacle(subject_of(main), CLEAN)
    assert "before each call" in process.obstacle(subject_of(abs, 1, before=list), CLEAN)
    assert process.obstacle(subject_of(abs, 1), CLEAN) == ""
    with pytest.raises(ValueError, match="cannot be passed to another process"):
        process.time_in_fresh_one(subject_of(lambda: None))
    failing = dataclasses.replace(
        subject_of(abs, 1), again=(sys.executable, "-c", "raise SystemExit('no such call')")
    )
    with pytest.raises(ValueError, match="a fresh process failed: no such call"):
        process.time_in_fresh_one(failing)


def test_of_convolutions_other_ways_are_tried(monkeypatch):
    monkeypatch.setattr(running, "CONTRASTS", ())
    layer = torch.nn.Conv2d(4, 4, 3)
    found = convtime.diagnose(layer, torch.randn(1, 4, 8, 8), device="cpu", budget=30)
    texts = [each.text for each in found.advice]
    assert {"keep input and weight in channels_last", "leave out the bias"} <= set(texts)
    assert all(each.saved is not None for each in found.advice)
    assert [each.saved for each in found.advice] == sorted(
        (each.saved for each in found.advice), reverse=True
    )
    assert "other ways to convolve" in str(found)


def test_the_command_diagnoses_a_statement(tmp_path, capsys):
    out = tmp_path / "out.json"
    given = ["diagnose", "y = torch.relu(x)", "y + 1", "-s", "x = torch.ones(9)"]
    options = ["--device", "cpu", "--budget", "0.05", "--against", "1e-3", "--json", str(out)]
    assert cli.main([*given, *options]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("y = torch.relu(x); y + 1: ")
    assert "1.000 ms as by" in printed
    read = Diagnosis.from_dict(json.loads(out.read_text()))
    assert read.difference.theirs == 1e-3


def test_the_command_tells_a_fresh_process_what_to_time(monkeypatch, capsys):
    seen = {}

    def take(fn, **options):
        seen.update(options)
        raise RuntimeError("enough")

    monkeypatch.setattr("convtime.cli.diagnose.diagnose", take)
    given = ["diagnose", "-s", "x = torch.ones(4)", "--device", "cpu", "torch.relu(x)"]
    assert cli.main(given) == 2
    capsys.readouterr()
    assert seen["again"][:3] == [sys.executable, "-m", "convtime"]
    assert cli.main(seen["again"][3:]) == 0
    measured = convtime.Measurement.from_dict(json.loads(capsys.readouterr().out))
    assert measured.name == "torch.relu(x)"
    assert measured.cache.requested == "warm"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["1 +"], "line 1 of the statement is not valid Python"),
        (["1", "--budget", "0", "--device", "cpu"], "budget must be a positive"),
        (["1", "--against", "nothing.json", "--device", "cpu"], "nothing.json: cannot be read"),
        (["1 / 0", "--device", "cpu"], "line 1 of the statement raised ZeroDivisionError"),
    ],
)
def test_wrong_command_lines_are_one_line(arguments, text, capsys):
    assert cli.main(["diagnose", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert text in captured.err


@pytest.mark.cuda
@pytest.mark.timing
def test_on_a_gpu_a_sleep_is_the_hosts():
    x = torch.randn(1 << 24, device="cuda")

    def call():
        time.sleep(2e-3)
        return torch.relu(x)

    found = convtime.diagnose(call)
    assert found.first == "host-bound"
    assert found.evidence.trace is not None
    assert found.seconds < 30


@pytest.mark.cuda
def test_on_a_gpu_a_missing_wait_is_found():
    x, side = torch.randn(1 << 24, device="cuda"), torch.cuda.Stream()

    def unwaited():
        with torch.cuda.stream(side):
            y = x
            for _ in range(5):
                y = y * 1.01
        return y + 1.0

    def waited():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 1.01
        torch.cuda.current_stream().wait_stream(side)
        return y + 1.0

    wrong, right = (
        serializing.look_at_results(subject_of(fn), CLEAN).serialized for fn in (unwaited, waited)
    )
    assert wrong.repeats
    assert wrong.differing > 0
    assert right.repeats
    assert right.differing == 0


@pytest.mark.cuda
@pytest.mark.parametrize("around", [neighbors.in_a_stream, neighbors.in_a_process])
@pytest.mark.parametrize("eats", neighbors.EATS)
def test_on_a_gpu_neighbours_begin_and_end(around, eats):
    device = torch.device("cuda", torch.cuda.current_device())
    with around(device, eats):
        torch.ones(9, device=device).add_(1)
    torch.cuda.synchronize()


@pytest.mark.cuda
def test_on_a_gpu_tensors_that_are_copied_there_show_that_it_is_used():
    x = torch.randn(1 << 20)
    found = convtime.diagnose(lambda: x.cuda() + 1, budget=QUICK)
    assert found.device.startswith("cuda")


@pytest.mark.cuda
def test_on_a_gpu_a_trace_has_waits_and_copies():
    x = torch.randn(1 << 22)
    candidate = Candidate(lambda: x.cuda().sum().item())
    seen = tracing.trace(Subject(candidate, find_place([candidate], "cuda")), 5)
    assert seen.waits >= 1
    assert seen.pageable > 0
    assert seen.launches >= 2


@pytest.mark.cuda
def test_on_a_gpu_a_call_without_work_for_it_is_diagnosed_as_the_cpus():
    x = torch.ones(1 << 20, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns of graphs without nodes
        found = convtime.diagnose(lambda: x.to("cuda"), budget=2.0)
    assert (found.unused_gpu, found.device) == ("cuda:0", "cpu")
    assert not {"launch-bound", "host-bound"} & {cause.code for cause in found.causes}


@pytest.mark.cuda
def test_a_layout_in_which_the_gpu_has_no_work_is_named():
    xt = torch.randn(2048, 1024, device="cuda").t()
    found = convtime.diagnose(lambda: xt.contiguous(), budget=6.0, counters=False)
    assert found.evidence.contrasts["layout"]["contiguous"].median == 0
    assert "layout" in {cause.code for cause in found.causes}
