"""Render a page as Markdown for a pull request; names cannot add markup, links or mentions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from convtime.view import html
from convtime.view.page import Block, Cell, Details, Facts, Line, Sentences, Table, answer_first
from convtime.view.wording import shortened


def render(blocks: Iterable[Block]) -> str:
    """Return a page as Markdown: the answer, whose first block is bold, tables, folded details."""
    parts: list[str] = []
    for block in answer_first(blocks):
        if not parts and block.role == "answer" and isinstance(block, Line | Sentences):
            texts = [block.text] if isinstance(block, Line) else block.texts
            parts += (f"**{escaped(text)}**" for text in texts)
        else:
            parts += _parts(block)
    return "\n\n".join(parts) + "\n"


def escaped(value: str) -> str:
    """Return a string in one line, without HTML or Markdown markup and without links."""
    line = escape(shortened(" ".join(value.split())), quote=False)
    inert = re.sub(r"([\\`*_{}\[\]|~#!@$])", r"\\\1", line)
    inert = re.sub(r"(?i)(https?|ftp|www)(?=[:.])", r"\1\\", inert)
    return re.sub(r"^(\d*)([-+.)])(?=[\s-]|$)", r"\1\\\2", inert)  # lists and lines across


def _parts(block: Block) -> Iterator[str]:
    """Yield the paragraphs, lists and tables of a block."""
    match block:
        case Line(text):
            yield escaped(text)
        case Sentences(texts):
            yield from _listed(block.title, map(escaped, texts))
        case Facts(named):
            facts = (f"{escaped(name)}: {_cell(fact)}" for name, fact in named.items())
            yield from _listed(block.title, facts)
        case Table():
            yield from _table(block)
        case Details(blocks, summary):
            # Markdown is not parsed in this line: it would show backslashes. An empty comment
            # ends what GitHub takes for the name of a user or an address.
            label = re.sub(
                "(@|:(?=//))", r"\1<!-- -->", html.safe(summary or block.title or "details")
            )
            yield f"<details><summary>{label}</summary>"
            for inner in blocks:
                yield from _parts(inner)
            yield "</details>"


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = [f"- {line}" for line in lines]
    if items and title:
        yield f"{escaped(title.removesuffix(':'))}:"
    if items:
        yield "\n".join(items)


def _table(table: Table) -> Iterator[str]:
    rows = [*table.rows]
    if not rows:
        return
    if table.title:
        yield escaped(table.title)
    heads = table.headers or [""] * len(rows[0])
    sides = ["--:" if head in table.right else "---" for head in heads]
    lines = [map(escaped, heads), sides, *(map(_cell, row) for row in rows)]
    yield "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(content: Cell) -> str:
    lines = [content] if isinstance(content, str) else content
    return "<br>".join(map(escaped, lines))
