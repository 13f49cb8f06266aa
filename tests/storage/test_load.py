"""Any result goes to a file and back, also from files of earlier versions."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import convtime
from convtime.cli import main
from convtime.core.codec import SCHEMA
from convtime.timing.verdict import Ratio
from convtime.view.shown import Shown
from tests.helpers import TESTS
from tests.helpers.commands import Capture
from tests.helpers.every_result import every_result
from tests.helpers.measurements import make
from tests.helpers.mutations import mutated

# Files of several types, as the first release wrote them.
EARLIER = sorted((TESTS / "data" / "schema_6").iterdir())


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.name)
def test_an_earlier_file_is_read_and_written_anew(
    path: Path, tmp_path: Path, capsys: Capture
) -> None:
    found = convtime.load(path)
    kind = path.stem.removesuffix("File")
    new = tmp_path / "new.json"
    assert main(["show", str(path), "--json", str(new)]) == 0
    shown = capsys.readouterr().out
    again = convtime.load(new)
    kind = "Measurements" if kind == "Convolutions" else kind
    assert type(found).__name__ == json.loads(new.read_text())["type"] == kind
    assert again.to_dict() == found.to_dict()
    assert json.loads(new.read_text())["schema"] == SCHEMA
    assert main(["show", str(new)]) == 0
    assert capsys.readouterr().out == shown


def test_every_result_is_saved_and_loaded(tmp_path: Path) -> None:
    for name, result in every_result().items():
        result.save(tmp_path / name)
        again = convtime.load(tmp_path / name)
        assert isinstance(again, type(result))
        assert again.to_dict() == result.to_dict()
        assert str(again) == str(result)
    with pytest.raises(convtime.InputError, match=r"must end in \.json"):
        make().save(tmp_path / "one.yaml")
    assert not (tmp_path / "one.yaml").exists()


def test_unbounded_intervals_come_back(tmp_path: Path) -> None:
    known: dict[str, Any] = {"activities": (), "sm_clocks_hz": ()}
    measured = {name: make(seconds=(1e-6,) * 3, **known) for name in "ab"}
    ratio = Ratio(math.nan, -math.inf, math.inf)
    compared = convtime.Comparison(measured, confirmation={"b": ratio})
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


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sorted(every_result()))
def test_a_damaged_file_is_one_sentence_or_a_result(kind: str, tmp_path: Path) -> None:
    document = json.loads(json.dumps(every_result()[kind].to_dict()))
    path = tmp_path / "damaged.json"
    refusals, loaded = [], 0
    for seed in range(25):
        path.write_text(json.dumps(mutated(document, seed)))
        try:
            result = convtime.load(path)
        except convtime.InputError as error:
            refusals.append(str(error))
            continue
        loaded += 1
        assert str(result), seed
        if isinstance(result, Shown):
            assert result.to_markdown(), seed
            result.report(tmp_path / "page.html")
        result.save(tmp_path / "again.json")
        assert str(convtime.load(tmp_path / "again.json")) == str(result), seed
    assert loaded, "no change left a result"
    assert not [sentence for sentence in refusals if "\n" in sentence]
