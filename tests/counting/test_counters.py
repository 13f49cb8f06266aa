"""Hardware counters: names, what is made of counts, refusals; and on a GPU, the counters."""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import math
import re
import types

import pytest
import torch

import convtime
from convtime.cli import main
from convtime.core.errors import InputError
from convtime.core.load import _C
from convtime.counting.chip import REFUSALS, explain
from convtime.counting.costs_result import Energy, PeakMemory
from convtime.counting.groups import DURATION, GROUPS
from convtime.counting.kernel_counters import Counters, CountersUnavailable, KernelCounters
from convtime.counting.listing import names_of
from convtime.counting.names import Wanted, describe, resolve, split_names
from convtime.counting.nvprof import NVPROF
from convtime.counting.show import format_value
from convtime.counting.summing import adds_up, make_counters
from convtime.timing.condition import Condition
from convtime.timing.sampling.measure import Place
from tests.helpers.gh100 import Gh100

GH100 = Gh100()
HIT_RATE = "lts__t_sector_hit_rate.pct"
READ = "dram__bytes_read.sum"

# Names.


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_of_metrics_that_there_are(group):
    wanted = resolve([group], GH100)
    assert wanted.left_out == {}
    assert wanted.metrics[0] == DURATION
    assert set(wanted.metrics) == {DURATION, *(each.names[0] for each in GROUPS[group].metrics)}


@pytest.mark.parametrize("old", NVPROF)
def test_a_name_of_nvprofs_is_translated_to_metrics_that_there_are(old):
    wanted = resolve([old], GH100)
    assert wanted.translated == {old: dict(NVPROF[old])}
    assert set(wanted.metrics) == {DURATION, *NVPROF[old]}


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("dram_write_transactions", {"dram__sectors_write.sum": 1}),
        ("dram_read_throughput", {"dram__bytes_read.sum.per_second": 1}),
        ("achieved_occupancy", {"sm__warps_active.avg.pct_of_peak_sustained_active": 0.01}),
        ("gld_efficiency", {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": 1}),
        ("dram_utilization", {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 0.1}),
        (
            "flop_count_sp",
            {
                "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
                "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
                "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
            },
        ),
    ],
)
def test_names_of_nvprofs_mean_what_nvidias_table_says(old, today):
    assert NVPROF[old] == today


def test_a_metric_is_counted_once_whatever_it_is_called():
    wanted = resolve(["dram", "dram_write_transactions", "dram__sectors_write.sum"], GH100)
    assert len(set(wanted.metrics)) == len(wanted.metrics) == 1 + len(GROUPS["dram"].metrics)


def test_a_metric_without_a_suffix_is_its_usual_value():
    metrics = resolve(["dram__bytes_read", "sm__throughput", "lts__t_sector_hit_rate"], GH100)
    assert metrics.metrics[1:] == (
        READ,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "lts__t_sector_hit_rate.ratio",
    )


def test_all_metrics_are_those_that_the_hardware_counts_for_a_kernel():
    metrics = resolve(["all"], GH100).metrics
    assert READ in metrics
    assert len(metrics) > 3000
    assert not [name for name in metrics if name.startswith(("pcie__", "nvlrx__"))]
    assert not [name for name in metrics if "_sass_" in name]


def test_metrics_of_a_group_may_be_missing_or_have_another_name():
    lacking = Gh100(READ, "sm__throughput.avg.pct_of_peak_sustained_elapsed")
    lacking._units["dram__bytes_op_read"] = ("dram__bytes_op_read.sum", "byte", "dram")
    wanted = resolve(["dram", "sm"], lacking)
    assert "dram__bytes_op_read.sum" in wanted.metrics
    assert READ not in wanted.metrics
    assert wanted.left_out == {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": "cuda:0 does not count it"
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("dramm", "no metric or group 'dramm'; did you mean dram"),
        ("dram_write_transaction", "did you mean dram_write_transactions"),
        ("xyzzy", "see convtime.counter_names()"),
        ("", "at least one metric or group"),
        ([], "at least one metric or group"),
        ("dram__bytes_raed.sum", "on cuda:0; did you mean dram__bytes_read.sum"),
        ("dram__bytes_read.total", "there is no metric or group 'dram__bytes_read.total' on"),
        ("pcie__read_bytes.sum", "counts a link of the whole device"),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(asked, said):
    with pytest.raises(ValueError, match=".") as raised:
        resolve(split_names(asked), GH100)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("asked", [3, None, b"dram", ["dram", 3]])
def test_names_are_text(asked):
    with pytest.raises(TypeError, match="metrics must be names, got"):
        split_names(asked)


def test_several_names_may_be_one_text():
    assert split_names("dram, l2,,dram") == split_names(["dram", "l2"]) == ("dram", "l2")


def test_an_old_name_for_what_a_gpu_does_not_count_is_an_error():
    with pytest.raises(ValueError, match=r"nvprof's 'dram_read_bytes' is now dram__bytes_read.sum"):
        resolve(["dram_read_bytes"], Gh100(READ))


def test_units_are_those_that_are_shown():
    asked = ["time", "dram", "l2", "lts__t_requests", "sm__inst_executed.avg.per_cycle_active"]
    wanted = resolve(asked, GH100)
    units = {
        name: (unit, scale) for name, (_, unit, scale) in describe(wanted.metrics, GH100).items()
    }
    assert units[DURATION] == ("s", 1e-9)
    assert units[READ] == ("byte", 1)
    assert units["dram__bytes.sum.per_second"] == ("byte/s", 1)
    assert units["sm__cycles_elapsed.max"] == ("cycle", 1)
    assert units["lts__t_sectors.sum"] == ("sector", 1)
    assert units["lts__t_requests.sum"] == ("request", 1)
    assert units[HIT_RATE] == ("%", 1)


def test_the_list_of_names_begins_with_the_groups():
    listed = names_of(GH100)
    grouped = [each for each in listed if each.group]
    assert listed[: len(grouped)] == tuple(grouped)
    assert {each.group for each in grouped} == set(GROUPS)
    assert len(listed) > 3000
    tensor = names_of(GH100, "TENSOR")
    assert 10 < len(tensor) < 200
    assert str(names_of(GH100, READ)[0]) == "dram__bytes_read.sum [byte]: bytes read"


# What is made of counts.

WANTED = Wanted((DURATION, READ, HIT_RATE), {"dram_read_bytes": {READ: 1.0}}, {})
COPY = ("copy", (8, 1, 1), (128, 1, 1))
SCALE = ("scale", (4, 1, 1), (128, 1, 1))


def made(values, launches=(COPY, SCALE, COPY), unnamed="", wanted=WANTED):
    counted = {"launches": launches, "unnamed": unnamed, "passes": 2, "values": values}
    facts = {
        "name": "op",
        "method": "range profiler",
        "replay": "call",
        "cache": "cold",
        "device": "cuda:0",
    }
    return make_counters(counted, wanted, describe(wanted.metrics, GH100), **facts)


CALL = [[1000, 100, 50], [3000, 10, 90], [1000, 300, 70]]


def test_counts_are_added_and_rates_are_means_over_time():
    counters = made([CALL])
    assert counters.totals[DURATION] == pytest.approx(5e-6)
    assert counters[READ] == counters["dram_read_bytes"] == 410
    assert counters[HIT_RATE] == pytest.approx((50 * 1 + 90 * 3 + 70 * 1) / 5)
    assert [(each.name, each.launches, each.grid) for each in counters.kernels] == [
        ("copy", 2, (8, 1, 1)),
        ("scale", 1, (4, 1, 1)),
    ]
    copy, scale = counters.kernels
    assert copy.values == {DURATION: pytest.approx(1e-6), READ: 200, HIT_RATE: 60}
    assert scale.values == {DURATION: pytest.approx(3e-6), READ: 10, HIT_RATE: 90}


def test_the_median_of_repeats_counts():
    def call(read):
        return [[1000, read, 50]]

    counters = made([call(1), call(100), call(2)], launches=[COPY])
    assert counters.samples[READ] == (1, 100, 2)
    assert counters[READ] == counters.kernels[0].values[READ] == 2


def test_what_the_hardware_does_not_say_is_none():
    counters = made([[[1000, None, None], [3000, 10, None], [1000, 5, 40]]])
    assert counters[READ] is None
    assert counters["dram_read_bytes"] is None
    assert counters[HIT_RATE] == 40
    assert counters.kernels[1].values[HIT_RATE] is None
    json.dumps(counters.to_dict(), allow_nan=False)


def test_kernels_whose_names_are_not_known_are_numbered():
    counters = made([CALL[:2]], unnamed="calls do not launch the same kernels each time")
    assert [each.name for each in counters.kernels] == ["kernel 1", "kernel 2"]
    assert "kernel names are unavailable: calls do not" in str(counters)


def test_an_unknown_name_is_no_total():
    with pytest.raises(KeyError, match="dram__bytes_write"):
        made([CALL])["dram__bytes_write.sum"]


@pytest.mark.parametrize(
    ("metric", "does"),
    [
        (READ, True),
        ("sm__cycles_elapsed.max", True),
        (HIT_RATE, False),
        ("dram__bytes.sum.per_second", False),
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", False),
        ("lts__t_sector_hit_rate.ratio", False),
    ],
)
def test_what_adds_up(metric, does):
    assert adds_up(metric) is does


def test_counters_survive_json():
    counters = made([CALL, CALL])
    again = Counters.from_dict(json.loads(counters.to_json()))
    assert again == counters
    assert isinstance(again.kernels[0], KernelCounters)
    with pytest.raises(ValueError, match="a Counters of schema '9.0' cannot be read"):
        Counters.from_dict({**counters.to_dict(), "schema": "9.0"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"units": {}}, f"must have units for each .*, got none for '{READ}'"),
        ({"descriptions": {}}, "must have descriptions for each"),
        ({"totals": {}}, "must have totals for each"),
        ({"samples": {}}, "must have samples for each"),
        (
            {
                "samples": {DURATION: [1], READ: [], HIT_RATE: [1]},
                "translated": {"old": {DURATION: 1.0, READ: 1.0}},
            },
            r"number of samples for each metric .*'old' stands for, got \[1, 0\]",
        ),
        ({"translated": {"old": {"a" * 1000: 1.0}}}, "must have totals for each .*none for 'aaa"),
        ({"translated": {"old": {}}}, r"'old' stands for, got \[\]"),
        ({"kernels": [{"name": "a", "launches": 1, "values": {"b": 1.0}}]}, "none for 'b'"),
    ],
)
def test_a_file_of_counters_that_do_not_fit_is_refused(tmp_path, capsys, changes, said):
    file = tmp_path / "counters.json"
    file.write_text(json.dumps(made([CALL]).to_dict() | changes))
    assert main(["show", str(file)]) == 2
    told = capsys.readouterr().err
    assert re.search(said, told)
    assert told.startswith(f"convtime: error: {file}: a Counters cannot be read: ")
    assert told.count("\n") == 1
    assert len(told) < len(str(file)) + 200


def test_a_file_of_counters_is_shown_with_what_was_read_beside(tmp_path, capsys):
    counters = dataclasses.replace(
        made([CALL]),
        energy=Energy("op", 0.5, 0.1, 400.0, 2.0, 4, "cuda:0"),
        peak_memory=PeakMemory("op", 2_000_000, 1_000_000, "cuda:0"),
    )
    told = str(counters)
    assert told.splitlines()[-2:] == [str(counters.energy), str(counters.peak_memory)]
    file = tmp_path / "counters.json"
    file.write_text(counters.to_json())
    assert main(["show", str(file)]) == 0
    assert capsys.readouterr().out == f"{told}\n"
    assert main(["show", str(file), "--json", "-"]) == 0
    assert Counters.from_dict(json.loads(capsys.readouterr().out)) == counters
    with pytest.raises(InputError, match="must be a Measurement.*, got JSON of type 'Counters'"):
        convtime.read_measurements(file)


def test_the_command_counts_what_it_finds_on_standard_input(monkeypatch, tmp_path, capsys):
    def count(candidate, **options):
        assert candidate.fn() == 3
        return dataclasses.replace(made([CALL]), name=candidate.name)

    def watch(candidate, *, device):
        return PeakMemory(candidate.name, 8, 4, "cuda:0")

    monkeypatch.setattr("convtime.cli.counters.counters", count)
    monkeypatch.setattr("convtime.cli.counters.peak_memory", watch)
    monkeypatch.setattr("sys.stdin", io.StringIO("y = x + 1\ny"))
    file = tmp_path / "counters.json"
    given = ["counters", "-", "-s", "x = 2", "--device", "cpu", "--memory", "--json", str(file)]
    assert main(given) == 0
    assert "y = x + 1; y: 3 metrics" in capsys.readouterr().out
    assert Counters.from_dict(json.loads(file.read_text())).peak_memory.bytes == 8


def test_the_command_reads_energy_and_memory_of_what_it_counts(monkeypatch, capsys):
    asked = []

    def watch(candidate, *, device):
        candidate.before()
        asked.append((candidate.fn(), candidate.name, candidate.backward, device))

    def count(candidate, **options):
        watch(candidate, device=options["device"])
        return made([CALL])

    monkeypatch.setattr("convtime.cli.counters.counters", count)
    monkeypatch.setattr("convtime.cli.counters.energy", watch)
    monkeypatch.setattr("convtime.cli.counters.peak_memory", watch)
    given = ["counters", "x", "-s", "x = 0", "--before", "x += 1", "--backward", "--device", "cpu"]
    assert main([*given, "--energy", "--memory"]) == 0
    assert asked == [(1, "x", True, "cpu"), (2, "x", True, "cpu"), (3, "x", True, "cpu")]


def test_counters_are_shown():
    counters = made([CALL])
    assert repr(counters) == (
        "<convtime.Counters op: 3 metrics of 3 launches on cuda:0, in 2 passes, cache cold>"
    )
    told = str(counters)
    assert "5.000 µs" in told
    assert "410 B" in told
    assert "nvprof's name: dram__bytes_read.sum" in told
    details = counters.details()
    assert "copy, grid 8×1×1, block 128×1×1, 2 times" in details
    assert "200 B" in details
    assert "the whole call is repeated" in details
    assert "<td" in counters._repr_html_()


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (None, "byte", "none"),
        (4194304, "byte", "4.194 MB"),
        (3.35e12, "byte/s", "3.35 TB/s"),
        (12, "byte", "12 B"),
        (1.5e-6, "s", "1.500 µs"),
        (99.95, "%", "100.0 %"),
        (131072, "sector", "131,072 sectors"),
        (1, "cta", "1 cta"),
        (2.345678, "instruction/cycle", "2.346 instruction/cycle"),
        (7, "", "7"),
    ],
)
def test_values_have_units(value, unit, told):
    assert format_value(value, unit) == told


# Refusals.


@pytest.mark.parametrize("result", REFUSALS)
def test_a_refusal_says_what_to_set_in_one_sentence(result):
    said = explain(result, "CUPTI call failed", "cuda:0")
    assert said.startswith(f"hardware counters of cuda:0 cannot be read ({result}): ")
    assert "\n" not in said
    assert not said.endswith(".")


def test_without_permission_it_says_what_gives_it():
    said = explain("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "", "cuda:0")
    for needed in ("NVreg_RestrictProfilingToAdminUsers=0", "CAP_SYS_ADMIN", "--cap-add=SYS_ADMIN"):
        assert needed in said


def test_what_the_core_refuses_itself_is_told_in_its_words():
    assert explain("kernels uncounted", "CUPTI counted 1 of the 2 kernels", "cuda:0") == (
        "hardware counters of cuda:0 cannot be read: CUPTI counted 1 of the 2 kernels"
    )


def test_other_failures_are_no_state_of_the_machine():
    assert explain("CUPTI_ERROR_INVALID_PARAMETER", "", "cuda:0") is None


def without_gpu(monkeypatch):
    monkeypatch.setattr(_C, "cuda_available", lambda: False)


def test_without_a_gpu_there_are_no_counters(monkeypatch):
    without_gpu(monkeypatch)
    for read in (
        lambda: convtime.counters(torch.relu, torch.zeros(3)),
        lambda: convtime.energy(torch.relu, torch.zeros(3)),
        lambda: convtime.peak_memory(torch.relu, torch.zeros(3)),
        convtime.counter_names,
    ):
        with pytest.raises(CountersUnavailable, match="PyTorch finds no GPU that it can use"):
            read()
    assert issubclass(CountersUnavailable, RuntimeError)


@pytest.mark.skipif(
    torch.cuda.is_available() or not hasattr(_C, "count_kernels"),
    reason="for machines without a GPU, and builds with CUDA",
)
def test_without_a_driver_the_core_says_so():
    count = functools.partial(_C.count_kernels, replays_kernels=False, repeats=1, flush=[])
    for read in (
        lambda: count(call=(print, (), {}, None), metrics=[READ]),
        lambda: _C.describe_metrics([READ]),
        _C.metric_names,
    ):
        with pytest.raises(_C.CuptiError) as raised:
            read()
        assert raised.value.args == ("no CUPTI", "there is no CUDA driver")
    assert explain("no CUPTI", "there is no CUDA driver", "cuda:0") == (
        "hardware counters of cuda:0 cannot be read: there is no CUDA driver"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metrics": "dramm"}, "no metric or group 'dramm'"),
        ({"replay": "range"}, "replay must be one of 'call', 'kernel', got 'range'"),
        (
            {"cache": "rotate"},
            "cache must be 'auto' or one of 'cold', 'cold-clean', 'warm' to read counters",
        ),
        ({"repeats": 0}, "repeats must be a whole number, 1 or more, got 0"),
        ({"repeats": 1.5}, "repeats must be a whole number, 1 or more, got 1.5"),
    ],
)
def test_a_wrong_option_is_told_before_the_machine_is_looked_at(monkeypatch, options, said):
    without_gpu(monkeypatch)
    with pytest.raises(ValueError, match=".") as raised:
        convtime.counters(torch.relu, torch.zeros(3), **options)
    assert said in str(raised.value)


def test_what_is_counted_must_be_callable():
    with pytest.raises(TypeError, match="must be callable"):
        convtime.counters(3)  # type: ignore[arg-type]


# What the core is asked for.


class Core:
    """Stands in for what needs a GPU: it makes the call that it is to count, and notes the rest."""

    def __init__(self):
        self.asked = None
        self.refuses = None

    def count_kernels(self, *, call, **asked):
        if self.refuses:
            raise _C.CuptiError(self.refuses, "CUPTI call failed: f returned something")
        self.asked = asked
        fn, args, kwargs, setup = call
        if setup is not None:
            setup()
        fn(*args, **kwargs)
        values = [[float(place) for place in range(len(asked["metrics"]))]]
        return {"launches": [COPY], "unnamed": "", "passes": 3, "values": [values]}


@pytest.fixture
def core(monkeypatch):
    core, gpu = Core(), torch.device("cuda", 0)
    monkeypatch.setattr(_C, "cuda_available", lambda: True)
    monkeypatch.setattr(_C, "count_kernels", core.count_kernels, raising=False)
    monkeypatch.setattr(_C, "CuptiError", type("CuptiError", (RuntimeError,), {}), raising=False)
    turn = {"exclusive": Condition(True, True)}
    for name, stand_in in {
        "find_place": lambda _candidates, _device: Place(gpu, (), "asked for"),
        "on": lambda _device, _stream: contextlib.nullcontext(),
        "turn_on": lambda *_: contextlib.nullcontext(turn),
        "provenance": lambda _device: {"gpu": "H200"},
        "flush_buffers": lambda _cache, _gpus: [],
        "without_persisting_lines": lambda _cache, _gpus: contextlib.nullcontext(""),
        "GpuChip": lambda _device: GH100,
    }.items():
        monkeypatch.setattr(f"convtime.counting.counters.{name}", stand_in)
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    return core


def test_the_core_counts_the_call_as_asked(core):
    seen: list[object] = []
    counters = convtime.counters(
        lambda *args, **kwargs: seen.append((args, kwargs)),
        1,
        kwargs={"two": 2},
        metrics="dram,dram_read_bytes",
        name="mine",
        before=lambda: seen.append("set up"),
        repeats=2,
        replay="kernel",
        cache="warm",
    )
    assert seen == ["set up", ((1,), {"two": 2})]
    assert core.asked["metrics"][:2] == [DURATION, READ]
    assert core.asked["replays_kernels"] is True
    assert core.asked["repeats"] == 2
    assert (counters.name, counters.cache, counters.replay) == ("mine", "warm", "kernel")
    assert counters["dram_read_bytes"] == counters[READ] == 1
    assert counters.provenance == {"gpu": "H200"}


def test_a_backward_pass_has_its_forward_pass_before_it(core):
    x = torch.ones(3, requires_grad=True)
    convtime.counters(torch.sum, x, backward=True)
    assert x.grad is not None


def test_what_cupti_refuses_is_told(core):
    core.refuses = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    with pytest.raises(CountersUnavailable, match="NVreg_RestrictProfilingToAdminUsers=0"):
        convtime.counters(torch.relu, torch.zeros(3))
    core.refuses = "kernels uncounted"
    with pytest.raises(CountersUnavailable, match="cannot be read: CUPTI call failed"):
        convtime.counters(torch.relu, torch.zeros(3))
    core.refuses = "CUPTI_ERROR_INVALID_OPERATION"
    with pytest.raises(RuntimeError, match="could not be read: CUPTI call failed") as raised:
        convtime.counters(torch.relu, torch.zeros(3))
    assert not isinstance(raised.value, CountersUnavailable)


# The command.


def test_the_command_says_why_there_are_none(monkeypatch, capsys):
    without_gpu(monkeypatch)
    assert main(["counters", "torch.relu(x)", "-s", "x = torch.zeros(3)", "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "convtime: error: hardware counters need a GPU, and PyTorch finds no GPU that it can use\n"
    )


def test_the_command_wants_a_statement(capsys):
    assert main(["counters"]) == 2
    assert "STATEMENT or --list is required" in capsys.readouterr().err


def test_the_command_lists_names_without_a_gpu(monkeypatch, capsys):
    without_gpu(monkeypatch)
    assert main(["counters", "--list", "dram"]) == 0
    told = capsys.readouterr().out
    assert "traffic with the GPU's memory" in told
    assert "dram_write_transactions" in told
    assert "gld_efficiency" not in told
    assert "the metrics of a GPU are not listed: hardware counters need a GPU" in told
    assert main(["counters", "--list", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["groups"]) == set(GROUPS)
    assert document["nvprof"]["achieved_occupancy"] == dict(NVPROF["achieved_occupancy"])


# On a GPU.

MIB = 1 << 20


def floats(count):
    return torch.randn(count, device="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("replay", ["call", "kernel"])
def test_a_large_relu_reads_and_writes_its_tensors(replay):
    x = floats(64 * MIB)  # far more than the L2 cache holds
    counters = convtime.counters(torch.relu, x, metrics=["dram", "time"], replay=replay)
    assert counters[READ] == pytest.approx(x.nbytes, rel=0.1)
    # Some of what it wrote is in the cache when it ends, and some that was there when it began.
    assert counters["dram__bytes_write.sum"] == pytest.approx(x.nbytes, rel=0.3)
    assert counters["dram__sectors_read.sum"] * 32 == pytest.approx(counters[READ], rel=0.01)
    assert counters.replay == replay
    (kernel,) = counters.kernels
    assert kernel.launches == 1
    assert counters.kernels_reason == ""


@pytest.mark.cuda
def test_kernels_are_those_that_a_timing_sees():
    x, weight = floats(64 * 56 * 56).view(1, 64, 56, 56), floats(64 * 64 * 9).view(64, 64, 3, 3)

    def work():
        return torch.relu(torch.nn.functional.conv2d(x, weight, padding=1)).sum()

    counters = convtime.counters(work)
    timed = convtime.time_op(work, method="kernel")
    seen = sorted((each.name, each.grid) for each in timed.activities if each.kind == "kernel")
    counted = itertools.chain.from_iterable(
        [(each.name, each.grid)] * each.launches for each in counters.kernels
    )
    assert sorted(counted) == seen


@pytest.mark.cuda
@pytest.mark.timing
def test_a_warm_cache_is_read_from():
    x = floats(MIB)
    cold = convtime.counters(torch.relu, x, metrics="dram", cache="cold-clean")
    warm = convtime.counters(torch.relu, x, metrics="dram", cache="warm")
    assert cold[READ] > 0.8 * x.nbytes
    assert warm[READ] < 0.5 * x.nbytes


@pytest.mark.cuda
@pytest.mark.parametrize("replay", ["call", "kernel"])
def test_every_group_and_repeat_has_values(replay):
    x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    metrics = [*GROUPS, "achieved_occupancy"]
    counters = convtime.counters(torch.mm, x, x, metrics=metrics, repeats=3, replay=replay)
    assert not [metric for metric, value in counters.totals.items() if value is None]
    assert all(len(values) == 3 for values in counters.samples.values())
    assert 0 < counters["achieved_occupancy"] <= 1
    assert counters["sm__inst_executed_pipe_tensor.sum"] > 0
    assert 1 < counters.passes < 50


@pytest.mark.cuda
def test_all_metrics_in_as_many_passes_as_it_takes():
    counters = convtime.counters(torch.relu, floats(MIB), metrics="all")
    assert counters.passes > 50
    assert len(counters.totals) > 1000
    known = [value for value in counters.totals.values() if value is not None]
    assert len(known) > 0.9 * len(counters.totals)
    assert all(map(math.isfinite, known))


@pytest.mark.cuda
def test_this_gpu_has_the_groups_and_knows_nearest_names():
    listed = {each.name for each in convtime.counter_names()}
    assert DURATION in listed
    assert {each.group for each in convtime.counter_names() if each.group} == set(GROUPS)
    with pytest.raises(ValueError, match="did you mean"):
        convtime.counters(torch.relu, floats(8), metrics="sm__cycles_elapse.max")


@pytest.mark.cuda
def test_calls_that_launch_other_kernels_each_time_are_refused():
    x, times = floats(MIB), itertools.count()

    def work():
        for _ in range(next(times) % 2 + 1):
            torch.relu(x)

    with pytest.raises(ValueError, match="do not launch the same kernels each time"):
        convtime.counters(work, metrics="time", replay="call")
    counters = convtime.counters(work, metrics="time")
    assert counters.kernels_reason


@pytest.mark.cuda
def test_a_call_without_kernels_is_refused():
    with pytest.raises(ValueError, match="launches no kernel"):
        convtime.counters(lambda: None, device="cuda")


@pytest.mark.cuda
def test_a_call_that_fails_passes_its_error_on_and_leaves_nothing():
    x, calls = floats(MIB), itertools.count()

    def work():
        if next(calls) == 3:  # after the first, and the two that are traced
            raise ZeroDivisionError
        return torch.relu(x)

    with pytest.raises(ZeroDivisionError):
        convtime.counters(work)
    assert convtime.counters(torch.relu, x, metrics="dram")[READ] > 0
    assert convtime.time_op(torch.relu, x).method == "kernel"


@pytest.mark.cuda
def test_counters_are_refused_while_a_profiler_runs_and_work_behind_it():
    x = floats(MIB)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.relu(x)
        with pytest.raises(RuntimeError, match=r"cannot be read: a torch.profiler session"):
            convtime.counters(torch.relu, x, metrics="dram")
        torch.relu(x)
        torch.cuda.synchronize()
    assert sum("relu" in each.name or "elementwise" in each.name for each in profile.events()) >= 2
    assert convtime.counters(torch.relu, x, metrics="dram")[READ] > 0
    with torch.profiler.profile(activities=activities) as profile:
        torch.relu(x)
        torch.cuda.synchronize()
    assert list(profile.events())


@pytest.mark.cuda
def test_counters_within_a_timing_are_refused():
    x = floats(MIB)
    with pytest.raises(RuntimeError, match="another timing or recording of this process"):
        convtime.time_op(lambda: convtime.counters(torch.relu, x), method="kernel")


@pytest.mark.cuda
@pytest.mark.timing
def test_a_timing_after_counters_equals_one_before():
    x = floats(MIB)
    before = convtime.time_op(torch.relu, x)
    convtime.counters(torch.relu, x)
    after = convtime.time_op(torch.relu, x)
    # A profiler that is left initialised doubles it.
    assert after.median / before.median < 1.3
    assert after.method == "kernel"


@pytest.mark.cuda
def test_a_backward_pass_is_counted_without_its_forward_pass():
    x = floats(64 * MIB).requires_grad_()
    counters = convtime.counters(torch.relu, x, backward=True, metrics="dram")
    assert counters[READ] == pytest.approx(2 * x.nbytes, rel=0.1)  # gradient and result


def graph_of(kernels, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            torch.relu(x)
    return graph


@pytest.mark.cuda
@pytest.mark.parametrize("replay", ["call", "kernel"])
def test_a_graph_of_one_kernel_is_counted(replay):
    x = floats(64 * MIB)
    graph = graph_of(1, x)
    counters = convtime.counters(graph.replay, metrics="dram", replay=replay, device="cuda")
    assert counters[READ] == pytest.approx(x.nbytes, rel=0.1)


@pytest.mark.cuda
@pytest.mark.timing
@pytest.mark.parametrize("replay", ["call", "kernel"])
@pytest.mark.parametrize("kernels", [2, 3])
def test_a_graph_of_several_kernels_is_refused(kernels, replay):
    x = floats(MIB)
    graph = graph_of(kernels, x)
    said = rf"counted \d of the {kernels} kernels that .* count the call that was captured"
    with pytest.raises(CountersUnavailable, match=said):
        convtime.counters(graph.replay, metrics="dram", replay=replay, device="cuda")
    assert convtime.counters(torch.relu, x, metrics="dram")[READ] > 0


@pytest.mark.cuda
def test_calls_that_replay_other_graphs_each_time_are_refused():
    x = floats(MIB)
    graphs = itertools.cycle([graph_of(1, x), graph_of(2, x)])
    with pytest.raises(CountersUnavailable, match="some of them in CUDA graphs"):
        convtime.counters(lambda: next(graphs).replay(), metrics="dram", device="cuda")
