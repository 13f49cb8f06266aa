"""Numbers with their units, for people to read."""

from __future__ import annotations

import math

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_seconds(seconds: float, digits: int = 4) -> str:
    """Writes a time in the unit that suits it, e.g. "12.34 µs".

    Args:
        seconds: the time in seconds.
        digits: significant digits.
    """
    if not math.isfinite(seconds):
        return f"{seconds} s"
    fitting = ((scale, unit) for scale, unit in _UNITS if abs(seconds) >= scale)
    scale, unit = next(fitting, _UNITS[-1])
    value = seconds / scale
    whole_digits = len(str(int(abs(value))))
    return f"{value:.{max(digits - whole_digits, 0)}f} {unit}"
