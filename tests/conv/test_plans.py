"""The file of chosen plans, and loading it."""

import concurrent.futures
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import convtime
from convtime import Ratio
from convtime.conv.plans import loading
from convtime.conv.plans.plan_set import Choice, Operand, Plans, StoredPlan, read_plans
from convtime.core.errors import InputError
from convtime.core.load import _C
from tests.helpers.plans import ENTRY, FACTS, PLANS, PROBLEM

needs_stored_plans = pytest.mark.skipif(
    not hasattr(_C, "store_plan"), reason="convtime was built without CUDA"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plans.json"


@pytest.fixture(autouse=True)
def unload() -> Iterator[None]:
    yield
    convtime.conv.load_plans(None)


def having(*entries: StoredPlan, **provenance: str) -> Plans:
    return Plans(entries, PLANS.margin, {**PLANS.provenance, **provenance})


def changed(**changes: Any) -> StoredPlan:
    return dataclasses.replace(ENTRY, **changes)


def with_problem(**changes: Any) -> StoredPlan:
    return changed(problem=dataclasses.replace(PROBLEM, **changes))


def test_plans_are_stored_and_loaded_as_results(path: Path) -> None:
    few = dataclasses.replace(FACTS, speedup=Ratio(1.2, -math.inf, math.inf))
    for plans in (having(changed(facts=few)), PLANS):
        plans.save(path)
        assert read_plans(path) == convtime.load(path) == plans
    (entry,) = json.loads(path.read_text())["entries"]
    expected = {"backend": "cudnn", "engine": 38, "knobs": [[2, 8], [13, 1]], "layout": None}
    assert entry["choice"] == expected


def test_they_tell_what_was_gained() -> None:
    assert "1 of them faster" in str(PLANS)
    assert "1.2500 [1.2000, 1.3000]" in str(PLANS)
    assert "eng4" in PLANS.details()
    assert "&lt;b&gt;eng9" in PLANS._repr_html_()
    assert "PyTorch" in str(having(changed(facts=None, choice=Choice("pytorch"))))
    (figure,) = PLANS.figures()
    assert '"ratio": [1.25]' in json.dumps(figure.spec)
    assert "1 of 1 problems" in figure.description


def test_a_file_keeps_other_problems_and_replaces_equal_ones(path: Path) -> None:
    other, newer = with_problem(dtype="float32"), changed(choice=Choice("cudnn", 5))
    for entry in (ENTRY, other, newer):
        having(entry).add_to(path)
    assert set(read_plans(path).entries) == {newer, other}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # writers at once lose nothing
        [*pool.map(lambda count: having(changed(multiprocessors=count)).add_to(path), range(16))]
    assert {each.multiprocessors for each in read_plans(path).entries} == {132, *range(16)}
    having(ENTRY, cudnn="9.0.0").save(path)
    with pytest.raises(InputError, match=r"chosen with cuDNN 9\.0\.0 .*--revalidate"):
        PLANS.add_to(path)


def test_what_is_no_file_of_plans_is_told_in_a_sentence(path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        convtime.conv.load_plans(path)
    for content, message in (
        ("", "not valid JSON"),
        ('{"type": "Plans", "schema": "6.0", "entries"', "not valid JSON"),
        ("[1]", "no file of plans"),
        ('{"type": "Race", "schema": "6.0"}', "JSON of type 'Race'"),
        ('{"type": "Plans", "schema": "7.0"}', "schema '7.0' cannot be read"),
        ('{"type": "Plans", "schema": "6.0", "entries": 3}', "no file of plans"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=re.escape(message)) as raised:
            read_plans(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)
    having(ENTRY, ENTRY).save(path)
    with pytest.raises(InputError, match="two entries for fprop of 8×64×28×28"):
        read_plans(path)
    with pytest.raises(ValueError, match="an engine is needed"):
        Choice("cudnn")
    with pytest.raises(ValueError, match="a tag must name an engine"):
        Choice.of_tag("ConvFwd")


@needs_stored_plans
def test_every_field_of_a_problem_identifies_it() -> None:
    loading.use(PLANS)
    assert loading.is_in_use(ENTRY)
    others: dict[str, Any] = {
        "pass_name": "wgrad",
        "dtype": "bfloat16",
        "stride": (1, 2),
        "padding": (0, 1),
        "dilation": (1, 3),
        "deterministic": True,
        "allow_tf32": False,
        "activation": "relu",
        **{name: dataclasses.replace(getattr(PROBLEM, name), alignment=16) for name in "xwy"},
        "b": Operand((1, 32, 1, 1), (32, 1, 32, 32), 32),
    }
    for name, value in others.items():
        assert not loading.is_in_use(with_problem(**{name: value})), name
    other = changed(architecture=80)
    assert not loading.is_in_use(other)
    assert not loading.is_in_use(changed(multiprocessors=114))
    loading.use(having(other))  # in place of what was loaded
    assert not loading.is_in_use(ENTRY)
    assert loading.is_in_use(other)
    assert convtime.conv.load_plans(None) is None
    assert not loading.is_in_use(other)


@needs_stored_plans
def test_plans_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"chosen with cuDNN 9\.0\.0, and this is"):
        loading.use(having(ENTRY, cudnn="9.0.0"))
    with pytest.raises(InputError, match="the plans are for sm_12345 with 132 multi"):
        convtime.conv.load_plans(having(changed(architecture=12345)))
    values: dict[str, Any] = {"dtype": "int8", "pass_name": "x", "stride": (1,)}
    for name, value in values.items():
        with pytest.raises(ValueError, match=name):
            loading.use(having(with_problem(**{name: value})))


@needs_stored_plans
@pytest.mark.thorough
def test_the_environment_names_a_file(path: Path) -> None:
    PLANS.save(path)
    program = (
        "from convtime.conv.plans import loading, plan_set; import sys;"
        "print(loading.is_in_use(plan_set.read_plans(sys.argv[1]).entries[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        env={**os.environ, "CONVTIME_PLANS": str(path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True\n", done.stderr
