"""Links, vocabulary and generated pages of the documents, each compared with what it refers to."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("convtime")

from convtime.diagnosis.diagnosis import CauseCode
from convtime.timing.verdict import ChangeVerdict, Failure, Reason
from tests.helpers import ROOT
from tests.helpers.scripts import load_script

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
LINKED = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *PAGES,
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose_of(path: Path) -> str:
    """The text of a page, or of a notebook's Markdown cells, without fenced code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors_of(path: Path) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ +(.+?) *$", prose_of(path), re.MULTILINE):
        plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken_links(path: Path) -> Iterator[str]:
    for link in _LINK.findall(prose_of(path)):
        if re.match(r"\w+:", link):  # https:, mailto:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            yield link


@pytest.mark.parametrize("path", LINKED, ids=relative)
def test_links_lead_somewhere(path: Path) -> None:
    assert list(broken_links(path)) == []


def test_the_index_lists_every_page() -> None:
    index = DOCS / "README.md"
    links = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(prose_of(index))}
    assert [relative(path) for path in PAGES if path not in {*links, index}] == []


def test_code_refers_to_pages_that_there_are() -> None:
    folders = ("python", "csrc", "tests", "benchmarks", "examples")
    suffixes = (".py", ".h", ".cpp", ".cuh", ".yml")
    sources = [path for each in folders for path in (ROOT / each).rglob("*") if path.is_file()]
    pages = {
        (relative(path), page)
        for path in sources
        if path.suffix in suffixes
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(pages) > 5
    assert {(name, page) for name, page in pages if not (ROOT / page).exists()} == set()


@pytest.fixture(scope="module")
def make_reference() -> Any:
    return load_script(DOCS / "make_reference.py")


def test_docstrings_describe_every_option_as_it_is_declared() -> None:
    sources = dict(load_script(DOCS / "make_docstrings.py").modules())
    assert len(sources) > 8
    for path, source in sources.items():
        assert path.read_text(encoding="utf-8") == source, "run python docs/make_docstrings.py"


@pytest.mark.thorough
def test_generated_pages_are_up_to_date_and_describe_every_option_and_field(
    make_reference: Any,
) -> None:
    pages = make_reference.pages()
    marked = [path for path in PAGES if "made by docs/make_reference.py" in path.read_text()]
    assert set(pages) == {*marked}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run python docs/make_reference.py"
    made = {path.name: text for path, text in pages.items()}
    for option in ("fn", "before", "nbytes", "method", "margin", "log"):
        assert f"\n### {option}\n" in made["options.md"]
    for field in ("seconds", "method", "provenance", "median", "to_torch"):
        assert (f"- **`{field}`**: " in made["measurement.md"]) == (field != "to_torch")
    for kind in ("Comparison", "Sweep", "Examination", "Condition"):
        assert f"\n## {kind}\n" in made["result-fields.md"]
    assert ":func:" not in "".join(made.values())


@pytest.mark.parametrize(
    ("page", "words"),
    [
        *(("verdicts", get_args(each)) for each in (Reason, Failure, ChangeVerdict)),
        ("causes", get_args(CauseCode)),
    ],
)
def test_every_word_of_the_vocabulary_is_explained(page: str, words: tuple[str, ...]) -> None:
    text = (DOCS / "reference" / f"{page}.md").read_text()
    tables = "".join(re.findall(r"^\|.*$", text, re.MULTILINE))
    assert len(words) > 5
    assert [word for word in words if f"`{word}`" not in tables] == []
