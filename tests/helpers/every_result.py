"""A result of every type that convtime.load reads, made by hand, with a chosen name in each."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from typing import Any

from convtime.conv.call import ConvCall, TensorLayout
from convtime.conv.engines.engine_table import EngineResult, EngineTable, PassEngines
from convtime.core import codec
from convtime.core.proof import Promise, Proof
from convtime.counting.costs_result import Energy, PeakMemory
from convtime.counting.kernel_counters import Counters, KernelCounters
from convtime.device.clock_reading import ClockReading
from convtime.device.clock_trace import ClockTrace
from convtime.exchange.files import Found
from convtime.exchange.upgrade import upgraded
from convtime.health.survey import Survey, SurveyedGpu
from convtime.histories.result import ChangePoint, History, Series
from convtime.histories.run import HistoryRun
from convtime.regression.baseline import Baseline
from convtime.regression.changes import Change
from convtime.regression.compare_runs import compare_runs
from convtime.storage.load import TYPES
from convtime.sweeps.comparison_plan import ComparisonPlan
from convtime.sweeps.table import ComparisonTable
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Ceilings, Measurement
from convtime.timing.verdict import Ratio
from convtime.tuning.plan_set import Choice, Facts, Operand, PlanProblem, Plans, StoredPlan
from convtime.tuning.race_result import Dropped, Race
from convtime.upgrading.causes import PassFacts
from convtime.upgrading.result import LayerChange, Upgrade
from tests.helpers import TESTS
from tests.helpers.measurements import make

#: Types whose earlier files are as good as results made by hand; the names in them.
_EARLIER = ("Diagnosis", "Examination", "Explanation", "ModuleTimes", "Recording", "Sweep")
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


def every_result(name: str = "relu") -> dict[str, Found]:
    """A result of each type, by type; ``name`` is in each of them as an operation's name."""
    relu, other = sampled(name), sampled(f"{name}, other", 1.2e-5)
    both = Comparison({name: relu, other.name: other})
    runs = [
        {each.name: each for each in pair} for pair in ((relu, other), (relu, sampled(other.name)))
    ]
    found: dict[str, Found] = {
        "Measurement": relu,
        "Measurements": {
            f"{name} {size}": sampled(f"{name} {size}", 1e-6 * size) for size in range(1, 13)
        },
        "Baseline": Baseline.of(runs, {name: name, other.name: other.name}, calibrated=False),
        "Changes": compare_runs(runs[0], runs[1]),
        "ClockTrace": _trace(),
        "Comparison": both,
        "ComparisonTable": _table(name),
        "Counters": _counters(name),
        "Energy": Energy(name, 0.5, 0.1, 400.0, 2.0, 4, "cuda:0"),
        "EngineTable": _engines(),
        "History": _history(name),
        "PeakMemory": PeakMemory(name, 8 << 20, 4 << 20, "cuda:0"),
        "Plans": _plans(name),
        "Proof": Proof(
            "NVIDIA H200",
            "GPU-1",
            {"torch": "2.15"},
            "2026-11-24T01:02:03+00:00",
            (Promise(name, False, name), Promise("ticks", None, "unknown")),
        ),
        "Race": Race(
            name,
            name,
            (name,),
            (name, other.name, "late"),
            0.01,
            {name: relu, other.name: other},
            (both,),
            {other.name: Dropped("slower", "1", 0.1), "late": Dropped("it failed", "alone", 0.0)},
        ),
        "Survey": Survey((_surveyed(name),), {}),
        "Upgrade": _upgrade(name),
    }
    for kind in _EARLIER:
        document = json.loads((TESTS / "data" / "earlier" / f"{kind}.json").read_text())
        kind_of = TYPES[kind]
        found[kind] = kind_of.from_dict(_renamed(codec.document(kind, upgraded(document)), name))
    assert found.keys() - {"Measurements"} == TYPES.keys()
    return found


def _surveyed(name: str) -> SurveyedGpu:
    return SurveyedGpu(
        device="cuda:0",
        name=name,
        uuid="GPU-1",
        state=ClockReading(0.0, 1.9e9, 2.6e9, 500.0, 50.0, ()),
        max_sm_clock_hz=1.98e9,
        ecc=True,
        uncorrected_errors=0,
        pcie_width=8,
        max_pcie_width=16,
        pcie_generation=5,
        max_pcie_generation=5,
        nvlinks=(True, False),
    )


def _renamed(part: Any, name: str) -> Any:
    """Return JSON with another name in place of each operation's, module's and region's."""
    if isinstance(part, Mapping):
        return {_renamed(key, name): _renamed(value, name) for key, value in part.items()}
    if isinstance(part, list):
        return [_renamed(each, name) for each in part]
    return name if part in _NAMES else part


def _trace() -> ClockTrace:
    chance = random.Random(0)
    readings = tuple(
        ClockReading(
            place / 10, chance.uniform(1.6e9, 1.98e9), 2.6e9, 600.0, 55.0, ("sw_power_cap",)
        )
        for place in range(30)
    )
    return ClockTrace("cuda:0", 0.1, 0.0, readings, "the driver was unloaded")


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


def _counters(name: str) -> Counters:
    kernel = KernelCounters(name, 2, {"dram__bytes.sum": 4e6}, (4, 1, 1), (128, 1, 1))
    return Counters(
        name=name,
        kernels=(kernel,),
        totals={"dram__bytes.sum": 8e6},
        samples={"dram__bytes.sum": (8e6,)},
        units={"dram__bytes.sum": "byte"},
        descriptions={"dram__bytes.sum": f"bytes of {name}"},
        method="range profiler",
        replay="kernel",
        passes=1,
        cache="cold",
        device="cuda:0",
        left_out={"l1tex__t_bytes.sum": name},
    )


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
    series = Series(
        name,
        "NVIDIA H200",
        "cache cold",
        tuple(range(count)),
        seconds,
        low,
        high,
        0.01,
        (change,),
        True,
    )
    return History(runs, (series,), 0.0005, (f"{name}: a file is damaged",))


def _plans(name: str) -> Plans:
    operand = Operand((8, 64, 28, 28), (50176, 784, 28, 1), 16)
    problem = PlanProblem(
        "fprop", "float16", operand, operand, operand, (1, 1), (1, 1), (1, 1), False, True
    )
    faster = Facts(
        pytorch_tag="ConvFwd_eng1",
        pytorch_seconds=2e-5,
        seconds=1e-5,
        speedup=Ratio(2.0, 1.9, 2.1),
        error=1e-4,
        pytorch_error=1e-4,
        workspace_bytes=1 << 20,
        repeats=True,
        raced=9,
        ties=("eng2",),
        inexact=(("eng3", 1e-2),),
        refused=(("eng4", name),),
    )
    entries = (
        StoredPlan(name, problem, 90, 132, Choice("cudnn", 2), facts=faster),
        StoredPlan(f"{name}, other", problem, 100, 148, Choice("pytorch")),
    )
    return Plans(entries, 0.01, {"gpu": "NVIDIA H200", "cudnn": "9.26.0"})


def _upgrade(name: str) -> Upgrade:
    facts = PassFacts(
        module=name, dtype="float32", sizes="2×3×8×8", layout="contiguous", backend="Cudnn",
        plan="", kernels=(name,), bits="0123", error=1e-7, memory_bytes=None,
        first_call_seconds=0.01,
    )  # fmt: skip
    change = Change(f"{name} forward", "slower", 1e-3, 2e-3, reproducer=f"convtime upgrade {name}")
    slower = LayerChange((name, "conv2"), "forward", change, 2e-3, facts, facts)
    return Upgrade((slower,), {"torch": "2.11.0"}, {"torch": "2.15.0"}, margin=0.03, pairs=2)
