"""What tests of the command line share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from convtime.cli import conv
from convtime.conv.problem import FORWARD, ConvLayer
from convtime.layers.compare import LayerResult
from tests.helpers.convolutions import layer_result
from tests.helpers.threads import one_thread as one_thread

#: Two layers in the columns of DeepBench.
LAYERS = """\
w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,stride_h
9,9,4,2,6,3,3,1,1,1,1
9,9,4,2,6,1,1,0,0,2,2
"""


@pytest.fixture
def layers_csv(tmp_path: Path) -> Path:
    path = tmp_path / "layers.csv"
    path.write_text(LAYERS)
    return path


Judged = Callable[..., list[ConvLayer]]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judged:
    """Have `convtime conv` find results by hand, without timing; returns the layers it asks for."""

    def install(first: Mapping[str, Any] = {}, **all_of_them: Any) -> list[ConvLayer]:
        asked: list[ConvLayer] = []

        def compare(
            layers: Sequence[ConvLayer], *, passes: Sequence[str] = (FORWARD,), **options: Any
        ) -> Iterator[LayerResult]:
            form = {key: options[key] for key in ("dtype", "layout") if key in options}
            for layer in layers:
                asked.append(layer)
                for pass_name in passes:
                    result = layer_result(layer.problem, *layer.names, pass_name=pass_name, **form)
                    yield dataclasses.replace(
                        result, **all_of_them, **(first if len(asked) == 1 else {})
                    )

        monkeypatch.setattr(conv, "compare_layers", compare)
        return asked

    return install
