"""What frozen dataclasses need on their way back from JSON.

Imports nothing compiled: the child of convtime.plan_oracle loads it without convtime's core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with tuples where JSON has made lists of them."""
    return {name: tuple(one) if isinstance(one, list) else one for name, one in data.items()}
