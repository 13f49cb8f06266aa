"""JSON of results: every document names its type and its schema version.

A reader fills fields that older minor versions lack with their defaults, ignores fields that newer
minor versions add, and rejects every other major version.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from convtime.core.files import extension_of, write_file

Result = TypeVar("Result")
Kept = TypeVar("Kept", bound="Stored")

_SURROGATE = re.compile("[\ud800-\udfff]")


#: Version of all documents. The major version changes when older readers cannot read a document.
SCHEMA = "6.0"


class Stored:
    """A dataclass that is stored as JSON, with its type and the schema version."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict that includes type and schema version."""
        return document(type(self).__name__, encode(self))

    @classmethod
    def from_dict(cls: type[Kept], data: Mapping[str, Any]) -> Kept:
        """Rebuild the object from :meth:`to_dict` output, also after JSON turned tuples into lists.

        Raises:
            ValueError: the data is of another type or major schema version, a field is missing, or
                a field has the wrong type.
        """
        check_document(cls.__name__, data)
        return decode(cls, data)

    def to_json(self) -> str:
        """Return :meth:`to_dict` as strict JSON; numbers that JSON cannot represent become null."""
        return to_json(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a file, from which :func:`convtime.load` reads it.

        The file holds either its old content or the new at every moment.

        Args:
            path: the file; it ends in ``.json`` or has no extension.

        Raises:
            InputError: the path has another extension, or the file cannot be written.
        """
        extension_of(path, (".json",))
        write_file(path, self.to_json())


def document(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with the type and the schema version of their document."""
    return {"type": kind, "schema": SCHEMA, **fields}


def check_document(kind: str, data: object) -> None:
    """Check the type and the major schema version of a document.

    Raises:
        ValueError: one of them is different.
    """
    fields = data if isinstance(data, Mapping) else {}
    actual, schema = fields.get("type", kind), fields.get("schema")
    if actual != kind:
        raise ValueError(f"{_name(kind)} cannot be read from JSON of type {reprlib.repr(actual)}")
    major = SCHEMA.partition(".")[0]
    if not isinstance(schema, str) or schema.partition(".")[0] != major:
        raise ValueError(
            f"{_name(kind)} of schema {reprlib.repr(schema)} cannot be read, only of schema "
            f"{major}.x"
        )


if TYPE_CHECKING:
    from typing import TypeAlias

    Number: TypeAlias = float
    LowerBound: TypeAlias = float
    UpperBound: TypeAlias = float
else:

    class Number(float):
        """A number that may be NaN, which JSON has as null."""

    class LowerBound(float):
        """A number that may be -inf, which JSON has as null."""

    class UpperBound(float):
        """A number that may be inf, which JSON has as null."""


_NULLS: dict[type[float], float] = {Number: math.nan, LowerBound: -math.inf, UpperBound: math.inf}


def _number(kind: type[Any], value: object) -> Any:
    if kind not in _NULLS:
        raise TypeError(f"a {kind.__name__} cannot be read from JSON")
    if value is None:
        return kind(_NULLS[kind])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"Expected `float`, got `{type(value).__name__}`")
    return kind(value)


def encode(value: object) -> dict[str, Any]:
    """Convert a dataclass to JSON-serializable builtins."""
    fields: dict[str, Any] = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
    return fields


def _plain(value: object) -> object:
    """Convert a subclass of str, int or float, such as torch's version, to the builtin type."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a {type(value).__name__} is not JSON-serializable, got {value!r}")


def decode(kind: type[Result], data: object) -> Result:
    """Reverse :func:`encode`, also after JSON turned tuples into lists and keys into strings.

    Raises:
        ValueError: a field is missing or has the wrong type; the message names the field's path.
    """
    try:
        return msgspec.convert(data, kind, str_keys=True, dec_hook=_number)
    except msgspec.ValidationError as error:
        raise ValueError(f"{_name(kind.__name__)} cannot be read: {error}") from error


def _name(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def to_json(content: Mapping[str, Any]) -> str:
    """Format strict JSON with one line per list item: a diff then shows which rows changed.

    Each line has the format of :func:`to_json_line`.
    """
    entries = []
    for key, value in content.items():
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
