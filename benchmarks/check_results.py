"""Checks that every result file says what its rows say, and the documents what the files say.

Between `<!-- results:NAME -->` and `<!-- /results:NAME -->` in README.md and docs/ stands the
summary of results/NAME.json; with ":rows" after NAME, its rows, as NAME.py's table() shows them;
with another word, as its WORD_table() does. A goal that is missed is no error: it stays in the file
as missed.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results

REPOSITORY = results.HERE.parent
_FIELDS: dict[str, type] = {
    "schema": int,
    **dict.fromkeys(("benchmark", "command", "date"), str),
    "provenance": dict,
    **dict.fromkeys(("rows", "summary"), list),
}
_MARKED = re.compile(
    r"(?P<begin><!-- results:(?P<name>\w+)(?::(?P<what>[a-z]+))? -->\n)"
    r".*?(?P<end><!-- /results:(?P=name)(?(what):(?P=what)) -->)",
    re.DOTALL,
)


def check_file(path: Path, goals: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yields what is wrong with a result file, a sentence each."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:
        yield f"is not strict JSON ({error})"
        return
    broken = [
        f"field {field!r} must be of type {kind.__name__}"
        for field, kind in _FIELDS.items()
        if type(document.get(field)) is not kind
    ]
    if broken:
        yield from broken
        return
    if document["schema"] != results.SCHEMA:
        yield f"schema is {document['schema']}, but must be {results.SCHEMA}"
    if unknown := set(document) - set(_FIELDS):
        yield f"has unknown fields: {', '.join(sorted(unknown))}"
    if document["benchmark"] != path.stem or path.stem not in goals:
        yield f"benchmark is {document['benchmark']!r}, but must be the file's name and have goals"
        return
    if path.stem not in results.scripts():
        yield f"there is no script {path.stem}.py to sum its rows up"
        return
    if set(document["provenance"]) != set(results.PROVENANCE):
        yield f"provenance must have exactly {', '.join(results.PROVENANCE)}"
    keys = [row.get("key") for row in document["rows"]]
    if None in keys or len(set(keys)) < len(keys):
        yield "every row must have a key of its own"
    summarise = results.load_script(path.stem).summarise
    try:
        expected = results.make_summary(document["rows"], summarise, goals[path.stem])
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        yield f"rows cannot be summed up ({type(error).__name__}: {error})"
        return
    found = {entry.get("name"): entry for entry in document["summary"]}
    for entry in expected:
        if found.pop(entry["name"], None) != entry:
            yield f"summary of {entry['name']!r} is not what its rows and goal give: {entry}"
    for name in found:
        yield f"summary has {name!r}, which is no goal"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def fill_in(text: str, directory: Path) -> str:
    """A document with its tables made anew from the result files; ValueError says what it lacks."""

    def fill(match: re.Match[str]) -> str:
        path = directory / f"{match['name']}.json"
        if not path.exists():
            raise ValueError(f"has a table of {path.name}, which is not in {directory}")
        document = json.loads(path.read_text(encoding="utf-8"))
        if match["what"]:
            script = results.load_script(match["name"])
            name = "table" if match["what"] == "rows" else f"{match['what']}_table"
            if not hasattr(script, name):
                missing = f"has a table of {match['name']} that its script has no {name}() for"
                raise ValueError(missing)
            body = getattr(script, name)(document["rows"])
        else:
            body = summary_table(document)
        return f"{match['begin']}{body}\n{match['end']}"

    if len(re.findall(r"<!-- /?results:", text)) != 2 * len(_MARKED.findall(text)):
        raise ValueError("has a results marker without its counterpart")
    return _MARKED.sub(fill, text)


def summary_table(document: results.Row) -> str:
    facts = document["provenance"]
    lines = ["| value | measured | goal | met |", "|---|--:|--:|---|"]
    for entry in document["summary"]:
        value = "—" if entry["value"] is None else f"{entry['value']:.4g}"
        met = "yes" if entry["met"] else "no"
        lines.append(f"| `{entry['name']}` | {value} | {entry['goal']} | {met} |")
    where = (
        f"{facts['gpu'] or 'CPU'}, driver {facts['driver']}, torch {facts['torch']}, "
        f"cuDNN {facts['cudnn']}; commit {facts['commit'][:12]}, {document['date'][:10]}."
    )
    return "\n".join((*lines, "", where))


def check_documents(repository: Path, directory: Path, *, write: bool) -> Iterator[str]:
    """Yields what is wrong with the tables in README.md and docs/, or mends them."""
    for path in [repository / "README.md", *sorted(repository.glob("docs/**/*.md"))]:
        if not path.exists():
            continue
        old = path.read_text(encoding="utf-8")
        try:
            new = fill_in(old, directory)
        except ValueError as error:
            yield f"{path}: {error}"
            continue
        if new != old and write:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            yield f"{path}: its tables are not those of the result files; run with --write"


def draw_pictures(repository: Path, directory: Path) -> None:
    """Draws the pictures docs/images/NAME.svg that documents show, from results/NAME.json."""
    documents = [repository / "README.md", *repository.glob("docs/**/*.md")]
    texts = [path.read_text(encoding="utf-8") for path in documents if path.exists()]
    for name in sorted(set(re.findall(r"\([\w./]*images/(\w+)\.svg\)", "".join(texts)))):
        document = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
        content = results.load_script(name).picture(document)
        (repository / "docs" / "images" / f"{name}.svg").write_bytes(content)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="change nothing (the default)")
    mode.add_argument("--write", action="store_true", help="bring tables and pictures up to date")
    parser.add_argument(
        "--reference-goals", type=Path, help="say whether goals.json differs from this file"
    )
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    options = parser.parse_args(arguments)

    goals = results.load_goals()
    if options.reference_goals and results.load_goals(options.reference_goals) != goals:
        print(f"note: benchmarks/goals.json differs from {options.reference_goals}")
    directory = options.repository / "benchmarks" / "results"
    wrong = []
    for path in sorted(directory.glob("*.json")):
        if ".shard-" in path.name:
            continue
        errors = [f"{path}: {error}" for error in check_file(path, goals)]
        wrong += errors
        if not errors:
            summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
            print(f"{path.name}:\n{results.describe(summary)}")
    if not wrong:  # or the tables would be made from files that are
        wrong = list(check_documents(options.repository, directory, write=options.write))
        if options.write:
            draw_pictures(options.repository, directory)
    for error in wrong:
        print(f"error: {error}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
