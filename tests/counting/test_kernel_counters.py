"""Counters as results: their file, how they are shown, and the command that reads them."""

import dataclasses
import io
import json

import pytest

import convtime
from convtime.cli import main
from convtime.core.errors import InputError
from convtime.core.load import _C
from convtime.counting.metrics import DURATION, GROUPS
from convtime.counting.nvprof import NVPROF
from convtime.counting.results import Counters, Energy, KernelCounters, PeakMemory
from convtime.counting.show import format_value

HIT_RATE = "lts__t_sector_hit_rate.pct"
READ = "dram__bytes_read.sum"
UNITS = {DURATION: "s", READ: "byte", HIT_RATE: "%"}
COUNTERS = Counters(
    name="op",
    kernels=(
        KernelCounters("copy", 2, {DURATION: 1e-6, READ: 200.0}, (8, 1, 1), (128, 1, 1)),
        KernelCounters("scale", 1, {DURATION: 3e-6, READ: 10.0, HIT_RATE: None}),
    ),
    totals={DURATION: 5e-6, READ: 410.0, HIT_RATE: 40.0},
    samples={DURATION: (5e-6,), READ: (410.0,), HIT_RATE: (40.0,)},
    units=UNITS,
    descriptions=dict.fromkeys(UNITS, "CUPTI's words"),
    translated={"dram_read_bytes": {READ: 1.0}},
    method="range profiler",
    replay="call",
    passes=2,
    cache="cold",
    device="cuda:0",
)


def test_counters_are_shown():
    assert repr(COUNTERS) == (
        "<convtime.Counters op: 3 metrics of 3 launches on cuda:0, in 2 passes, cache cold>"
    )
    told = str(COUNTERS)
    for part in ("5.000 µs", "410 B", "40.0 %", "nvprof's name: dram__bytes_read.sum"):
        assert part in told
    details = COUNTERS.details()
    for part in ("copy, grid 8×1×1, block 128×1×1, 2 times", "200 B", "the whole call is repeated"):
        assert part in details
    assert "<td" in COUNTERS._repr_html_()


def test_values_have_units():
    for value, unit, told in (
        (None, "byte", "none"),
        (4194304, "byte", "4.194 MB"),
        (-2e9, "byte", "-2 GB"),
        (3.35e12, "byte/s", "3.35 TB/s"),
        (1.5e-6, "s", "1.500 µs"),
        (99.95, "%", "100.0 %"),
        (131072, "sector", "131,072 sectors"),
        (1, "cta", "1 cta"),
        (2.345678, "instruction/cycle", "2.346 instruction/cycle"),
        (7, "", "7"),
    ):
        assert format_value(value, unit) == told


def test_a_file_of_counters_is_shown_with_what_was_read_beside(tmp_path, capsys):
    counters = dataclasses.replace(
        COUNTERS,
        energy=Energy("op", 0.5, 0.1, 400.0, 2.0, 4, "cuda:0"),
        peak_memory=PeakMemory("op", 2_000_000, 1_000_000, "cuda:0"),
    )
    assert str(counters).splitlines()[-2:] == [str(counters.energy), str(counters.peak_memory)]
    file = tmp_path / "counters.json"
    file.write_text(counters.to_json())
    assert main(["show", str(file), "--json", "-"]) == 0
    again = Counters.from_dict(json.loads(capsys.readouterr().out))
    assert again == counters
    assert isinstance(again.kernels[0], KernelCounters)
    with pytest.raises(InputError, match="must be a Measurement.*, got JSON of type 'Counters'"):
        convtime.read_measurements(file)


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
def test_a_file_of_counters_that_do_not_fit_is_refused(changes, said):
    with pytest.raises(ValueError, match=said) as raised:
        Counters.from_dict(json.loads(json.dumps(COUNTERS.to_dict() | changes)))
    assert str(raised.value).startswith("a Counters ")
    assert len(str(raised.value)) < 200


@pytest.fixture
def asked(monkeypatch):
    """What the command calls for; counters and costs need no GPU."""
    asked = []

    def watch(candidate, *, device):
        if candidate.before is not None:
            candidate.before()
        asked.append((candidate.fn(), candidate.name, candidate.backward, device))
        return PeakMemory(candidate.name, 8, 4, "cuda:0")

    def count(candidate, **options):
        watch(candidate, device=options["device"])
        return dataclasses.replace(COUNTERS, name=candidate.name)

    monkeypatch.setattr("convtime.cli.counters.counters", count)
    monkeypatch.setattr("convtime.cli.counters.energy", lambda *a, **b: watch(*a, **b) and None)
    monkeypatch.setattr("convtime.cli.counters.peak_memory", watch)
    return asked


def test_the_command_counts_what_it_finds_on_standard_input(asked, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("y = x + 1\ny"))
    file = tmp_path / "counters.json"
    given = ["counters", "-", "-s", "x = 2", "--device", "cpu", "--memory", "--json", str(file)]
    assert main(given) == 0
    assert asked[0][0] == 3
    assert "y = x + 1; y: 3 metrics" in capsys.readouterr().out
    assert Counters.from_dict(json.loads(file.read_text())).peak_memory.bytes == 8
    asked.clear()
    given = ["counters", "x", "-s", "x = 0", "--before", "x += 1", "--backward", "--device", "cpu"]
    assert main([*given, "--energy", "--memory"]) == 0
    assert asked == [(1, "x", True, "cpu"), (2, "x", True, "cpu"), (3, "x", True, "cpu")]


def test_the_command_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(_C, "cuda_available", lambda: False)
    assert main(["counters", "torch.relu(x)", "-s", "x = torch.zeros(3)", "--device", "cpu"]) == 2
    said = capsys.readouterr()
    no_gpu = "hardware counters need a GPU, and PyTorch finds no GPU that it can use"
    assert (said.out, said.err) == ("", f"convtime: error: {no_gpu}\n")
    assert main(["counters"]) == 2
    assert "STATEMENT or --list is required" in capsys.readouterr().err
    assert main(["counters", "--list", "dram"]) == 0
    told = capsys.readouterr().out
    for part in ("traffic with the GPU's memory", "dram_write_transactions", f"listed: {no_gpu}"):
        assert part in told
    assert "gld_efficiency" not in told
    assert main(["counters", "--list", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["groups"]) == set(GROUPS)
    assert document["nvprof"]["achieved_occupancy"] == dict(NVPROF["achieved_occupancy"])
