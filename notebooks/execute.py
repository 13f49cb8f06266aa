"""Executes notebooks, each in a fresh kernel of this Python, and keeps what they show.

    python notebooks/execute.py                          # all of them, with outputs written
    python notebooks/execute.py --small --out /tmp       # in seconds: does every cell still run?

It needs `pip install 'convtime[notebook]'`, and no network. Outputs are written where every cell
has run, or not at all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from convtime.core.files import write_file

FOLDER = Path(__file__).resolve().parent
SECONDS_A_CELL = 600
_WIDGET = "application/vnd.jupyter.widget-view+json"


def notebooks() -> list[Path]:
    """All notebooks of this folder."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path, *, small: bool) -> Any:
    """A notebook with the outputs of its cells.

    Args:
        path: of the notebook.
        small: on small tensors and for short, as the tests do.

    Raises:
        nbclient.exceptions.CellExecutionError: for a cell that fails.
    """
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        record_timing=False,
    )
    environment = dict(os.environ)
    if small:
        environment["CONVTIME_SMALL_NOTEBOOKS"] = "1"
    else:
        environment.pop("CONVTIME_SMALL_NOTEBOOKS", None)
    client.execute(env=environment)
    # Not turned off beforehand: nbclient needs it for what widgets print, such as progress bars.
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(_worth_keeping(cell.outputs))
    return notebook


def _worth_keeping(outputs: list[Any]) -> Iterator[Any]:
    """Outputs without progress bars, which are of that moment; texts that follow are joined."""
    last = None
    for output in outputs:
        if _WIDGET in output.get("data", {}) or "\r" in output.get("text", ""):
            continue
        if (
            last is not None
            and output.output_type == last.output_type == "stream"
            and output.name == last.name
        ):
            last.text += output.text
        else:
            last = output
            yield output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="NOTEBOOK", help="(default: all)")
    parser.add_argument("--small", action="store_true", help="small tensors and short timings")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write there, and leave the files as they are"
    )
    options = parser.parse_args()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    for path in options.paths or notebooks():
        print(path, flush=True)
        notebook = executed(path, small=options.small)
        # As it is, but for what the cells show: a diff has nothing else in it.
        notebook.metadata["language_info"] = {"name": "python"}
        target = options.out / path.name if options.out else path
        write_file(target, nbformat.writes(notebook) + "\n")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
