"""Any result goes to a file and back, also from files of earlier versions."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

import convtime
from convtime.cli import main
from convtime.core.codec import SCHEMA, Stored
from convtime.storage.load import TYPES
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio
from tests.helpers import TESTS
from tests.helpers.measurements import make

# A file of each type, as convtime wrote it before files named their type.
EARLIER = sorted((TESTS / "data" / "earlier").iterdir())


def of_each_type(folder: Path) -> dict[str, Stored]:
    """The earlier files' results, as they are read."""
    found = {path.name: convtime.load(path) for path in EARLIER}
    return {name: each for name, each in found.items() if isinstance(each, Stored)}


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.name)
def test_an_earlier_file_is_read_and_written_anew(path: Path, tmp_path: Path, capsys) -> None:
    assert "type" not in path.read_text().partition("\n")[0][:20]
    found = convtime.load(path)
    kind = path.stem.removesuffix("File")
    new = tmp_path / "new.json"
    assert main(["show", str(path), "--json", str(new)]) == 0
    shown = capsys.readouterr().out
    again = convtime.load(new)
    if isinstance(found, Stored):
        assert type(found).__name__ == kind
        assert json.loads(new.read_text())["type"] == kind
        assert isinstance(again, Stored)
        assert again.to_dict() == found.to_dict()
    else:
        assert kind in ("Measurements", "Convolutions")
        assert again == found
    assert json.loads(new.read_text())["schema"] == SCHEMA
    assert main(["show", str(new)]) == 0
    assert capsys.readouterr().out == shown


def test_every_type_has_an_earlier_file_or_is_new() -> None:
    earlier = {path.stem.removesuffix("File") for path in EARLIER}
    new = {
        *("Baseline", "ComparisonTable", "Energy", "EngineTable", "History", "PeakMemory", "Plans"),
        *("Proof", "Race", "Survey", "Upgrade"),
    }
    assert TYPES.keys() - earlier == new


def test_earlier_times_of_kernels_say_that_they_are_sums() -> None:
    four = json.loads((EARLIER[0].parent / "Measurement.json").read_text())
    four |= {"method": "kernel", "spans": four["seconds"], "unions": four["seconds"]}
    from convtime.exchange.upgrade import upgraded

    one = Measurement.from_dict(upgraded(four))
    assert (one.metric.used, one.metric.requested) == ("sum", "sum")
    assert one.sum_seconds == one.busy_seconds == one.span_seconds == one.seconds


def test_every_result_is_saved_and_loaded(tmp_path: Path) -> None:
    results = of_each_type(tmp_path)
    results["energy"] = convtime.Energy("relu", 0.5, 0.1, 400.0, 2.0, 4, "cuda:0")
    results["memory"] = convtime.PeakMemory("relu", 8, 4, "cuda:0")
    for name, result in results.items():
        path = tmp_path / f"{name}.json"
        result.save(path)
        again = convtime.load(path)
        assert isinstance(again, type(result))
        assert again.to_dict() == result.to_dict()
        assert str(again) == str(result)


def test_an_extension_that_is_not_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(convtime.InputError, match=r"must end in \.json"):
        make().save(tmp_path / "one.yaml")
    assert not any(tmp_path.iterdir())


def test_unbounded_intervals_come_back(tmp_path: Path) -> None:
    measured = {"a": make(seconds=(1e-6,) * 3, batches=()), "b": make(seconds=(2e-6,) * 3)}
    ratio = Ratio(math.nan, -math.inf, math.inf)
    compared = convtime.Comparison(
        {
            name: dataclasses.replace(each, activities=(), sm_clocks_hz=())
            for name, each in measured.items()
        },
        confirmation={"b": ratio},
    )
    compared.save(tmp_path / "compared.json")
    again = convtime.load(tmp_path / "compared.json")
    assert isinstance(again, convtime.Comparison)
    assert (again.confirmation["b"].low, again.confirmation["b"].high) == (-math.inf, math.inf)
    assert math.isnan(again.confirmation["b"].value)


def test_what_is_no_result_is_one_sentence(tmp_path: Path) -> None:
    for document, said in (
        ({"type": "Sonnet", "schema": SCHEMA}, "got JSON of type 'Sonnet'"),
        ({"type": "Measurement", "schema": "7.0"}, "only of schema 6.x"),
        ({"type": "Measurement", "schema": SCHEMA}, "missing required field"),
        ({"schema": "1.0", "verse": 1}, "the keys 'schema', 'verse'"),
    ):
        path = tmp_path / "other.json"
        path.write_text(json.dumps(document))
        with pytest.raises(convtime.InputError, match=said) as raised:
            convtime.load(path)
        assert "\n" not in str(raised.value)


def test_doctors_examination_is_a_result(tmp_path: Path) -> None:
    seen = convtime.doctor("cpu")
    assert isinstance(seen, convtime.Examination)
    assert "checks in" in str(seen)
    assert repr(seen).startswith("<convtime.Examination ")
    seen.save(tmp_path / "seen.json")
    assert convtime.load(tmp_path / "seen.json") == seen
    assert torch.get_num_threads() == seen.provenance["threads"]
