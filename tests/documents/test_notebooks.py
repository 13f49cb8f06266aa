from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.helpers import ROOT

pytestmark = pytest.mark.thorough

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(outputs: list[Any]) -> str:
    return "".join(
        output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
        for output in outputs
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_the_missing_gpu_is_named_once(path: Path, execute: ModuleType) -> None:
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
    tmp_path: Path, execute: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "failing.ipynb"
    notebook = json.loads(NOTEBOOKS[0].read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][:1]
    cells[0]["source"] = "1 / 0"
    path.write_text(json.dumps({**notebook, "cells": cells}))
    before = path.read_bytes()
    monkeypatch.setattr("sys.argv", ["execute.py", str(path)])
    with pytest.raises(Exception, match="ZeroDivisionError"):
        execute.main()
    assert path.read_bytes() == before


def test_what_the_cells_show_is_all_that_changes(
    tmp_path: Path, execute: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "short.ipynb"
    notebook = json.loads(NOTEBOOKS[0].read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][:1]
    cells[0]["source"] = ["print('a')\n", "import os\n", "print('SMALL' in str(os.environ))"]
    path.write_text(json.dumps({**notebook, "cells": cells}))
    monkeypatch.setenv("CONVTIME_SMALL_NOTEBOOKS", "1")
    monkeypatch.setattr("sys.argv", ["execute.py", str(path)])
    execute.main()
    after = json.loads(path.read_text())
    (cell,) = after.pop("cells")
    assert cell["outputs"][0]["text"] == ["a\n", "False\n"]
    assert {**after, "cells": None} == {**notebook, "cells": None}
