"""Kinds of calls that need kernels of convtime's own; first_use.py makes them."""

TIME_OP = "time_op"
USES = (
    TIME_OP,
    "pool",
    "pool channels_last",
    "pool backward",
    "epilogue",
    "mlp 64 inference",
    "mlp 64 training",
    "mlp 128 training",
    "mlp 256 training",
)
