"""Result types as JSON, with a schema version "major.minor" each.

A reader accepts what older minor versions lack (fields with a default), ignores what newer ones
add, and refuses every other major version.

Imports nothing compiled but msgspec: the child of convtime.conv.plan_oracle loads it without
convtime's core.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

Result = TypeVar("Result")
Kept = TypeVar("Kept", bound="Stored")

_SURROGATE = re.compile("[\ud800-\udfff]")


class Stored:
    """A dataclass that is kept as JSON, under a version of its schema."""

    SCHEMA: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with a schema version."""
        return encode(self, self.SCHEMA)

    @classmethod
    def from_dict(cls: type[Kept], data: Mapping[str, Any]) -> Kept:
        """Reverses :meth:`to_dict`, also after JSON has made lists of the tuples.

        Raises:
            ValueError: for another major schema version, and for fields that are missing or of
                another type.
        """
        return decode(cls, data, cls.SCHEMA)

    def to_json(self) -> str:
        """:meth:`to_dict` as strict JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)


def encode(value: object, schema: str | None = None) -> dict[str, Any]:
    """A dataclass as JSON-ready builtins, with its schema version where it has one."""
    fields: dict[str, Any] = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
    return fields if schema is None else {"schema": schema, **fields}


def _plain(value: object) -> object:
    """Of a text or number of another library's type, such as torch's version, Python's own."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON, got {value!r}")


def decode(kind: type[Result], data: object, schema: str | None = None) -> Result:
    """Reverses :func:`encode`, also after JSON has made lists and texts of tuples and keys.

    Raises:
        ValueError: for another major version, and for fields that are missing or of another type,
            whose path the text names.
    """
    try:
        if schema is not None:
            _check_version(kind, data, schema)
        return msgspec.convert(data, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"{_name(kind)} cannot be read: {error}") from error


def _check_version(kind: type[object], data: object, schema: str) -> None:
    found = data.get("schema") if isinstance(data, Mapping) else None
    major = schema.partition(".")[0]
    if not isinstance(found, str) or found.partition(".")[0] != major:
        raise ValueError(
            f"{_name(kind)} of schema {reprlib.repr(found)} cannot be read, only of schema "
            f"{major}.x; read it with the convtime that wrote it"
        )


def _name(kind: type[object]) -> str:
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return f"{article} {kind.__name__}"


def to_json(document: Mapping[str, Any]) -> str:
    """Strict JSON with a line for each item of a list, so that a diff shows which rows changed.

    Its lines are those of :func:`to_json_line`.
    """
    entries = []
    for key, value in document.items():
        if isinstance(value, list | tuple) and value:
            rows = ",\n".join(f"  {to_json_line(row)}" for row in value)
            entries.append(f" {to_json_line(key)}: [\n{rows}\n ]")
        else:
            entries.append(f" {to_json_line(key)}: {to_json_line(value)}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def to_json_line(value: object) -> str:
    """Strict JSON in a line that can be written and read again, whatever is in it.

    Numbers that JSON has no form for become null. Half a letter, such as Python makes of a byte
    that is no UTF-8, becomes its number with a backslash.
    """
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)


def finite(value: Any) -> Any:
    """A value with None for each number in it that JSON has no form for (NaN, infinities)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
