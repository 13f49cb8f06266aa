"""JSON serialization of result types, each with a "major.minor" schema version.

A reader fills fields that older minor versions lack with their defaults, ignores fields that newer
minor versions add, and rejects every other major version.

msgspec is the only compiled import: the child process of convtime.conv.plan_oracle loads this
module without convtime's core.
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
    """A dataclass that is stored as JSON with a schema version."""

    SCHEMA: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict that includes the schema version."""
        return encode(self, self.SCHEMA)

    @classmethod
    def from_dict(cls: type[Kept], data: Mapping[str, Any]) -> Kept:
        """Rebuild the object from :meth:`to_dict` output, also after JSON turned tuples into lists.

        Raises:
            ValueError: the major schema version differs, a field is missing, or a field has the
                wrong type.
        """
        return decode(cls, data, cls.SCHEMA)

    def to_json(self) -> str:
        """Return :meth:`to_dict` as a strict JSON string."""
        return json.dumps(self.to_dict(), allow_nan=False)


def encode(value: object, schema: str | None = None) -> dict[str, Any]:
    """Convert a dataclass to JSON-serializable builtins, with its schema version if it has one."""
    fields: dict[str, Any] = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
    return fields if schema is None else {"schema": schema, **fields}


def _plain(value: object) -> object:
    """Convert a subclass of str, int or float, such as torch's version, to the builtin type."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a {type(value).__name__} is not JSON-serializable, got {value!r}")


def decode(kind: type[Result], data: object, schema: str | None = None) -> Result:
    """Reverse :func:`encode`, also after JSON turned tuples into lists and keys into strings.

    Raises:
        ValueError: the major version differs, a field is missing, or a field has the wrong type;
            the message names the field's path.
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
    """Format strict JSON with one line per list item: a diff then shows which rows changed.

    Each line has the format of :func:`to_json_line`.
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
    """Format a value as one line of strict JSON that can always be written and read back.

    Values that JSON cannot represent (NaN, infinities) become null. A lone surrogate, which Python
    uses for a byte that is not UTF-8, becomes the text of its escape sequence.
    """
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)


def holds(integer: int) -> bool:
    """Return whether readers of JSON accept an integer: it must fit 64 bits, signed or not."""
    return -(2**63) <= integer < 2**64


def finite(value: Any) -> Any:
    """Replace each number that JSON cannot represent (NaN, infinities) by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
