"""Whether convtime.diagnose names planted causes first, and nothing where nothing is planted.

A row is a case; what only a first call does is diagnosed in a fresh process. What is planted was
written down before the rules that find it. Sizes, durations and dtypes are drawn from the hash of
the commit that froze the rules, the last one that changed convtime/diagnosis: nobody knew them
while the rules were written. A case is scored twice, the second time by the same rules on the same
evidence without hardware counters. A control is clean if no cause is named at all.

--judge FILE... judges the evidence in result files again.
"""

import results
from common import summaries
from common.planting import NOTHING


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
