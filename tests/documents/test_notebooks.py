import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import ROOT
from tests.helpers.scripts import load_script

pytestmark = pytest.mark.thorough

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def execute() -> Any:
    return load_script(FOLDER / "execute.py")


def shown(outputs: list[Any]) -> str:
    return "".join(
        output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
        for output in outputs
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_the_missing_gpu_is_named_once(path: Path, execute: Any) -> None:
    cells = execute.executed(path, small=True).cells
    text = "".join(shown(cell.outputs) for cell in cells if cell.cell_type == "code")
    assert text.count("There is no NVIDIA GPU") == (not torch.cuda.is_available())
    assert "µs" in text
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    shown_as = [output.get("data", {}) for output in outputs]
    assert not any("widget" in mime for data in shown_as for mime in data)
    figures = [data for data in shown_as if "convtime figure" in str(data.get("text/plain"))]
    kinds = {"application/vnd.vegalite.v5+json", "image/png"}  # and not by its name alone
    assert all(kinds <= set(data) for data in figures)


def test_a_cell_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "failing.ipynb"
    notebook = json.loads(NOTEBOOKS[0].read_text())
    (cell, *_) = (each for each in notebook["cells"] if each["cell_type"] == "code")
    path.write_text(json.dumps({**notebook, "cells": [cell | {"source": "1 / 0"}]}))
    before = path.read_bytes()
    monkeypatch.setattr("sys.argv", ["execute.py", str(path)])
    with pytest.raises(Exception, match="ZeroDivisionError"):
        execute.main()
    assert path.read_bytes() == before
