from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pandas
import pytest
import torch
import torch.utils.benchmark
from hypothesis import strategies

import convtime
from convtime import cli
from convtime.core import codec
from convtime.core.errors import InputError
from convtime.exchange.files import document_of, read_measurements, write_measurements
from convtime.sweeps import files as sweeps
from convtime.sweeps.plan import SweepPlan
from convtime.sweeps.result import Sweep
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Measurement
from tests.helpers.measurements import make as make_any


def make(**changes: Any) -> Measurement:
    """One in which there is something for each sample, or nothing for any."""
    if "seconds" in changes:
        changes = {"sm_clocks_hz": (), "activities": ()} | changes
    return make_any(**changes)


def write(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def assert_says_that_nothing_is_known(one: Measurement, tool: str) -> None:
    assert {one.method, one.queue, one.cache, one.placement, one.pages, one.regime} == {"unknown"}
    assert (one.clocks, one.stop, one.warmup_calls, one.first_call_seconds) == (
        *("unknown", "unknown"),
        *(None, None),
    )
    assert tool in one.cache.reason
    assert re.search("warm-up: *unknown", one.details())
    assert Measurement.from_dict(json.loads(one.to_json())) == one


def test_what_convtime_writes_is_read(tmp_path: Path) -> None:
    one, other = make(name="a"), make(name="b", seconds=(1e-6,) * 4)
    compared = Comparison({"a": one, "b": other})
    run = {"tests/test_x.py::test_a": one, "b": other}
    both = {"a": one, "b": other}
    named = {name: dataclasses.replace(each, name=name) for name, each in run.items()}
    for measured, expected in ((one, {"a": one}), (compared, both), (run, named)):
        path = tmp_path / "file.json"
        convtime.write_measurements(measured, path)
        found = convtime.read_measurements(path)
        assert list(found) == list(expected)
        assert list(found.values()) == list(expected.values())
    saved = {"schema": "1.0", "measurements": {"new": one.to_dict()}}
    assert read_measurements(write(tmp_path / "saved.json", saved))["new"].name == "new"


def test_rows_of_convolutions_are_read(tmp_path: Path) -> None:
    side = make().to_dict()
    del side["provenance"]
    layer = {"names": ["conv1", "conv2"]}
    row = {"layer": layer, "pass_name": "forward", "pytorch": side, "convtime": side}
    row["reproducer"] = "convtime conv …"
    document = {"schema": "3.3", "rows": [row], "provenance": {"gpu": "NVIDIA H200"}}
    found = read_measurements(write(tmp_path / "file.json", document))
    assert list(found) == ["conv1 forward: pytorch", "conv1 forward: convtime"]
    assert found["conv1 forward: pytorch"].provenance == {
        "gpu": "NVIDIA H200",
        "reproducer": "convtime conv …",
    }


# pytest-benchmark


def run_pytest_benchmark(folder: Path, *options: str) -> None:
    write(
        folder / "test_it.py",
        "def test_sum(benchmark):\n    benchmark.pedantic(sum, ([1],), rounds=7, iterations=3)\n",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    # By a variable of xdist's, pytest-benchmark would take itself for a worker's, and do nothing.
    own = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_benchmarks_own_files_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    run_pytest_benchmark(tmp_path, "--benchmark-json=full.json", "--benchmark-save=short")
    (one,) = read_measurements(tmp_path / "full.json").values()
    theirs = json.loads((tmp_path / "full.json").read_text())["benchmarks"][0]
    assert one.name == "test_it.py::test_sum"
    assert list(one.seconds) == theirs["stats"]["data"]
    # Not the medians: ours lies within the clock's tick where samples are equal.
    assert (one.min, one.max) == (theirs["stats"]["min"], theirs["stats"]["max"])
    assert "mean of 3 calls" in one.method.reason
    assert_says_that_nothing_is_known(one, "pytest-benchmark")

    (short,) = tmp_path.glob(".benchmarks/*/*.json")
    with pytest.raises(InputError, match="no samples .* --benchmark-save-data"):
        read_measurements(short)


# nvbench


def nvbench_document(*states: dict[str, Any]) -> dict[str, Any]:
    """As nvbench's json_printer has it."""
    return {
        "meta": {"argv": ["bench"]},
        "devices": [{"id": 0, "name": "NVIDIA H200", "sm_default_clock_rate": 1980000000}],
        "benchmarks": [{"name": "copy", "devices": [0], "axes": None, "states": list(states)}],
    }


def nvbench_state(name: str, **files: tuple[str, Any]) -> dict[str, Any]:
    tags = {
        "times": "nv/json/bin:nv/cold/sample_times",
        "clocks": "nv/json/freqs-bin:nv/cold/sample_freqs",
    }
    summaries = [
        {
            "tag": tags[kind],
            "data": [
                {"name": "filename", "type": "string", "value": path},
                {"name": "size", "type": "int64", "value": str(count)},
            ],
        }
        for kind, (path, count) in files.items()
    ]
    return {"name": name, "device": 0, "summaries": summaries, "is_skipped": False}


def numbers(path: Path, *values: float) -> None:
    path.parent.mkdir(exist_ok=True)
    np.array(values, dtype="<f4").tofile(path)


def test_nvbenchs_samples_and_clocks_are_read(tmp_path: Path) -> None:
    numbers(tmp_path / "r.json-bin" / "0.bin", 1e-5, 2e-5, 4e-5)
    numbers(tmp_path / "r.json-freqs-bin" / "0.bin", 1.98e9, 1.5e9, 1.98e9)
    skipped = {"name": "N=2", "is_skipped": True, "skip_reason": "too <large>", "summaries": None}
    state = nvbench_state(
        "Device=0 N=1",
        times=("elsewhere/r.json-bin/0.bin", 3),
        clocks=("elsewhere/r.json-freqs-bin/0.bin", 3),
    )
    path = write(tmp_path / "r.json", nvbench_document(state, skipped))
    with pytest.warns(UserWarning, match="skipped 'copy \\[N=2\\]': 'too <large>'"):
        ((name, one),) = read_measurements(path).items()
    assert name == one.name == "copy [Device=0 N=1]"
    assert one.seconds == (1e-5, 2e-5, 4e-5)
    assert one.sm_clocks_hz == (1.98e9, 1.5e9, 1.98e9)
    assert one.throttled == (False, True, False)
    assert (one.device, one.provenance["gpu"]) == ("cuda:0", "NVIDIA H200")
    assert_says_that_nothing_is_known(one, "nvbench")


def test_the_command_line_says_in_a_line_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers(tmp_path / "r.json-bin" / "0.bin", 1e-5, 2e-5, 4e-5)
    skipped = {"name": "N=2", "is_skipped": True, "skip_reason": "too\nlarge"}
    document = nvbench_document(nvbench_state("N=1", times=("r.json-bin/0.bin", 3)), skipped)
    path = write(tmp_path / "r.json", document)
    assert cli.main(["show", str(path)]) == 0
    printed = capsys.readouterr()
    expected = f"convtime: warning: {path}: nvbench skipped 'copy [N=2]': 'too\\nlarge'\n"
    assert printed.err == expected
    assert "copy [N=1]" in printed.out


@pytest.mark.parametrize(
    ("filename", "size", "error"),
    [
        ("r.json-bin/none.bin", 3, "must be next to it"),
        ("/etc/passwd", 3, "must be next to it"),
        ("../../r.json-bin/../0.bin", 3, "must be next to it"),
        ("r.json-bin/0.bin", 2, "must contain the 2 numbers"),
        ("r.json-bin/nan.bin", 1, "finite numbers"),
        (
            "r.json-bin/0.bin",
            "abc",
            "r.json: the size of '0.bin' must be a whole number, got 'abc'",
        ),
        ("r.json-bin/0.bin", 3.5, "must be a whole number, got '3.5'"),
        ("r.json-bin/0.bin", "9" * 5000, "must be a whole number, got '999"),
        ("r.json-bin/\0.bin", 3, "must be next to it"),
        ("r.json-bin/" + "a" * 5000, 3, "'aaa.* cannot be read .File name too long"),
    ],
)
def test_nvbenchs_side_files_are_checked(
    filename: str, size: Any, error: str, tmp_path: Path
) -> None:
    numbers(tmp_path / "r.json-bin" / "0.bin", 1e-5, 2e-5, 4e-5)
    numbers(tmp_path / "r.json-bin" / "nan.bin", np.nan)
    state = nvbench_state("Device=0", times=(filename, size))
    with pytest.raises(InputError, match=error):
        read_measurements(write(tmp_path / "r.json", nvbench_document(state)))


@pytest.mark.parametrize("link", ["r.json-bin", "r.json-bin/0.bin"])
def test_nvbenchs_side_files_may_not_be_links(link: str, tmp_path: Path) -> None:
    numbers(tmp_path / "r.json-bin" / "0.bin", 1e-5, 2e-5, 4e-5)
    (tmp_path / link).rename(tmp_path / "elsewhere")
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    state = nvbench_state("Device=0", times=("r.json-bin/0.bin", 3))
    with pytest.raises(InputError, match="got a link in 'r.json-bin/0.bin'; replace it by a copy"):
        read_measurements(write(tmp_path / "r.json", nvbench_document(state)))


def test_a_folder_of_nvbenchs_files_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    numbers(tmp_path / "link" / "0.bin", 1e-5, 2e-5, 4e-5)
    numbers(tmp_path / "link" / "bin" / "1.bin", 1e-5, 2e-5)
    document = nvbench_document(
        nvbench_state("N=1", times=("0.bin", 3)), nvbench_state("N=2", times=("bin/1.bin", 2))
    )
    assert len(read_measurements(write(tmp_path / "link" / "r.json", document))) == 2


def test_nvbench_without_samples_is_told_how_to_keep_them(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", nvbench_document(nvbench_state("Device=0")))
    with pytest.raises(InputError, match="no samples .*--jsonbin"):
        read_measurements(path)


# torch.utils.benchmark


def test_torchs_measurements_and_tables_are_read() -> None:
    timers = [
        torch.utils.benchmark.Timer("x + y", "x = y = 1", label="add", description=description)
        for description in ("one", "two")
    ]
    theirs = [timer.timeit(10) for timer in timers for _ in range(2)]
    for source in (theirs, torch.utils.benchmark.Compare(theirs)):
        found = read_measurements(source)
        assert list(found) == ["add, one", "add, two"]
        one = found["add, one"]
        assert one.seconds == pytest.approx([theirs[0].median, theirs[1].median])
        assert "mean of 10 calls" in one.method.reason
        assert one.provenance["stmt"] == "x + y"
        assert_says_that_nothing_is_known(one, "torch.utils.benchmark")
    assert len(read_measurements(theirs[0])["add, one"].seconds) == 1


def test_torch_and_back_loses_nothing() -> None:
    compared = Comparison({"a": make(name="a"), "b": make(name="b", seconds=(1e-6,) * 4)})
    table = torch.utils.benchmark.Compare(compared.to_torch(label="ops"))
    assert "ops" in str(table)
    assert read_measurements(table) == dict(compared.measurements)


# pandas and CSV


def test_frames_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'convtime\[frame\]'") as raised:
        make().to_frame()
    assert isinstance(raised.value, ImportError)  # as for pictures without vl-convert


def test_frames_and_csv_keep_samples_and_conditions(tmp_path: Path) -> None:
    compared = Comparison({"a": make(name="a"), "b": make(name='b, "quoted"\nand more')})
    path = tmp_path / "file.csv"
    write_measurements(compared, path)
    sources: list[Any] = [path, compared.to_frame(), pandas.read_csv(path)]
    for source in sources:
        found = read_measurements(source)
        assert list(found) == ["a", "b"]
        one, expected = found["a"], compared.measurements["a"]
        assert (one.seconds, one.discarded) == (expected.seconds, expected.discarded)
        assert one.sm_clocks_hz == expected.sm_clocks_hz
        assert (one.method, one.cache, one.regime) == ("event", "cold", "as-is")
        assert (one.method.requested, one.clocks) == ("unknown", "unknown")
        assert one.provenance["gpu"] == "NVIDIA H200"
    few = pandas.DataFrame({"name": ["a", "a"], "seconds": [1e-6, 2e-6]})
    assert_says_that_nothing_is_known(read_measurements(few)["a"], "data frame")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no measurement"),
        ("name,time\na,1\n", "has no seconds"),
        ("name,seconds\na,fast\n", "sample 1: seconds must be a number, got 'fast'"),
        ("name,seconds\na,1\na,inf\n", "sample 2: seconds must be a number, got 'inf'"),
        ("name,seconds\na,1\na,\n", "sample 2 has no seconds"),
        ("name,seconds\na,1\na\n", "line 3 must have one cell per column, got fewer"),
        ("name,seconds,discarded\na,1,perhaps\n", "discarded must be True or False"),
        ("name,seconds,discarded\na,1,True\n", "all samples of 'a' are discarded"),
        ("name,seconds,method\na,1,kernel\na,1,event\n", "more than one method"),
        ('name,seconds\n"a,1\n', "not valid CSV"),
        ("name,seconds\na,1\na,1,5\n", "line 3 must have one cell per column, got more"),
        ("name,seconds,seconds\na,1,2\n", "the column 'seconds' more than once"),
    ],
)
def test_bad_csv_is_one_sentence(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=error) as raised:
        read_measurements(write(tmp_path / "file.csv", text))
    assert "\n" not in str(raised.value)
    assert "file.csv" in str(raised.value)


@pytest.mark.parametrize("name", ["a\rb", "\r\n", '"', " a, ", "\n", "NA"])
def test_csv_keeps_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    write_measurements({name: make(), "b": make()}, path)
    assert list(read_measurements(path)) == [name, "b"]
    assert b"gpu\n" in path.read_bytes()


@pytest.mark.parametrize(
    ("columns", "rows", "error"),
    [
        (["name", "seconds"], [["a", 10**400]], "sample 1: seconds must be at most 1.8e.308"),
        (["name", "seconds"], [["a", None]], "sample 1 has no seconds"),
        (["name", "seconds"], [[pandas.NA, 1.0]], "sample 1 has no name"),
        (["name", "seconds", "name"], [["a", 1.0, "b"]], "the column 'name' more than once"),
    ],
)
def test_a_bad_data_frame_is_one_sentence(
    columns: list[str], rows: list[list[Any]], error: str
) -> None:
    with pytest.raises(InputError, match=f"^the data frame: .*{error}"):
        read_measurements(pandas.DataFrame(rows, columns=columns))


# Bad input


def without_times_of_the_kernel() -> dict[str, Any]:
    one = make()
    (kernel,) = one.activities
    unknown = dataclasses.replace(kernel, seconds=(None,) * 4)
    return dataclasses.replace(one, activities=(unknown,)).to_dict()


def sweep_with_a_bad_control() -> dict[str, Any]:
    plan = SweepPlan({"relu": "a"}, {"size": (1,)})
    visit = dataclasses.replace(plan.control, measurement=make(places=(1,)))
    return Sweep(plan, (), (visit,)).to_dict()


COMPARED = Comparison({name: make(name=name) for name in ("a" * 100_000, "b")}).to_dict()
WHOLE = json.dumps(make().to_dict())
RUN: dict[str, Any] = {
    "machine_info": {},
    "benchmarks": [{"fullname": "<b>\n", "stats": {"data": [1.0]}}],
}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (WHOLE[:200], "is not valid JSON: .* at column"),
        ("", "is not valid JSON"),
        ("PK\x03\x04", "is not valid JSON"),
        ("[\n[", "is not valid JSON: .* at line 2, column 2 where it ends"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        ("[" * 101 + "]" * 101, "nested more than 100 levels deep"),
        (WHOLE.replace('"relu"', r'"\ud800"', 1), r"has \\ud800 in a string, a lone surrogate"),
        (WHOLE.replace("{", '{"\\udfff": 1, ', 1), r"has \\udfff in a string"),
        (WHOLE.replace("{", '{"queue": "none", ', 1), "the key 'queue' more than once"),
        (WHOLE.replace("4e-06", "NaN"), "NaN"),
        (WHOLE.replace("4e-06", "1e999"), "too large"),
        (WHOLE.replace("4e-06", "9" * 5000), "5000 digits"),
        (WHOLE.replace("4e-06", '"fast"'), r"Expected `float`, got `str` - at `\$.seconds"),
        (WHOLE.replace('"6.', '"99.'), "schema '99"),
        ([], "JSON that begins with"),
        ({}, "must be a Measurement"),
        ({"a": 1, "b": 2}, "the keys 'a', 'b'"),
        ({"a" * 100_000: 1}, "the keys 'aaa"),
        ({**COMPARED, "baseline": "c" * 100_000}, "baseline must be one of .*aaa.*, got 'ccc"),
        ({**make().to_dict(), "places": [1]}, "4 samples and 1 places"),
        ({**make().to_dict(), "places": [0, 1, 2, -1]}, r">= 0 - at `\$.places"),
        ({**make().to_dict(), "batches": [0, 1, 2, 2**64]}, r"<= \d+ - at `\$.batches"),
        ({**make().to_dict(), "overhead_uncertainty": -1}, ">= 0.0 - at `.*overhead_uncertainty"),
        ({**make().to_dict(), "clock_tick": -1e-9}, ">= 0.0 - at `.*clock_tick"),
        ({**make().to_dict(), "sm_clocks_hz": [1.0]}, "1 sm_clocks_hz"),
        (without_times_of_the_kernel(), "4 samples and 4 times of 'relu_kernel.*must be known"),
        (codec.document("Measurements", {"measurements": {}}), "no measurement"),
        (codec.document("Measurements", {"measurements": {"a": 5}}), "Expected `object`"),
        ({"measurements": {"a": {}}, "baseline": "a", "schema": "1.0"}, "missing"),
        (codec.document("Convolutions", {"rows": [5]}), "not those of convtime's convolutions"),
        (codec.document("Convolutions", {"rows": []}), "no measurement"),
        (
            codec.document("Convolutions", {"rows": [5], "provenance": 5}),
            "its provenance must be an object, got '5'",
        ),
        (codec.document("Sonnet", {}), "got JSON of type 'Sonnet'"),
        (sweep_with_a_bad_control(), "4 samples and 1 places"),
        ({**RUN, "benchmarks": []}, "no measurement"),
        ({**RUN, "benchmarks": 5}, "Expected `array`"),
        (
            {**RUN, "benchmarks": [*RUN["benchmarks"], *RUN["benchmarks"]]},
            "two measurements with the name '<b>.n'",
        ),
        ({"benchmarks": [{"states": [5], "name": ""}]}, "Expected `object`"),
    ],
)
def test_bad_files_are_one_sentence(document: object, error: str, tmp_path: Path) -> None:
    path = write(tmp_path / "file.json", document)
    with pytest.raises(InputError, match=error) as raised:
        read_measurements(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) + 400


def in_a_sweep(line: str) -> str:
    plan = SweepPlan({"relu": "a"}, {"size": (1,)})
    return f"{sweeps.first_line(plan)}{line}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NaN", "NaN"),
        ("[1e999]", "1e999"),
        ("[" * 100_000, "levels deep"),
        ('{"a": 1, "a": 2}', "more than once"),
        ("{", "not valid JSON"),
        ("5", "cannot be read"),
    ],
)
def test_json_within_a_file_is_read_as_strictly(text: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "file.json", in_a_sweep(text))
    with pytest.raises(InputError, match=f": line 2: .*{said}") as raised:
        read_measurements(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) + 400


def test_json_may_be_deep_and_have_any_letter(tmp_path: Path) -> None:
    deep: Any = "\U0001f600\\ud800"
    for _ in range(98):
        deep = [deep]
    one = make(provenance={"deep": deep})
    found = read_measurements(write(tmp_path / "file.json", one.to_json()))
    assert found == {"relu": one}
    write_measurements(found["relu"], tmp_path / "again.json")
    assert read_measurements(tmp_path / "again.json") == found


@pytest.mark.parametrize("name", ["file.json", "file.csv"])
def test_half_a_letter_is_written_as_its_number(name: str, tmp_path: Path) -> None:
    one = make(inputs=("\udcff",))
    write_measurements({"a\ud800": one}, tmp_path / name)
    (found,) = read_measurements(tmp_path / name).values()
    assert found.name == r"a\ud800"
    assert found.inputs == ((r"\udcff",) if name != "file.csv" else ())


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_measurements(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read .embedded null byte"):
        read_measurements("a\0b.json")
    with pytest.raises(InputError, match="Is a directory"):
        read_measurements(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_measurements(tmp_path / "binary")
    with pytest.raises(InputError, match="got an object of type int"):
        read_measurements(5)
    for name in ("x", "x.csv"):
        with pytest.raises(InputError, match="x.*: .* at least one measurement"):
            write_measurements({}, tmp_path / name)
    with pytest.raises(InputError, match=r"x\.csv: each measurement must have a name in CSV"):
        write_measurements({"": make()}, tmp_path / "x.csv")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["w.html", "w.md", "w.pkl", "w.json.gz"])
def test_an_extension_of_no_format_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(InputError, match=r"must end in \.json or \.csv, .* got the extension '\."):
        write_measurements(make(), path)
    with pytest.raises(InputError, match=r"must end in \.json, .* got the extension '\."):
        make().save(path)
    assert not path.exists()


@pytest.mark.parametrize("facts", [{"git": "abc"}, {"git": 5, "date": 5, "gpu": [], "cpu": {}}])
def test_a_provenance_may_be_anything(facts: dict[str, Any], tmp_path: Path) -> None:
    write_measurements(make(provenance=facts), tmp_path / "x")
    assert read_measurements(tmp_path / "x")["relu"].provenance == facts


def test_names_stay_as_they_are(tmp_path: Path) -> None:
    found = read_measurements(write(tmp_path / "file.json", RUN))
    assert list(found) == ["<b>\n"]
    assert "<b>" not in found["<b>\n"]._repr_html_()
    assert codec.finite(found["<b>\n"].median) == 1.0


def places_in(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something else could stand in a document."""
    found = [path]
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(len(document))
        for key in keys:
            found += places_in(document[key], (*path, key))
    return found


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


DOCUMENTS: list[Any] = [
    make().to_dict(),
    Comparison({"a": make(name="a"), "b": make(name="b")}).to_dict(),
    document_of({"a": make(name="a")}),
    RUN | {"commit_info": {"id": "abc", "dirty": False}, "version": "5", "datetime": "2026"},
    nvbench_document(nvbench_state("Device=0 N=1", times=("r.json-bin/0.bin", 3))),
]
ANYTHING = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-(2**70), 2**70)
    | strategies.floats(allow_nan=False, allow_infinity=False)
    | strategies.sampled_from(["", "<script>", "\x00\x1b[31m", "é" * 500, "kernel", "1e999"]),
    lambda inner: (
        strategies.lists(inner, max_size=2)
        | strategies.dictionaries(strategies.sampled_from(["a", "name", "data"]), inner, max_size=2)
    ),
    max_leaves=3,
)


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(data=strategies.data())
def test_a_document_with_something_else_in_it_is_read_or_refused(data: Any) -> None:
    document = json.loads(data.draw(strategies.sampled_from(list(map(json.dumps, DOCUMENTS)))))
    place = data.draw(strategies.sampled_from(places_in(document)))
    document = replaced(document, place, data.draw(ANYTHING))
    with tempfile.TemporaryDirectory() as folder:
        numbers(Path(folder) / "r.json-bin" / "0.bin", 1e-5, 2e-5, 4e-5)
        path = write(Path(folder) / "r.json", document)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = read_measurements(path)
        except InputError as error:
            assert str(error).startswith(folder)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            return
    for measured in found.values():
        assert str(measured)
        assert measured.details()
        assert measured._repr_html_()
        assert Measurement.from_dict(json.loads(measured.to_json())) == measured
