"""A result of every type that convtime.load reads, made by hand, with a chosen name in each."""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
from collections.abc import Mapping
from typing import Any

from convtime.conv.call import ConvCall, TensorLayout
from convtime.conv.engine_table import EngineResult, EngineTable, PassEngines
from convtime.conv.plans.plan_set import Choice, Plans, StoredPlan
from convtime.core import codec
from convtime.counting.results import Energy, PeakMemory
from convtime.device.clock_trace import ClockReading
from convtime.device.proof import Promise, Proof
from convtime.health.survey import Survey, SurveyedGpu
from convtime.histories.result import ChangePoint, History, Series
from convtime.histories.run import HistoryRun
from convtime.regression.baseline import Baseline
from convtime.regression.changes import Change
from convtime.storage.load import MODULES
from convtime.sweeps.comparison_table import ComparisonTable
from convtime.sweeps.plan import ComparisonPlan
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Ceilings, Measurement, Measurements
from convtime.timing.verdict import Ratio
from convtime.tuning.race_result import Dropped, Race
from convtime.upgrading.result import LayerChange, Upgrade
from tests.helpers import TESTS, plans
from tests.helpers.measurements import make
from tests.helpers.pass_facts import FACTS

#: Types whose stored files are as good as results made by hand; the names in them.
_FROM_FILES = (
    *("Changes", "ClockTrace", "Counters", "Diagnosis", "Examination", "Explanation"),
    *("ModuleTimes", "Recording", "Sweep"),
)
_NAMES = ("relu", "clamp", "a", "<lambda>", "0", "conv")


def sampled(name: str, seconds: float = 1e-5, count: int = 40, **changes: Any) -> Measurement:
    """A measurement on a GPU whose samples scatter by 2 %, as do its clocks."""
    chance = random.Random(name)
    noisy: dict[str, Any] = {
        "name": name,
        "seconds": tuple(seconds * chance.lognormvariate(0, 0.02) for _ in range(count)),
        "discarded": (100 * seconds,),
        "batches": tuple(place // 10 for place in range(count)),
        "sm_clocks_hz": tuple(chance.uniform(1.8e9, 1.98e9) for _ in range(count)),
        "conditions": tuple(
            ClockReading(s / 10, 1.9e9, 2.6e9, 500.0 + s, 50.0, ()) for s in range(9)
        ),
        "ceilings": Ceilings(4e12, 6e14, "float16"),
        "flops": 1e8,
        "nbytes": 1e7,
        "activities": (),
    }
    return make(**noisy | changes)


def every_result(name: str = "relu") -> dict[str, codec.Stored]:
    """A result of each type, by type; ``name`` is in each of them as an operation's name."""
    relu, other = sampled(name), sampled(f"{name}, other", 1.2e-5)
    both = Comparison({name: relu, other.name: other})
    runs = [
        {each.name: each for each in pair} for pair in ((relu, other), (relu, sampled(other.name)))
    ]
    names = (*both.measurements, "late")
    promises = (Promise(name, False, name), Promise("ticks", None, "unknown"))
    dropped = {other.name: Dropped("slower", "1", 0.1), "late": Dropped("it failed", "alone", 0.0)}
    state = ClockReading(0.0, 1.9e9, 2.6e9, 500.0, 50.0, ())
    links = (8, 16, 5, 5, (True, False))
    gpu = SurveyedGpu("cuda:0", name, "GPU-1", state, 1.98e9, True, 0, *links)
    found: dict[str, codec.Stored] = {
        "Measurement": relu,
        "Measurements": Measurements(
            {f"{name} {size}": sampled("", 1e-6 * size) for size in range(1, 13)}
        ),
        "Baseline": Baseline.of(runs, {name: name, other.name: other.name}, calibrated=False),
        "Comparison": both,
        "ComparisonTable": _table(name),
        "Energy": Energy(name, 0.5, 0.1, 400.0, 2.0, 4, "cuda:0"),
        "EngineTable": _engines(),
        "History": _history(name),
        "PeakMemory": PeakMemory(name, 8 << 20, 4 << 20, "cuda:0"),
        "Plans": _plans(name),
        "Proof": Proof("H200", "GPU-1", {"torch": "2.15"}, "2026-11-24T01:02:03+00:00", promises),
        "Race": Race(name, name, (name,), names, 0.01, both.measurements, (both,), dropped),
        "Survey": Survey((gpu,), {}),
        "Upgrade": _upgrade(name),
    }
    for kind in _FROM_FILES:
        document = json.loads((TESTS / "data" / "schema_6" / f"{kind}.json").read_text())
        kind_of = getattr(importlib.import_module(MODULES[kind]), kind)
        found[kind] = kind_of.from_dict(_renamed(document, name))
    assert found.keys() == MODULES.keys()
    return found


def _renamed(part: Any, name: str) -> Any:
    """Return JSON with another name in place of each operation's, module's and region's."""
    if isinstance(part, Mapping):
        return {_renamed(key, name): _renamed(value, name) for key, value in part.items()}
    if isinstance(part, list):
        return [_renamed(each, name) for each in part]
    return name if part in _NAMES else part


def _table(name: str) -> ComparisonTable:
    plan = ComparisonPlan(
        {name: "x", f"{name}, other": "y"}, {"n": (1, 8, 64), "kind": ("p", name)}, baseline=name
    )
    points = []
    for place, point in enumerate(plan.points()):
        times = {name: 1e-6 * (1 + place), f"{name}, other": 3e-6}
        failed = place == 3
        compared = None if failed else Comparison({k: sampled(k, v) for k, v in times.items()})
        errors = {name: f"RuntimeError: {name}"} if failed else {}
        points.append(dataclasses.replace(point, visit=place, comparison=compared, errors=errors))
    control = dataclasses.replace(points[0], control=True)
    return ComparisonTable(plan, tuple(points), (control,))


def _engines() -> EngineTable:
    sizes = TensorLayout((8, 64, 28, 28), (50176, 784, 28, 1))
    filters = TensorLayout((64, 64, 3, 3), (576, 9, 3, 1))
    call = ConvCall.of_layouts("float16", sizes, filters, padding=(1, 1))
    engines = [
        EngineResult(
            f"ConvFwd_eng{place}",
            (("a", place),),
            workspace_bytes=place << 20,
            measurement=sampled(f"engine {place}", 1e-5 * (1 + place)),
            error=1e-4,
            repeats=True,
        )
        for place in range(9)
    ]
    engines.append(EngineResult("ConvFwd_eng9", (("index", 9),), refused="<b>not supported</b>"))
    found = PassEngines(
        "fprop", "Cudnn", sampled("PyTorch"), "ConvFwd_eng1", "", 1e-4, tuple(engines)
    )
    return EngineTable(call, "cuda:0", (found,), {"gpu": "NVIDIA H200"})


def _history(name: str) -> History:
    count = 20
    runs = tuple(
        HistoryRun(
            f"2026-01-{day + 1:02}T00:00:00+00:00", f"{day:040x}", False, "convtime", {}, (), ()
        )
        for day in range(count)
    )
    seconds = tuple(1e-5 if day < 12 else 1.2e-5 for day in range(count))
    change = ChangePoint(
        12, f"{12:012x}", f"{11:012x}", (f"{12:012x}",), 12, 12, 0.97, 1e-9, Ratio(1.2, 1.18, 1.22)
    )
    low, high = (tuple(factor * each for each in seconds) for factor in (0.99, 1.01))
    where, places = ("NVIDIA H200", "cache cold"), tuple(range(count))
    series = Series(name, *where, places, seconds, low, high, 0.01, (change,), True)
    return History(runs, (series,), 0.0005, (f"{name}: a file is damaged",))


def _plans(name: str) -> Plans:
    facts = dataclasses.replace(plans.FACTS, refused=(("eng4", name),))
    faster = dataclasses.replace(plans.ENTRY, name=name, facts=facts)
    slower = StoredPlan(f"{name}, other", plans.PROBLEM, 100, 148, Choice("pytorch"))
    return Plans((faster, slower), 0.01, {"gpu": "NVIDIA H200", "cudnn": "9.26.0"})


def _upgrade(name: str) -> Upgrade:
    facts = dataclasses.replace(FACTS, module=name, kernels=(name,))
    change = Change(f"{name} forward", "slower", 1e-3, 2e-3, reproducer=f"convtime upgrade {name}")
    slower = LayerChange((name, "conv2"), "forward", change, 2e-3, facts, facts)
    return Upgrade((slower,), {"torch": "2.11.0"}, {"torch": "2.15.0"}, margin=0.03, pairs=2)
