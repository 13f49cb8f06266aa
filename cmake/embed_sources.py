"""Writes a C++ file that contains convtime's device code as strings, for program/sources.h.

Usage: embed_sources.py CSRC OUTPUT DEPENDENCIES. The last one is a Makefile's rule: what the
output depends on.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

DELIMITER = "cuda"
# String literals have a limit in some compilers; adjacent ones are joined.
LONGEST = 60_000


def device_code(csrc: Path) -> dict[str, str]:
    """Returns the text of each .cuh file and of all that they include, by its name in #include."""
    standard = {path.name: path for path in sorted((csrc / "program" / "std").iterdir())}
    waiting = [path.relative_to(csrc).as_posix() for path in sorted(csrc.rglob("*.cuh"))]
    texts: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in texts:
            continue
        path = standard.get(name, csrc / name)
        if not path.is_file():
            raise SystemExit(
                f"device code includes {name}, which is neither in {csrc} nor in its program/std."
            )
        texts[name] = path.read_text()
        waiting += re.findall(r'^#include [<"]([^>"]+)[>"]', texts[name], re.MULTILINE)
    return dict(sorted(texts.items()))


def literal(text: str) -> str:
    parts = [text[start : start + LONGEST] for start in range(0, len(text), LONGEST)] or [""]
    return "\n".join(f'R"{DELIMITER}({part}){DELIMITER}"' for part in parts)


def main() -> None:
    csrc, output, dependencies = map(Path, sys.argv[1:])
    texts = device_code(csrc)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    names = ",\n".join(f'      "{name}"' for name in texts)
    literals = ",\n".join(literal(text) for text in texts.values())
    text = f"""// Written by cmake/embed_sources.py.
#include "program/sources.h"

namespace convtime {{

const Sources& Sources::embedded() {{
  static const Sources sources{{
      {{{names}}},
      {{{literals}}},
      "{digest}"}};
  return sources;
}}

}}  // namespace convtime
"""
    if not output.exists() or output.read_text() != text:  # or it would be compiled again
        output.write_text(text)
    files = [csrc / name for name in texts if (csrc / name).is_file()]
    dependencies.write_text(f"{output}: {' '.join(map(str, files))}\n")


if __name__ == "__main__":
    main()
