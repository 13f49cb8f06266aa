"""Student's t by numerical integration, as a reference for approximations."""

from __future__ import annotations

import functools
import math

import numpy as np


def student_tail(t: float, degrees: float) -> float:
    """The probability that a variable of this distribution is above ``t``.

    With t = √n·tan θ, the density is proportional to the cosine to the power of n - 1.
    """
    angles = np.linspace(math.atan(t / math.sqrt(degrees)), math.pi / 2, 4_001)
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    area = np.trapezoid(np.cos(angles) ** (degrees - 1), angles)
    return scale / math.sqrt(math.pi) * float(area)


@functools.cache
def student_limit(tail: float, degrees: float) -> float:
    """The value that a variable of this distribution exceeds with this probability."""
    low, high = 0.0, 1e3
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > tail else (low, middle)
    return low
