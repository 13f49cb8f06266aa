"""Finding change points in simulated histories, and reading a large one.

Each row simulates many series of log medians with a deviation of 1.5 % between runs, and searches
each as convtime.history does:

- "no change": how many series have a false change point. The goal counts those with normal noise.
- "step": a step of 3 % up or down. Located is a step with a change point at most one commit away.
  The oracle knows that there is one step, both levels and the deviation, and chooses the three
  commits that contain the step with the highest probability. The goal counts the row with 10 to 60
  runs on each side, one run for each commit.
- "load": seconds in which convtime.history reads and judges a folder with 1,000 runs of 300 tests,
  in a fresh process, without the imports.
"""

import datetime
import functools
import math
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import results
from common import running, summaries

DEVIATION = 0.015
STEP = 0.03
FALSE_ALARMS = 0.0005
RUNS, TESTS = 1000, 300
CHANGED = 10  # every so manieth test of the folder has a step
HEADLINE = "step, 10 to 60 runs on each side"


def normal(random: Any, count: int) -> Any:
    return random.normal(size=count)


def heavy_tails(random: Any, count: int) -> Any:
    """Student's t with three degrees of freedom, at the same standard deviation."""
    return random.standard_t(3, size=count) / math.sqrt(3)


def outliers(random: Any, count: int) -> Any:
    """Normal noise; one run in fifty takes 30 % longer."""
    return random.normal(size=count) + (random.random(count) < 0.02) * math.log(1.3) / DEVIATION


def dependent(random: Any, count: int) -> Any:
    """Noise of which neighboring runs share 30 % (an autoregressive process)."""
    noise = random.normal(size=count)
    for index in range(1, count):
        noise[index] = 0.3 * noise[index - 1] + math.sqrt(1 - 0.3**2) * noise[index]
    return noise


def _search(key: str) -> tuple[Any, Any]:
    import numpy as np

    from convtime.histories.change_points import find_changes

    return find_changes, np.random.default_rng(zlib.crc32(key.encode()))


def of_no_change(key: str, count: int, series: int, noise: Callable[..., Any]) -> results.Row:
    find_changes, random = _search(key)
    found = sum(
        bool(find_changes(DEVIATION * noise(random, count), range(count), FALSE_ALARMS))
        for _ in range(series)
    )
    return {"series": series, "false": found}


def of_step(key: str, least: int, most: int, per_commit: int, series: int) -> results.Row:
    find_changes, random = _search(key)
    counts = dict.fromkeys(("found", "located", "covered", "oracle"), 0)
    commits_of_a_side = (least // per_commit, most // per_commit + 1)
    for _ in range(series):
        before, after = (per_commit * int(random.integers(*commits_of_a_side)) for _ in range(2))
        step = math.log(1 + random.choice((-1, 1)) * STEP)
        values = DEVIATION * random.normal(size=before + after)
        values[before:] += step
        commits = [index // per_commit for index in range(before + after)]
        true = commits[before]
        changes = find_changes(values, commits, FALSE_ALARMS)
        counts["found"] += bool(changes)
        if changes:
            nearest = min(changes, key=lambda change: abs(commits[change.at] - true))
            counts["located"] += abs(commits[nearest.at] - true) <= 1
            counts["covered"] += commits[nearest.earliest] <= true <= commits[nearest.latest]
        counts["oracle"] += abs(_oracle(values, step, per_commit) - true) <= 1
    return {"series": series, **counts}


def _oracle(values: Any, step: float, per_commit: int) -> int:
    """The first commit after the step, by one who knows the levels and the deviation."""
    import numpy as np

    gains = step * (values - step / 2) / DEVIATION**2  # of each run being after the step
    after = np.cumsum(gains[::-1])[::-1][per_commit::per_commit]
    weights = np.exp(after - after.max())
    return int(np.convolve(weights, np.ones(3), mode="same").argmax()) + 1


def of_load() -> results.Row:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        row: results.Row = running.run_program(
            "import ruptures, convtime",
            "convtime.history",
            "begin = time.perf_counter()",
            "found = convtime.history(sys.argv[1])",
            "seconds = time.perf_counter() - begin",
            'result = {"seconds": seconds, "changes": len(found.changes)}',
            arguments=[folder],
        )
    return {"runs": RUNS, "tests": TESTS, "mb": size / 1e6, **row}


def write_folder(folder: Path) -> None:
    import numpy as np

    from convtime.core import codec
    from convtime.histories.run import Kind, make_run

    random = np.random.default_rng(0)
    begin = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    kind = Kind("a GPU", "method kernel, metric busy, cache cold")
    for number in range(RUNS):
        steps = [number >= RUNS // 2 and test % CHANGED == 0 for test in range(TESTS)]
        medians = 1e-5 * np.exp(DEVIATION * random.normal(size=TESTS) + STEP * np.array(steps))
        times = [
            ((f"tests/test_times.py::test_{test}", value, value * 0.997, value * 1.003), kind)
            for test, value in enumerate(medians.tolist())
        ]
        date = (begin + datetime.timedelta(hours=number)).isoformat()
        facts: dict[str, Any] = {"dirty": False, "tool": "convtime", "machine": {}}
        run = make_run(date=date, commit=f"{number:040x}", times=times, **facts)
        Path(folder, f"{number}.json").write_text(codec.to_json(run.to_dict()), encoding="utf-8")


CASES: dict[str, tuple[Any, ...]] = {
    **{f"no change, {runs} runs": (of_no_change, runs, 20_000, normal) for runs in (20, 60, 300)},
    "no change, 1000 runs": (of_no_change, 1000, 10_000, normal),
    "no change, 300 runs, heavy tails": (of_no_change, 300, 10_000, heavy_tails),
    "no change, 300 runs, outliers": (of_no_change, 300, 10_000, outliers),
    "no change, 60 runs, dependent": (of_no_change, 60, 10_000, dependent),
    "no change, 300 runs, dependent": (of_no_change, 300, 10_000, dependent),
    "step, 10 runs on each side": (of_step, 10, 10, 1, 10_000),
    "step, 20 runs on each side": (of_step, 20, 20, 1, 10_000),
    HEADLINE: (of_step, 10, 60, 1, 10_000),
    "step, 10 to 500 runs on each side": (of_step, 10, 500, 1, 100_000),
    f"{HEADLINE}, two for each commit": (of_step, 10, 60, 2, 10_000),
    "step, 10 to 500 runs on each side, two for each commit": (of_step, 10, 500, 2, 10_000),
}


def make_cases(_: object) -> dict[str, running.Measure]:
    drawn = {key: functools.partial(case[0], key, *case[1:]) for key, case in CASES.items()}
    return {"load": of_load, **drawn}


def summarise(rows: list[results.Row]) -> dict[str, float]:
    by_key = summaries.by_key(rows)
    summary: dict[str, float] = {}
    if "load" in by_key:
        summary["load_1000_runs_s"] = by_key["load"]["seconds"]
    if HEADLINE in by_key:
        summary["located_within_one"] = by_key[HEADLINE]["located"] / by_key[HEADLINE]["series"]
    quiet = [key for key, case in CASES.items() if case[0] is of_no_change and case[3] is normal]
    if all(key in by_key for key in quiet):
        false, series = (sum(by_key[key][what] for key in quiet) for what in ("false", "series"))
        summary["false_changes_per_1000_series"] = 1000 * false / series
    return summary


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in rows:
        if "located" in row:
            series, found = row["series"], row["found"]
            shares = [(found, series), (row["located"], series), (row["located"], found)]
            shares += [(row["oracle"], series), (row["covered"], found)]
            lines.append((row["key"], series, *(f"{some / of:.1%}" for some, of in shares)))
    header = "series | : | found: | located: | of the found: | located by the oracle: "
    return summaries.markdown(f"{header}| interval has it:", lines)


def false_table(rows: list[results.Row]) -> str:
    return summaries.filled(
        "series | : | with a false change point: | per 1,000:",
        "{key} | {series} | {false} | {per_1000:.2g}",
        (row | {"per_1000": 1000 * row["false"] / row["series"]} for row in rows if "false" in row),
    )


if __name__ == "__main__":
    running.run("history", make_cases, on="any")
