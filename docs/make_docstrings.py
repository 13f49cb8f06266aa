"""Write the descriptions of shared parameters into the docstrings of the functions that take them.

    python docs/make_docstrings.py

An option is described once, where :class:`convtime.Options` or :class:`convtime.Candidate` declares
it. A function takes those that its ``**options`` names by a TypedDict. A test checks that the
docstrings are up to date.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_type_hints

from convtime.timing import options
from convtime.timing.candidate import Candidate

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "convtime"
_KEYWORDS = re.compile(r"Unpack\[(\w+)\]")


def modules() -> Iterator[tuple[Path, str]]:
    """Yield the modules with such functions, and what their source should be."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if _KEYWORDS.search(source) or path.stem == "candidate":
            yield path, _rewritten(source)


def _rewritten(source: str) -> str:
    lines = source.splitlines(keepends=True)
    for node in [*ast.walk(ast.parse(source))][::-1]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            docstring = node.body[0]
            place = slice(docstring.lineno - 1, docstring.end_lineno)
            lines[place] = _with_descriptions(lines[place], _shared_parameters(node))
    return "".join(lines)


def _shared_parameters(node: ast.FunctionDef | ast.ClassDef) -> Mapping[str, str]:
    """Return the descriptions of the shared parameters that a docstring has, in their order."""
    call = _descriptions(Candidate.__init__)
    if isinstance(node, ast.ClassDef):
        return call if node.name == Candidate.__name__ else {}
    annotation = None if node.args.kwarg is None else node.args.kwarg.annotation
    found = _KEYWORDS.fullmatch("" if annotation is None else ast.unparse(annotation))
    kind = getattr(options, found[1], None) if found else None
    if kind is None:
        return {}
    descriptions = call | _descriptions(options.Options)
    names = [name for name in descriptions if name in kind.__annotations__]
    of_function = ("fn", "args") if "kwargs" in names else ()
    return {name: descriptions[name] for name in (*of_function, *names)}


def _descriptions(owner: object) -> dict[str, str]:
    hints = get_type_hints(owner, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if name != "return"}


def _with_descriptions(docstring: list[str], parameters: Mapping[str, str]) -> list[str]:
    """Return the lines of a docstring with today's description of each parameter that it has."""
    indent = " " * 8 if docstring[0].startswith(" " * 4) else ""
    described = {match[1] for line in docstring if (match := re.match(r" +(\w+): ", line))}
    missing = [name for name in parameters if name not in described]
    if missing and any(line.strip() == "Args:" for line in docstring):
        raise SystemExit(f"{docstring[0].strip()}: describes no {', '.join(missing)}")
    result: list[str] = []
    skipped = False
    for line in docstring:
        entry = re.match(r"( +)(\w+): ", line)
        if entry and entry[2] in parameters and len(entry[1]) == len(indent):
            text = f"{entry[2]}: {parameters[entry[2]]}"
            wrapped = textwrap.wrap(
                text, 100, initial_indent=entry[1], subsequent_indent=entry[1] + " " * 4
            )
            result += [f"{part}\n" for part in wrapped]
            skipped = True
        elif not (skipped and line.startswith(indent + " " * 4)):
            result.append(line)
            skipped = False
    return result


def main() -> None:
    for path, source in modules():
        path.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    main()
