"""Whether convtime.diagnose names planted causes first, and nothing where nothing is planted.

A row is a case; what only a first call does is diagnosed in a fresh process. What is planted was
written down before the rules that find it. Sizes, durations and dtypes are drawn from the hash of
the commit that froze the rules, the last one that changed convtime/diagnosis: nobody knew them
while the rules were written. A case is scored twice, the second time by the same rules on the same
evidence without hardware counters. A control is clean if no cause is named at all.
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import results
from common import running, summaries
from common.planting import NOTHING, diagnose_planted, told_causes

RULES = "python/convtime/diagnosis"
TIMEOUT_SECONDS = 90.0  # of a fresh process, which takes some 20


def summarise(rows: list[results.Row]) -> dict[str, float]:
    planted = [row for row in rows if row["cause"] != NOTHING]
    controls = [row for row in rows if row["cause"] == NOTHING]
    named, without = (
        summaries.share(row[field] == row["cause"] for row in planted)
        for field in ("first", "first_without_counters")
    )
    return summaries.known(
        planted=len(planted),
        controls=len(controls),
        named_first=named,
        named_first_without_counters=without,
        controls_clean=summaries.share(not row["causes"] for row in controls),
    )


def table(rows: list[results.Row]) -> str:
    found = ((row, summaries.diagnosis(row, row["first_without_counters"])) for row in rows)
    return summaries.markdown(
        "case | planted | drawn | named first | without counters | named besides | seconds:",
        ((key, row["cause"], *cells) for row, (key, *cells) in found),
    )


def diagnosed(key: str, rules: str) -> results.Row:
    from diagnose_parts.causes import CAUSES, CONTROLS

    found, row = diagnose_planted({**CAUSES, **CONTROLS}, key, rules, device="cuda")
    return {"rules": rules, **judged(found.evidence), **row}


def judged(evidence: Any) -> results.Row:
    from convtime.diagnosis.rules import judge

    causes, without = judge(evidence), judge(dataclasses.replace(evidence, counters={}))
    return {
        "first": causes[0].code if causes else NOTHING,
        "first_without_counters": without[0].code if without else NOTHING,
        "causes": told_causes(causes),
    }


def tell(row: results.Row) -> str:
    return f"{summaries.named_causes(row, NOTHING, 3)}; {row['seconds']:.1f} s"


def judge_again(files: Iterable[Path]) -> None:
    """Prints what the rules, as they are now, make of the evidence in result files."""
    from convtime.core import codec
    from convtime.diagnosis.evidence import Evidence
    from convtime.exchange.upgrade import renewed

    rows = [
        row | judged(codec.decode(Evidence, renewed(row["evidence"])))
        for file in files
        for row in json.loads(file.read_text(encoding="utf-8"))["rows"]
    ]
    for row in rows:
        print(f"{row['key']}: {tell(row)}")
    goals = results.load_goals()["diagnose"]
    print(results.describe(results.make_summary(rows, summarise, goals)))


def make_cases(device: running.Device, rules: str) -> dict[str, running.Measure]:
    from diagnose_parts.causes import CAUSES, CONTROLS

    fresh = functools.partial(running.run_probe, "diagnose", timeout=TIMEOUT_SECONDS)
    return {
        key: (
            functools.partial(fresh, key, device, rules)
            if plant.cause == "first-call"
            else functools.partial(diagnosed, key, rules)
        )
        for key, plant in {**CONTROLS, **CAUSES}.items()
    }


def find_rules() -> str:
    """The commit that froze the rules: the last one that changed them."""
    where = str(results.HERE.parent)
    command = ["git", "-C", where, "log", "-1", "--format=%H", "--", RULES]
    found = running.capture(command, timeout=60).stdout.strip()
    if not found:
        raise SystemExit(
            f"error: no git history at {where}; give the commit that froze the rules by --rules"
        )
    return found


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.add_argument("--rules", metavar="COMMIT", help="that froze the rules (default: ask git)")
    parser.add_argument(
        "--judge",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="only judge the evidence in result files again, by the rules as they are now; needs "
        "no GPU, and changes no file",
    )
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        judge_again(options.judge)
        return

    device = running.find_gpu(options.device)
    if options.probe:
        running.print_result(diagnosed(*options.probe))
        return
    file = running.open_file("diagnose", summarise, options, device)
    running.measure_pending(file, make_cases(device, options.rules or find_rules()), tell)


if __name__ == "__main__":
    main()
