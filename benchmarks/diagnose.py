"""Whether convtime.diagnose names planted causes first, and nothing where nothing is planted.

A row is a case; what only a first call does is diagnosed in a fresh process. What is planted was
written down before the rules that find it. Sizes, durations and dtypes are drawn from the hash of
the commit that froze the rules, the last one that changed convtime/diagnosis: nobody knew them
while the rules were written. A case is scored twice, the second time by the same rules on the same
evidence without hardware counters. A control is clean if no cause is named at all.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import results
from common import running, summaries

if TYPE_CHECKING:
    import torch

    from convtime.diagnosis.evidence import Evidence

NOTHING = "nothing"
RULES = "python/convtime/diagnosis"
TIMEOUT_SECONDS = 90.0  # of a fresh process, which takes some 20


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """How many cases there were of each kind, and the share that was judged rightly."""
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
    lines = []
    for row in rows:
        key, *cells = summaries.diagnosis(row, row["first_without_counters"])
        lines.append((key, row["cause"], *cells))
    return summaries.markdown(
        "case | planted | drawn | named first | without counters | named besides | seconds:", lines
    )


def diagnosed(key: str, rules: str) -> results.Row:
    """What is found of a case, in this process."""
    from common.planting import diagnose_planted
    from diagnose_parts.causes import CAUSES, CONTROLS

    found, row = diagnose_planted({**CAUSES, **CONTROLS}, key, rules, device="cuda")
    return {"rules": rules, **judged(found.evidence), **row}


def judged(evidence: Evidence) -> results.Row:
    """What the rules make of evidence, with hardware counters and without."""
    from common.planting import told_causes

    from convtime.diagnosis.rules import judge

    causes, without = judge(evidence), judge(evidence.without_counters())
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


def make_cases(device: torch.device, rules: str) -> dict[str, running.Measure]:
    from diagnose_parts.causes import CAUSES, CONTROLS

    return {
        key: (
            functools.partial(
                running.run_probe, "diagnose", key, device, rules, timeout=TIMEOUT_SECONDS
            )
            if plant.cause == "first-call"
            else functools.partial(diagnosed, key, rules)
        )
        for key, plant in {**CONTROLS, **CAUSES}.items()
    }


def find_rules() -> str:
    """The commit that froze the rules: the last one that changed them."""
    where = results.HERE.parent
    try:
        found = subprocess.run(
            ["git", "-C", str(where), "log", "-1", "--format=%H", "--", RULES],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found = ""
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
