"""A page of blocks: the same in text and in HTML."""

from __future__ import annotations

import pytest

from convtime.core import html, text
from convtime.core.page import Block, Details, Facts, Line, Sentences, Table

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
        (
            Table((), [("ok", "NVML")]),
            "ok  NVML",
            "<table><tr><td style='text-align:left'>ok</td><td style='text-align:left'>NVML</td>"
            "</tr></table>",
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
        (
            Details([Line("one")], title="all", summary="short"),
            "all\n  one",
            "<details><summary>short</summary><p>one</p></details>",
        ),
        (
            Details([Line("one")]),
            "one",
            "<details><summary>details</summary><p>one</p></details>",
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
