from .advice import Advice
from .engine_listing import engines
from .engine_table import EngineTable
from .explaining import explain
from .explanation import Explanation
from .plan_choice import PlanChoice
from .plans.loading import clear_plan_cache, load_plans, plan_cache
from .plans.plan_set import Plans
from .plans.tune import tune

__all__ = [
    "Advice",
    "EngineTable",
    "Explanation",
    "PlanChoice",
    "Plans",
    "clear_plan_cache",
    "engines",
    "explain",
    "load_plans",
    "plan_cache",
    "tune",
]
