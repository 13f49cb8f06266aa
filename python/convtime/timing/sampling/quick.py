"""Quick timing: some milliseconds per candidate, for choices among many candidates."""

from __future__ import annotations

import dataclasses

from convtime.timing.options import Options

#: Why a quick timing does not control the regime.
REGIME_REASON = "quick timing does not let the GPU idle"

#: Placements of a candidate: about as many as there is time for samples of a short kernel.
PLACES = 16
#: Seconds of host time to make the copies of a candidate.
COPYING_SECONDS = 0.0015
#: Bytes of all copies, which the GPU has to write.
COPIED_BYTES = 1280 << 20

#: Per candidate: as many untimed calls as take this long are timed in the first batch, which for
#: short calls is the only one.
FIRST_BATCH_SECONDS = 0.008

_SECONDS = 0.01  # per candidate, for everything
# Of these, for what follows the preparation and is not sampling: starting the tracer, first calls,
# and reading the conditions afterwards.
_OTHER_SECONDS = 0.0042
_LEAST_SECONDS = 0.001
_REQUIRED_SAMPLES = 5


def hastened(options: Options, gone: float, candidates: int, *, on_gpu: bool) -> Options:
    """Return the options with which the sampling ends in time.

    Args:
        options: the requested options.
        gone: seconds that the timing has taken so far.
        candidates: number of candidates.
        on_gpu: whether the work is on a GPU.
    """
    left = candidates * (_SECONDS - _OTHER_SECONDS) - gone
    return dataclasses.replace(
        options,
        regime="as-is" if on_gpu else options.regime,
        warmup=1 if isinstance(options.warmup, str) else options.warmup,
        min_samples=(
            _REQUIRED_SAMPLES if options.min_samples == Options.min_samples else options.min_samples
        ),
        budget=min(options.budget, max(left, _LEAST_SECONDS)),
    )
