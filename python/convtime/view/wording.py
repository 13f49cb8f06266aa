"""Words for numbers: units, nouns, and text that is safe to print."""

from __future__ import annotations

import math
from collections.abc import Iterable

_LONGEST = 2000  # characters that a page shows of a text, since a name can have megabytes


def printable(text: str) -> str:
    """Escape characters that would control a terminal or break a line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(text: str) -> str:
    """Return :func:`printable` text; of a long one the beginning, and its length."""
    shown = printable(text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown}… ({len(text):,} characters)"


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun, e.g. "1 pass" or "2,000 passes"; by default with an "s"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return names separated by commas; of many, the first ones and the number of the others."""
    every = list(names)
    others = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + others


_UNITS = ((0, 1.0, "s"), (-3, 1e-3, "ms"), (-6, 1e-6, "µs"), (-9, 1e-9, "ns"))


def format_seconds(seconds: float, digits: int = 4) -> str:
    """Format a time in a suitable unit, e.g. "12.34 µs".

    Args:
        seconds: the time in seconds.
        digits: significant digits.
    """
    if not math.isfinite(seconds):
        return f"{seconds} s"
    scale, unit, decimals = _precision(seconds, digits)
    return f"{seconds / scale:.{decimals}f} {unit}"


def format_signed(seconds: float) -> str:
    """Format a difference of two times, e.g. "−12.34 µs"."""
    return f"{'+' if seconds >= 0 else '−'}{format_seconds(abs(seconds))}"


def format_estimate(seconds: float, low: float, high: float) -> str:
    """Format a time and its interval in one unit, e.g. "12.34 µs [12.30, 12.41]".

    An unbounded interval is left out.
    """
    time = format_seconds(seconds)
    if not all(map(math.isfinite, (seconds, low, high))):
        return time
    scale, _, decimals = _precision(seconds, digits=4)
    return f"{time} [{low / scale:.{decimals}f}, {high / scale:.{decimals}f}]"


def format_share(seconds: float, whole: float) -> str:
    """Format a part and the whole of a time in one unit, e.g. "3.21 of 12.34 µs"."""
    scale, unit, decimals = _precision(whole, digits=4)
    return f"{seconds / scale:.{decimals}f} of {whole / scale:.{decimals}f} {unit}"


def _precision(seconds: float, digits: int) -> tuple[float, str, int]:
    """Return a suitable unit's scale and name, and the decimals for a number of digits."""
    # Round first: 999.96 ns with four digits is a microsecond.
    exponent = int(f"{seconds:.{digits - 1}e}".partition("e")[2]) if seconds else -9
    fitting = (unit for unit in _UNITS if exponent >= unit[0])
    unit_exponent, scale, unit = next(fitting, _UNITS[-1])
    whole_digits = max(exponent - unit_exponent + 1, 1)
    return scale, unit, max(digits - whole_digits, 0)


def format_bytes(count: int) -> str:
    """Return a number of bytes in the unit in which it is below 1024, e.g. ``1.5 MiB``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.4g} {units[0]}"
