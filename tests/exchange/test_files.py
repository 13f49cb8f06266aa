"""Files of measurements: what convtime writes is read, and everything else is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from convtime.core import codec
from convtime.core.errors import InputError
from convtime.exchange.files import read_measurements, write_measurements
from convtime.sweeps import journal
from convtime.sweeps.plan import SweepPlan
from convtime.sweeps.sweep_table import Sweep
from convtime.timing.comparison import Comparison
from tests.helpers.foreign import make, write


def test_what_convtime_writes_is_read(tmp_path: Path) -> None:
    one, other = make(name="a"), make(name="b", seconds=(1e-6,) * 4)
    compared = Comparison({"a": one, "b": other})
    run = {"tests/test_x.py::test_a": one, "b": other}
    both = {"a": one, "b": other}
    named = {name: dataclasses.replace(each, name=name) for name, each in run.items()}
    for measured, expected in ((one, {"a": one}), (compared, both), (run, named)):
        path = tmp_path / "file.json"
        write_measurements(measured, path)
        found = read_measurements(path)
        assert list(found) == list(expected)
        assert list(found.values()) == list(expected.values())
    saved = codec.document("Measurements", {"measurements": {"new": one.to_dict()}})
    assert read_measurements(write(tmp_path / "saved.json", saved))["new"].name == "new"


def test_rows_of_convolutions_are_read(tmp_path: Path) -> None:
    side = make().to_dict()
    del side["provenance"]
    layer = {"names": ["conv1", "conv2"]}
    row = {"layer": layer, "pass_name": "forward", "pytorch": side, "convtime": side}
    row["reproducer"] = "convtime conv …"
    document: Any = codec.document(
        "Convolutions", {"rows": [row], "provenance": {"gpu": "NVIDIA H200"}}
    )
    found = read_measurements(write(tmp_path / "file.json", document))
    assert list(found) == ["conv1 forward: pytorch", "conv1 forward: convtime"]
    expected = {**document["provenance"], "reproducer": "convtime conv …"}
    assert found["conv1 forward: pytorch"].provenance == expected


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
        ("[\n[", "is not valid JSON: .* at line 2, column 2 where it ends"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        (WHOLE.replace('"relu"', r'"\ud800"', 1), r"has \\ud800 in a string, a lone surrogate"),
        (WHOLE.replace("{", '{"queue": "none", ', 1), "the key 'queue' more than once"),
        (WHOLE.replace("4e-06", "NaN"), "NaN"),
        (WHOLE.replace("4e-06", "1e999"), "too large"),
        (WHOLE.replace("4e-06", "9" * 5000), "5000 digits"),
        (WHOLE.replace("4e-06", '"fast"'), r"Expected `float`, got `str` - at `\$.seconds"),
        (WHOLE.replace('"6.', '"99.'), "schema '99"),
        ({}, "must be a Measurement"),
        ({"a": 1, "b": 2}, "the keys 'a', 'b'"),
        ({**COMPARED, "baseline": "c" * 100_000}, "baseline must be one of .*aaa.*, got 'ccc"),
        ({**make().to_dict(), "places": [1]}, "4 samples and 1 places"),
        ({**make().to_dict(), "places": [0, 1, 2, -1]}, r">= 0 - at `\$.places"),
        ({**make().to_dict(), "sm_clocks_hz": [1.0]}, "1 sm_clocks_hz"),
        (without_times_of_the_kernel(), "4 samples and 4 times of 'relu_kernel.*must be known"),
        (codec.document("Measurements", {"measurements": {}}), "length >= 1"),
        (codec.document("Comparison", {"measurements": {"a": {}}, "baseline": "a"}), "missing"),
        (
            codec.document("Convolutions", {"rows": [5], "provenance": 5}),
            "must be an object, got '5'",
        ),
        (codec.document("Sonnet", {}), "got JSON of type 'Sonnet'"),
        (sweep_with_a_bad_control(), "4 samples and 1 places"),
        ({**RUN, "benchmarks": 2 * RUN["benchmarks"]}, "two measurements with the name '<b>.n'"),
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


def test_json_within_a_file_is_read_as_strictly(tmp_path: Path) -> None:
    first = journal.first_line(SweepPlan({"relu": "a"}, {"size": (1,)}))
    for text, said in (
        ("[1e999]", "1e999"),
        ("[" * 100_000, "levels deep"),
        ('{"a": 1, "a": 2}', "more than once"),
        ("5", "cannot be read"),
    ):
        path = write(tmp_path / "file.json", f"{first}{text}\n")
        with pytest.raises(InputError, match=f"^{path}: line 2: .*{said}") as raised:
            read_measurements(path)
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


def test_half_a_letter_is_written_as_its_number(tmp_path: Path) -> None:
    for name, inputs in (("file.json", (r"\udcff",)), ("file.csv", ())):
        write_measurements({"a\ud800": make(inputs=("\udcff",))}, tmp_path / name)
        (found,) = read_measurements(tmp_path / name).values()
        assert (found.name, found.inputs) == (r"a\ud800", inputs)


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


def test_an_extension_of_no_format_is_refused(tmp_path: Path) -> None:
    for name in ("w.html", "w.json.gz"):
        with pytest.raises(InputError, match=r"must end in \.json or \.csv, .*the extension '\."):
            write_measurements(make(), tmp_path / name)
        with pytest.raises(InputError, match=r"must end in \.json, .* got the extension '\."):
            make().save(tmp_path / name)
    assert not any(tmp_path.iterdir())
