"""A diagnosis from call to text, on a CPU: no test of how long anything takes."""

import contextlib
import dataclasses
import json
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import benchmark

import convtime
from convtime import Diagnosis, cli
from convtime.core.errors import InputError
from convtime.diagnosis import contrasts, difference, neighbors, process, serializing
from convtime.diagnosis import diagnose as running
from convtime.diagnosis.diagnosis import Skipped
from convtime.diagnosis.operation import Operation, look_at_calls
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.measure import WorkDevices, find_devices
from tests.helpers.clean_evidence import CLEAN, but, timing
from tests.helpers.measurements import changed, make

QUICK = 0.05  # seconds of budget, which leave out all that takes longer


def operation_of(fn: Any, *args: Any, **options: Any) -> Operation:
    candidate = Candidate(fn, *args, **options)
    return Operation(candidate, find_devices([candidate], None).device)


def contrast_of(name: str) -> contrasts.Contrast:
    return next(each for each in contrasts.CONTRASTS if each.name == name)


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    """A diagnosis whose budget is over before any contrast."""
    return convtime.diagnose(torch.relu, torch.randn(9), device="cpu", budget=QUICK, against=1.0)


def test_a_diagnosis_is_told_and_survives_json(found: Diagnosis) -> None:
    reasons = {each.contrast: each.reason for each in found.skipped}
    assert reasons["cache"].startswith("it would take about 0.8 s, but the budget has 0.")
    assert (found.device, found.evidence.contrasts) == ("cpu", {})
    assert len(found.evidence.calls.first) == 3
    for part in ("where a call's time goes", "not looked at: GPU contrasts", "unexplained"):
        assert part in str(found)
    assert repr(found).startswith("<convtime.Diagnosis relu: ")
    difference = found.difference
    assert difference is not None
    assert difference.assumed
    parts = sum(part.seconds for part in difference.parts)
    assert difference.ours + parts + difference.unexplained == pytest.approx(1.0)
    read = Diagnosis.from_dict(json.loads(json.dumps(found.to_dict())))
    assert read == dataclasses.replace(found, provenance=read.provenance)
    clean = dataclasses.replace(found, causes=(), difference=None)
    assert "no cause was found" in str(clean)
    assert clean.first == "nothing"


@pytest.mark.thorough
def test_on_a_cpu_what_makes_sense_there_is_looked_at() -> None:
    x = torch.zeros(64, 8, 4, 4).transpose(0, 1)
    found = convtime.diagnose(torch.relu, x, device="cpu", budget=100)
    left_out = {each.contrast for each in found.skipped}
    assert left_out <= {"GPU contrasts", "threads", "denormals"}
    expected = {"cache", "pages", "placement", "layout", "data", "process"}
    expected |= {"threads", "one thread"} if "threads" not in left_out else set()
    seen = found.evidence.contrasts
    assert set(seen) == expected | {"denormals"} - left_out
    assert seen["process"]["in a fresh process"].median > 0
    assert found.evidence.host is not None
    assert found.evidence.operators is not None
    assert set(seen["layout"]) == {"as-is", "contiguous", "channels_last"}
    assert set(seen["data"]) == {"as given", "zeros", "random"}
    assert found.evidence.work.remarkable_inputs == 1
    assert "channels_last" in found.details()


def test_a_call_without_work_for_the_gpu_is_said_to_give_it_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the core says it: by method="auto" such a call is timed on the host."""
    on_host = types.SimpleNamespace(method="cpu")

    def of_gpu(told: Any, usual: Any) -> Any:
        return lambda operation, *rest: told if operation.on_gpu else usual(operation, *rest)

    gpu = WorkDevices(torch.device("cuda", 0), (), "asked for")
    monkeypatch.setattr(running, "find_devices", lambda *_: gpu)
    monkeypatch.setattr(Operation, "on_device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(running, "time_work", of_gpu(on_host, contrasts.time_work))
    monkeypatch.setattr(running, "look_at_calls", of_gpu(CLEAN.calls, look_at_calls))
    found = convtime.diagnose(abs, 1, device="cuda:0", budget=QUICK)
    assert (found.unused_gpu, found.device) == ("cuda:0", "cpu")
    assert not found.evidence.on_gpu
    assert found.evidence.calls.first == CLEAN.calls.first
    for shown in (str(found), found._repr_html_()):
        assert shown.count("issues no work on cuda:0") == 1
    assert "launch-bound" not in str(found)


def test_what_fails_in_a_contrast_is_said_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(operation: Any, evidence: Any) -> Any:
        raise RuntimeError("no\nsuch thing")

    broken = dataclasses.replace(contrast_of("host"), look=fail)
    layout = contrast_of("layout")
    monkeypatch.setattr(running, "CONTRASTS", (broken, layout))
    found = convtime.diagnose(torch.relu, torch.ones(2, 3, 4, 4), device="cpu", budget=100)
    assert Skipped("host", "no such thing", "the operating system's effects") in found.skipped
    assert "layout" in found.evidence.contrasts
    with pytest.raises(ZeroDivisionError):
        convtime.diagnose(lambda: 1 / 0, device="cpu", budget=QUICK)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"budget": 0}, ValueError, "budget must be a positive number of seconds, got 0"),
        ({"counters": 1}, TypeError, "counters must be True or False, got 1"),
        ({"device": "tpu"}, ValueError, "device must be cpu, cuda or cuda:N, got 'tpu'"),
        ({"against": -1.0}, InputError, "against must give a number of seconds, .*, got -1.0"),
        ({"against": lambda: "x"}, InputError, "callable against .* got 'x'"),
        ({"against": "no_such_file.json"}, InputError, "no_such_file.json: cannot be read"),
        ({"kwargs": 3}, TypeError, "kwargs must be a mapping of names to values, got 3"),
    ],
)
def test_bad_input_is_one_sentence(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        convtime.diagnose(abs, 1, **{"device": "cpu", "budget": QUICK, **options})
    assert "\n" not in str(raised.value)
    with pytest.raises(TypeError, match="must be callable, got Tensor"):
        convtime.diagnose(torch.ones(1))  # type: ignore[arg-type]


def test_other_tools_numbers(tmp_path: Path) -> None:
    candidate = Candidate(abs, 1)
    assert difference.time_by_other_tool(2, candidate) == (2.0, "")
    assert difference.time_by_other_tool(lambda: 3.0, candidate) == (3.0, "")
    for each in ("timer", benchmark.Timer("1 + 1").timeit(10)):
        seconds, tool = difference.time_by_other_tool(each, candidate)
        assert tool == "torch Timer"
        assert seconds > 0
    measured = make(seconds=(1.0, 2.0, 6.0), sm_clocks_hz=(), activities=())
    assert difference.time_by_other_tool(measured, candidate) == (2.0, "")
    file = tmp_path / "times.json"
    for tool, seconds, name in (
        *(("nvbench", 3.0, "nvbench"), ("torch.utils.benchmark", 2.0, "torch Timer")),
        *(("another", 2.0, ""), ("zeitmesser", 2.0, "")),
    ):
        convtime.write_measurements(changed(measured, provenance={"tool": tool}), file)
        assert difference.time_by_other_tool(file, candidate) == (seconds, name)
    convtime.write_measurements({"a": measured, "b": measured}, file)
    with pytest.raises(InputError, match="against must be a file .* with 2;"):
        difference.time_by_other_tool(str(file), candidate)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="'do_bench' needs a GPU, .*; use against='timer'"):
            difference.time_by_other_tool("do_bench", candidate)


def test_which_contrasts_are_made_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = contrast_of("counters")
    assert counters.cost(but(work={"kernels": 1})) < 2
    assert counters.cost(but(work={"kernels": 400})) > 10
    assert counters.obstacle(operation_of(abs, 1), but(work={"other_launches": 0.0})) == ""
    beside = counters.obstacle(operation_of(abs, 1), but(work={"other_launches": 0.4}))
    assert beside.startswith("other threads also use the GPU")
    # Copies of mapped tensors would be in other memory, so nothing is varied by copies.
    operation, waiting = (
        operation_of(F.relu, torch.ones(2, 3, 4, 4)),
        but(calls={"loop": timing(300)}),
    )
    for name in ("layout", "data", "rotation", "batch", "process"):
        assert contrast_of(name).obstacle(operation, waiting) == "", name
        told = contrast_of(name).obstacle(operation, but(waiting, work={"mapped_bytes": 384}))
        assert told.startswith("its tensors are in the host's memory"), name
    # Calls that ask for memory are traced without what others left in the cache.
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(contrasts, "trace", lambda *_: done.append("traced"))
    for asked in (0.02, 1.0):
        contrast_of("trace").look(operation_of(abs, 1), but(calls={"allocations": asked}))
    assert done == ["traced", "emptied", "traced"]


def test_what_a_fresh_process_cannot_have_is_said() -> None:
    def main() -> None:
        return None

    main.__module__ = "__main__"
    assert "in the main program" in process.obstacle(operation_of(main), CLEAN)
    assert "before each call" in process.obstacle(operation_of(abs, 1, before=list), CLEAN)
    assert process.obstacle(operation_of(abs, 1), CLEAN) == ""
    with pytest.raises(ValueError, match="cannot be passed"):
        process.time_in_fresh_one(operation_of(lambda: None))
    failing = (sys.executable, "-S", "-c", "raise SystemExit('no such call')")
    with pytest.raises(ValueError, match=r"fresh process ended with exit code 1 \(no such call\)"):
        process.time_in_fresh_one(dataclasses.replace(operation_of(abs, 1), again=failing))


@pytest.mark.thorough
def test_of_convolutions_other_ways_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "CONTRASTS", ())
    layer = torch.nn.Conv2d(4, 4, 3)
    found = convtime.diagnose(layer, torch.randn(1, 4, 8, 8), device="cpu", budget=30)
    texts = [each.text for each in found.advice]
    assert {"keep input and weight in channels_last", "leave out the bias"} <= set(texts)
    assert all(each.saved is not None for each in found.advice)
    assert "other ways to convolve" in str(found)


def test_the_command_diagnoses_a_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    given = ["diagnose", "y = torch.relu(x)", "y + 1", "-s", "x = torch.ones(9)", "--device", "cpu"]
    options = ["--budget", "0.05", "--against", "1e-3", "--json", str(out)]
    assert cli.main([*given, *options]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("y = torch.relu(x); y + 1: ")
    assert "1.000 ms as by" in printed
    difference = Diagnosis.from_dict(json.loads(out.read_text())).difference
    assert difference is not None
    assert difference.theirs == 1e-3
    seen: dict[str, Any] = {}

    def take(fn: Any, **options: Any) -> None:
        seen.update(options)
        raise InputError("enough")

    # It tells a fresh process what to time.
    monkeypatch.setattr("convtime.cli.diagnose.diagnose", take)
    assert cli.main(given) == 2
    assert capsys.readouterr().err == "convtime: error: enough\n"
    assert seen["again"][:3] == [sys.executable, "-m", "convtime"]
    assert cli.main(seen["again"][3:]) == 0
    measured = convtime.Measurement.from_dict(json.loads(capsys.readouterr().out))
    assert (measured.name, measured.cache.requested) == ("y = torch.relu(x); y + 1", "warm")


@pytest.mark.cuda
@pytest.mark.timing
def test_on_a_gpu_a_sleep_is_the_hosts() -> None:
    x = torch.randn(1 << 24, device="cuda")

    def call() -> torch.Tensor:
        time.sleep(2e-3)
        return torch.relu(x)

    found = convtime.diagnose(call)
    assert found.first == "host-bound"
    assert found.evidence.trace is not None
    assert found.seconds < 30


@pytest.mark.cuda
def test_on_a_gpu_a_missing_wait_is_found() -> None:
    x, side = torch.randn(1 << 24, device="cuda"), torch.cuda.Stream()

    def beside(*, waits: bool) -> torch.Tensor:
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x
            for _ in range(5):
                y = y * 1.01
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        return y + 1.0

    for waits in (False, True):
        operation = operation_of(beside, kwargs={"waits": waits})
        found = serializing.look_at_results(operation, CLEAN).serialized
        assert found is not None
        assert found.repeats
        assert (found.differing > 0) != waits


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("around", [neighbors.in_a_stream, neighbors.in_a_process])
def test_on_a_gpu_neighbours_begin_and_end(around: Any) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    for resource in neighbors.RESOURCES:
        with around(device, resource):
            torch.ones(9, device=device).add_(1)
        torch.cuda.synchronize()


@pytest.mark.cuda
def test_on_a_gpu_it_is_told_whether_it_is_used() -> None:
    x = torch.randn(1 << 20)
    found = convtime.diagnose(lambda: x.cuda() + 1, budget=QUICK)
    assert found.device.startswith("cuda")
    on_gpu = x.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns of graphs without nodes
        found = convtime.diagnose(lambda: on_gpu.to("cuda"), budget=2.0)
    assert (found.unused_gpu, found.device) == ("cuda:0", "cpu")
    assert not {"launch-bound", "host-bound"} & {cause.code for cause in found.causes}
