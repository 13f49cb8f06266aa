"""JSON in which nothing can be lost, and which can be written again."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from convtime.core import codec
from convtime.core.errors import InputError, shown

_LONGEST_WHOLE_NUMBER = 20  # digits of 2**64
_DEEPEST = 100  # what goes through JSON by recursion needs a few frames for each level
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, source: str) -> Any:
    """Reads JSON whose numbers are of the usual size, and whose objects have each key once.

    Args:
        text: the JSON.
        source: what the text is, for errors.

    Raises:
        InputError: says why it cannot be read.
    """

    def whole(digits: str) -> int:
        if len(digits) > _LONGEST_WHOLE_NUMBER:
            raise InputError(
                f"{source}: has a whole number of {len(digits)} digits, and must have at most "
                f"{_LONGEST_WHOLE_NUMBER}"
            )
        return int(digits)

    def fraction(digits: str) -> float:
        number = float(digits)
        if codec.finite(number) is None:
            raise InputError(f"{source}: has the number {digits[:20]}, which is too large")
        return number

    def constant(name: str) -> None:
        raise InputError(f"{source}: has {name} in it, which is no number in JSON")

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
            raise InputError(
                f"{source}: has the key {shown(twice)} more than once in an object, and must have "
                "it once"
            )
        return found

    try:
        document = json.loads(
            text,
            parse_int=whole,
            parse_float=fraction,
            parse_constant=constant,
            object_pairs_hook=mapping,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        ends = " where it ends" if error.pos >= len(text.rstrip()) else ""
        raise InputError(
            f"{source}: is no whole JSON: {error.msg} at {line}column {error.colno}{ends}"
        ) from error
    except RecursionError as error:
        raise _too_deep(source) from error
    if not _is_flat(document):
        raise _too_deep(source)
    if _SURROGATE.search(text):
        _check_letters(document, source)
    return document


def _too_deep(source: str) -> InputError:
    return InputError(
        f"{source}: is JSON that is nested more than {_DEEPEST} levels deep, which is too deep"
    )


def _is_flat(document: Any) -> bool:
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return not any(isinstance(inner, (dict, list)) for inner in level)


def _check_letters(document: Any, source: str) -> None:
    """Halves of a letter, which JSON can escape, are no text that could be written again."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InputError(
            f"{source}: has {half} in a text, which is only half of a letter; write the letter"
        ) from error
