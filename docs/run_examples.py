"""Runs the Python examples of documents, and writes what they print below them.

    python docs/run_examples.py                  # of README.md and docs/
    python docs/run_examples.py README.md --out /tmp

The examples of a document are one program, from its first to its last. What an example prints
stands behind it, between `<!-- printed -->` and `<!-- /printed -->`, where a document has these
marks, with the GPU (or CPU) and the torch that it ran on. A document without any is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100  # of tables, in characters
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n", re.DOTALL)
_PRINTED = re.compile(
    r"(?P<begin>\s*<!-- printed -->\n)(?P<old>.*?)(?P<end><!-- /printed -->)", re.DOTALL
)


def documents() -> list[Path]:
    """All that show what their examples print."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    return [path for path in every if "<!-- printed -->" in path.read_text(encoding="utf-8")]


def executed(text: str, where: str) -> str:
    """A document with what its examples print on this machine.

    Args:
        text: of the document.
        where: what is said of this machine.

    Raises:
        Exception: whatever an example raises.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    parts, end = [], 0
    for block in _BLOCK.finditer(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], "example", "exec"), namespace)  # noqa: S102
        place = _PRINTED.match(text, block.end())
        if place:
            lines = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
            shown = f"```text\n{lines}\n```\n\n{where}\n"
            parts += [text[end : place.start()], place["begin"], shown, place["end"]]
            end = place.end()
    return "".join([*parts, text[end:]])


def machine() -> str:
    """The GPU, or that there is none, and the version of torch."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    return f"(Printed on {device} with torch {torch.__version__}.)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="DOCUMENT", help="(default: all)")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write there, and leave the files as they are"
    )
    options = parser.parse_args()
    os.environ["COLUMNS"] = str(WIDTH)
    for path in options.paths or documents():
        print(path, flush=True)
        text = executed(path.read_text(encoding="utf-8"), machine())
        (options.out / path.name if options.out else path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
