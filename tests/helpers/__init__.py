"""What tests share, and the folders that they look into."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
FAKE_NVML = TESTS / "fake_nvml"
