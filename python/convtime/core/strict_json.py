"""Strict JSON parser: it loses no data, and its result can be written again."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from convtime.core import codec
from convtime.core.errors import InputError, shown

_LONGEST_WHOLE_NUMBER = 20  # digits of 2**64
_DEEPEST = 100  # recursive code needs a few stack frames per level
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, source: str) -> Any:
    """Parse JSON whose numbers have a usual size and whose objects have unique keys.

    Args:
        text: the JSON.
        source: description of the source, for errors.

    Raises:
        InputError: the JSON cannot be read; the message says why.
    """

    def whole(digits: str) -> int:
        if len(digits) > _LONGEST_WHOLE_NUMBER:
            raise InputError(
                f"{source}: integers must have at most {_LONGEST_WHOLE_NUMBER} digits, got "
                f"{len(digits)} digits"
            )
        return int(digits)

    def fraction(digits: str) -> float:
        number = float(digits)
        if codec.finite(number) is None:
            raise InputError(f"{source}: has the number {digits[:20]}, which is too large")
        return number

    def constant(name: str) -> None:
        raise InputError(f"{source}: has {name}, which is not valid in JSON")

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
            raise InputError(
                f"{source}: has the key {shown(twice)} more than once in an object; keys must be "
                "unique"
            )
        return content

    try:
        document = json.loads(
            text,
            parse_int=whole,
            parse_float=fraction,
            parse_constant=constant,
            object_pairs_hook=mapping,
        )
        if not _is_flat(document):
            raise RecursionError
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        ends = " where it ends" if error.pos >= len(text.rstrip()) else ""
        raise InputError(
            f"{source}: is not valid JSON: {error.msg} at {line}column {error.colno}{ends}"
        ) from error
    except RecursionError as error:
        raise InputError(
            f"{source}: is JSON that is nested more than {_DEEPEST} levels deep, which is too deep"
        ) from error
    if _SURROGATE.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # JSON can escape a lone surrogate, UTF-8 has none
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise InputError(
                f"{source}: has {half} in a string, a lone surrogate; write the complete character"
            ) from error
    return document


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
