"""PEP 517 build backend: scikit-build-core, plus what the target environment makes necessary."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import scikit_build_core
import target_environment
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from scikit_build_core.build import build_wheel as _build_wheel
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

# In the environment, so that CMake's run of target_environment.py sees it too.
_uv_target = target_environment.find_uv_target_python(os.getppid())
if _uv_target:
    os.environ.setdefault("CONVTIME_TARGET_PYTHON", _uv_target)

ConfigSettings = dict[str, "str | list[str]"]


def build_wheel(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    _keep_what_is_compiled()
    return _build_wheel(wheel_directory, config_settings, metadata_directory)


def _keep_what_is_compiled() -> None:
    """Let scikit-build-core compile only what has changed since the last isolated build.

    It starts anew where it is in another folder than then, as it is in each isolated environment.
    But nothing here depends on that folder: CMakeLists.txt copies the headers that are in there.
    """
    for path in Path("build").glob("*/.skbuild-info.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # it starts anew, then
            info = json.loads(path.read_text(encoding="utf-8"))
            info["skbuild_path"] = str(Path(scikit_build_core.__file__).parent)
            path.write_text(json.dumps(info), encoding="utf-8")


def get_requires_for_build_wheel(config_settings: ConfigSettings | None = None) -> list[str]:
    return [*_requires_for_wheel(config_settings), *_target_requirements(config_settings)]


def get_requires_for_build_editable(config_settings: ConfigSettings | None = None) -> list[str]:
    return [*_requires_for_editable(config_settings), *_target_requirements(config_settings)]


def _target_requirements(config_settings: ConfigSettings | None) -> list[str]:
    try:
        torch = target_environment.find_target_torch()
        return target_environment.build_requirements(
            torch, cuda=target_environment.cuda_setting(config_settings or {}, os.environ)
        )
    except target_environment.BuildError as error:
        # pip and uv show this in place of a traceback.
        raise SystemExit(str(error)) from None


def dynamic_metadata(settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, Any]:
    """Dependencies: pyproject.toml's list, and the torch that the wheel is built against."""
    torch = target_environment.find_torch()
    # Only a source distribution can be made without a torch to look at.
    requirement = torch.requirement if torch else target_environment.TORCH_REQUIREMENT
    return {"dependencies": [requirement, *settings["dependencies"]]}


def dynamic_wheel(_settings: Mapping[str, Any]) -> dict[str, bool]:
    """A wheel's dependencies differ from those of the source distribution it is built from."""
    return {"dependencies": True}
