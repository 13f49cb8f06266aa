"""A page of blocks: the same in text, in HTML and in Markdown."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from convtime.cli import main
from convtime.view import html, markdown, text
from convtime.view.page import Block, Details, Facts, Line, Sentences, Table, answer_first
from tests.helpers.commands import Capture
from tests.helpers.every_result import every_result

SPEEDS = Table(("name", "time"), [("<a>", "1 s"), ("b", ("10 s", "20 s"))], right=("time",))


@pytest.mark.parametrize(
    ("block", "printed", "page"),
    [
        (Line("a < b\x1b"), r"a < b\x1b", r"<p>a &lt; b\x1b</p>"),
        (
            Facts({"cache": "cold"}, title="conditions"),
            "conditions\n  cache:  cold",
            "<table><caption>conditions</caption><tr><th style='text-align:left'>cache</th>"
            "<td style='text-align:left'>cold</td></tr></table>",
        ),
        (
            SPEEDS,
            "name  time\n──────────\n<a>    1 s\nb     10 s\n      20 s",
            "<table><tr><th style='text-align:left'>name</th><th style='text-align:right'>time</th>"
            "</tr><tr><td style='text-align:left'>&lt;a&gt;</td><td style='text-align:right'>1 s"
            "</td></tr><tr><td style='text-align:left'>b</td><td style='text-align:right'>10 s<br>"
            "20 s</td></tr></table>",
        ),
        (Table(("name",), []), "", ""),
        (Table(("name",), [], title="counted"), "counted", "<p>counted</p>"),
        (
            Sentences(["one & two", "three"], title="notes", indent=3),
            "notes\n   one & two\n   three",
            "<p>notes</p><ul><li>one &amp; two</li><li>three</li></ul>",
        ),
        (Sentences([]), "", ""),
        (
            Details([Line("one"), Sentences(["two"], title="below", indent=0)], title="<all>"),
            "<all>\n  one\n\n  below\n  two",
            "<details><summary>&lt;all&gt;</summary><p>one</p><p>below</p><ul><li>two</li></ul>"
            "</details>",
        ),
    ],
)  # fmt: skip
def test_a_block_is_text_and_html(block: Block, printed: str, page: str) -> None:
    assert text.render([block]) == printed
    assert html.render([block]) == page


def test_an_empty_line_separates_blocks_that_are_not_tight() -> None:
    blocks = (
        Sentences([], tight=True), Line("one"), Table(("",), []),
        Line("two"), Line("three", tight=True),
    )  # fmt: skip
    assert text.render(blocks) == "one\n\ntwo\nthree"


# ---- Markdown, as a renderer of another project reads it ----

HOSTILE = (
    "</summary><script>x</script>|*a* _b_ `c` [d](e) 1. $f$ @g https://h.i &amp; \x1b[1m\u202e"
)
SHOWN = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")


class _Page(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(MarkdownIt("commonmark").enable("table").render(source))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("block", "tags"),
    [
        (Line(HOSTILE), ["p"]),
        (Line(HOSTILE, role="answer"), ["p", "strong"]),
        (Sentences(["1. one", "- two", "+ three"]), ["ul", "li", "li", "li"]),
        (Facts({HOSTILE: HOSTILE}), ["ul", "li"]),
        (Table((), [(HOSTILE,)]), ["table", "thead", "tr", "th", "tbody", "tr", "td"]),
        (Details([Line("one")], title=HOSTILE), ["details", "summary", "p"]),
    ],
)  # fmt: skip
def test_a_block_is_markdown_in_which_nothing_is_escaped_twice(
    block: Block, tags: list[str]
) -> None:
    source = markdown.render([block])
    page = _Page(source)
    assert page.tags == tags
    if HOSTILE in repr(block) or not isinstance(block, Sentences):
        assert SHOWN in page.text
    else:
        assert page.text.split("\n") == ["", "1. one", "- two", "+ three", "", ""]
    assert not re.search(r"https://|(?<!\\)@g", source)


def test_the_answer_is_first_and_details_are_last_otherwise_in_order() -> None:
    answers: list[Block] = [Details([], role="answer"), Line("slower", role="answer")]
    others: list[Block] = [Line("it is noisy", role="caution"), Sentences(["one", "two"])]
    details = [Details([], title="times"), Details([], title="kernels")]
    mixed = [details[0], others[0], answers[0], details[1], others[1], answers[1]]
    assert answer_first(mixed) == [*answers, *others, *details]


def test_lines_of_a_cell_stay_in_it_and_empty_blocks_leave_nothing() -> None:
    source = markdown.render([SPEEDS, Table(("a",), []), Sentences([], title="none")])
    assert source == ("| name | time |\n| --- | --: |\n| &lt;a&gt; | 1 s |\n| b | 10 s<br>20 s |\n")


def test_every_result_is_markdown_with_its_answer_first(tmp_path: Path, capsys: Capture) -> None:
    for kind, result in every_result(HOSTILE).items():
        path = tmp_path / f"{kind}.json"
        path.write_text(result.to_json(), encoding="utf-8")
        assert main(["show", str(path), "--markdown", "-"]) == 0
        source = capsys.readouterr().out
        assert source.startswith("**"), kind
        page = _Page(source)
        allowed = {"p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "br"}
        assert {*page.tags} <= allowed | {"details", "summary"}, kind
        assert page.tags.count("details") == source.count("<details>") == source.count("</details>")
        named = kind not in ("ClockTrace", "EngineTable", "Examination", "Explanation")
        assert (SHOWN in page.text) == named, kind
    assert main(["show", str(path), "--markdown", str(tmp_path / "same.md")]) == 0
    assert (tmp_path / "same.md").read_text(encoding="utf-8") == source
    assert main(["show", str(path), "--markdown", "-", "--json", "-"]) == 2
    assert "--json and --markdown must not all be -" in capsys.readouterr().err
