"""PEP 517 build backend: scikit-build-core, plus the requirements that depend on the target environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import target_environment
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from scikit_build_core.build import get_requires_for_build_editable as _requires_for_editable
from scikit_build_core.build import get_requires_for_build_wheel as _requires_for_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ConfigSettings = Mapping[str, "str | list[str]"]


def get_requires_for_build_wheel(config_settings: ConfigSettings | None = None) -> list[str]:
    return [*_requires_for_wheel(config_settings), *_target_requirements(config_settings)]


def get_requires_for_build_editable(config_settings: ConfigSettings | None = None) -> list[str]:
    return [*_requires_for_editable(config_settings), *_target_requirements(config_settings)]


def _target_requirements(config_settings: ConfigSettings | None) -> list[str]:
    try:
        torch = target_environment.find_target_torch()
        return target_environment.build_requirements(
            torch, cuda=cuda_setting(config_settings or {}, os.environ)
        )
    except target_environment.BuildError as error:
        # pip and uv show this in place of a traceback.
        raise SystemExit(str(error)) from None


def cuda_setting(config_settings: ConfigSettings, environ: Mapping[str, str]) -> bool | None:
    """What the user asked CONVTIME_CUDA to be (-C cmake.define.…, -C cmake.args=…, CMAKE_ARGS), or None."""
    definitions = [environ.get("CMAKE_ARGS", "")]
    for key, value in config_settings.items():
        values = [value] if isinstance(value, str) else value
        if key.startswith("cmake.define."):
            definitions += [f"-D{key.removeprefix('cmake.define.')}={one}" for one in values]
        elif key == "cmake.args":
            definitions += values
    found = re.findall(r"-DCONVTIME_CUDA(?::\w+)?=(\w+)", " ".join(definitions))
    return found[-1].upper() not in ("OFF", "0", "NO", "FALSE", "N") if found else None


def dynamic_metadata(settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, Any]:
    """Dependencies: pyproject.toml's list, and the torch that the wheel is built against."""
    torch = target_environment.find_torch()
    # Only a source distribution can be made without a torch to look at.
    requirement = torch.requirement if torch else target_environment.TORCH_REQUIREMENT
    return {"dependencies": [requirement, *settings["dependencies"]]}


def dynamic_wheel(_settings: Mapping[str, Any]) -> dict[str, bool]:
    """A wheel's dependencies differ from those of the source distribution that it was built from."""
    return {"dependencies": True}
