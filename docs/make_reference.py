"""Write the pages of docs/reference that describe options and results, from the code.

    python docs/make_reference.py

Each option and each field is described once, where it is declared. A test checks that the pages are
up to date.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import convtime
from convtime import Candidate, Measurement, Options
from convtime.device.clock_lock import LockedClocks
from convtime.storage.load import MODULES
from convtime.timing.measurement import Condition
from convtime.timing.verdict import Judgement

#: Types of values that functions, methods and properties return, and that no field of a result has.
_RETURNED = (Condition, Judgement, LockedClocks)
FOLDER = Path(__file__).resolve().parent / "reference"
_WIDTH = 120
_MADE = "<!-- made by docs/make_reference.py; do not edit -->"
_ROLE = re.compile(r":\w+:`~?(.+?)`")
_OPTIONS = f"""# Options

{_MADE}

Functions that time or count a call share these parameters. The command line has the same ones with
dashes: `--min-samples` is `min_samples`. [Timing](../guides/timing.md) introduces them, and
[Which number do I quote?](../guides/which-number.md) helps to choose.
"""
_MEASUREMENT = f"""# Fields of a Measurement

{_MADE}

`convtime.time_op` returns a `Measurement`, and `compare` one for each candidate. All times are in
seconds. [Reading results](reading-results.md) explains how it is printed.
"""
_RESULTS = f"""# Fields of other results

{_MADE}

The results other than [Measurement](measurement.md), and the parts of results, in alphabetical
order. All times are in seconds. `convtime.load` reads the results that have `save`.
"""


def pages() -> dict[Path, str]:
    """Return the generated pages by path."""
    return {
        FOLDER / "options.md": "\n".join(_options()),
        FOLDER / "measurement.md": "\n".join([_MEASUREMENT, *_fields(Measurement)]),
        FOLDER / "result-fields.md": "\n".join([_RESULTS, *_other_results()]),
    }


def _options() -> Iterator[str]:
    yield _OPTIONS
    yield "## Which function takes which\n"
    yield "| function | parameters of the call | timing options |"
    yield "|---|---|---|"
    for name, function in _functions():
        taken = inspect.signature(function).parameters
        of_call = [each for each in _of_call() if each in taken]
        options = [field.name for field in dataclasses.fields(Options) if field.name in taken]
        told_call = "all" if len(of_call) == len(_of_call()) else _listed(of_call)
        if "args" not in taken:
            told_call = "in each `Candidate`"
        yield f"| `{name}` | {told_call} | {_mostly(options)} |"
    yield "\n## The call\n"
    yield "`time_op` and others take them directly, or in a `convtime.Candidate`.\n"
    hints = get_type_hints(Candidate.__init__, include_extras=True)
    for name, parameter in _of_call().items():
        yield from _entry(name, hints[name].__metadata__[0], parameter.default)
    yield "## Timing options\n"
    hints = get_type_hints(Options, include_extras=True)
    plain = get_type_hints(Options)
    for field in dataclasses.fields(Options):
        choices = get_args(plain[field.name]) if get_origin(plain[field.name]) is Literal else ()
        yield from _entry(field.name, hints[field.name].__metadata__[0], field.default, choices)


def _functions() -> Iterator[tuple[str, Any]]:
    for name, function in sorted(_public().items()):
        if hasattr(function, "__signature__"):  # which with_keywords has made
            yield name, function


def _public() -> dict[str, Any]:
    """Return the public functions, types and modules by name, as in ``conv.tune``."""
    of_conv = {f"conv.{name}": getattr(convtime.conv, name) for name in convtime.conv.__all__}
    return {name: getattr(convtime, name) for name in convtime.__all__} | of_conv


def _of_call() -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(Candidate).parameters)


def _mostly(options: list[str]) -> str:
    """List the options, or those that are missing if these are fewer."""
    missing = [each.name for each in dataclasses.fields(Options) if each.name not in options]
    if not missing:
        return "all"
    if len(missing) < len(options):
        return f"all except {_listed(missing)}"
    return _listed(options)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _entry(name: str, text: str, default: object, choices: tuple[str, ...] = ()) -> Iterator[str]:
    yield f"### {name}\n"
    told = [f"One of {', '.join(f'`{choice!r}`' for choice in choices)}."] if choices else []
    if default is not inspect.Parameter.empty and "Default:" not in text:
        told.append(f"Default: `{default!r}`.")
    if told:
        yield " ".join(told).replace("'", '"') + "\n"
    yield _wrapped(text[0].upper() + text[1:] if not text.startswith("``") else text) + "\n"


def _other_results() -> Iterator[str]:
    kinds = {kind for kind in _public().values() if isinstance(kind, type)}
    kinds |= {getattr(importlib.import_module(place), name) for name, place in MODULES.items()}
    kinds |= {*_RETURNED}
    shown = _with_parts(kinds) - {Candidate, Measurement, Options}
    for kind in sorted(shown, key=lambda kind: (kind.__name__, kind.__module__)):
        if "Attributes:" in (kind.__doc__ or ""):
            yield f"## {kind.__name__}\n"
            yield _wrapped(_paragraphs(inspect.getdoc(kind) or "")[0]) + "\n"
            yield from _fields(kind)


def _with_parts(kinds: set[type]) -> set[type]:
    """Return the types and those of their fields, whether these are public or not."""
    found: set[type] = set()
    waiting = {*kinds}
    while waiting:
        kind = waiting.pop()
        if kind in found:
            continue
        if dataclasses.is_dataclass(kind):
            found.add(kind)
            waiting |= {*get_type_hints(kind).values()}
        elif get_origin(kind) is not Literal:
            waiting |= {part for part in get_args(kind) if not isinstance(part, list)}
    return found


def _fields(kind: type) -> Iterator[str]:
    for name, text in _attributes(kind):
        yield _item(name, text)
    members = {name: vars(base)[name] for base in reversed(kind.__mro__) for name in vars(base)}
    for name, member in members.items():
        if isinstance(member, property) and not name.startswith("_"):
            yield _item(name, " ".join(_paragraphs(inspect.getdoc(member) or "")))
    yield ""


def _attributes(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the entries under "Attributes:" of a docstring."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    for entry in re.split(r"\n(?=    \w)", f"\n{text}"):
        name, colon, described = entry.strip().partition(":")
        if colon and name.isidentifier():
            yield name, " ".join(described.split())


def _paragraphs(doc: str) -> list[str]:
    """Return the paragraphs of a docstring before its sections."""
    before = re.split(r"^(?:Args|Attributes|Raises|Returns):$", doc, flags=re.MULTILINE)[0]
    return [" ".join(each.split()) for each in before.strip().split("\n\n")]


def _item(name: str, text: str) -> str:
    return _wrapped(f"- **`{name}`**: {text}", indent="  ")


def _wrapped(text: str, indent: str = "") -> str:
    plain = _ROLE.sub(r"`\1`", text).replace("``", "`")
    return textwrap.fill(
        plain,
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> None:
    for path, text in pages().items():
        path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
