"""How far each method of convtime, and other tools, are from what the device itself did.

The truth of an operation is torch.profiler's (CUPTI's, through kineto): the time in which at least
one of its kernels ran, and the span from the first one's start to the last one's end. Truth and
methods alternate, with as many calls each and as much rest before. Kernels that spin for a known
time, and kernels that stamp the GPU's own clock at start and end, check the traced times without a
tracer.

Times are compared by the median over the passes of each pass's median: method kernel with the
kernels' busy time, method event with the same where there is one kernel.

Tracing itself slows kernels of many blocks down: fewer of their blocks fit on the device at a time.
Method event, which does not trace, is therefore compared with the truth less what tracing adds: by
how much two events around the same call are further apart with the profiler on than with it off,
beyond what they are around a kernel of fixed duration. Method graph is compared with stamps of the
device's clock in a graph, less what they say too much of such a kernel: with a cold cache around
the call, with a warm one around one call and around several back to back, since it is
such calls that the method times.
"""

from __future__ import annotations

from accuracy_parts.report import picture, summarise, table, tools_table
from common import running

__all__ = ["picture", "summarise", "table", "tools_table"]


if __name__ == "__main__":
    from accuracy_parts.cases import PROBES, make_cases

    running.run_on_gpu("accuracy", __doc__, summarise, make_cases, probes=PROBES)
