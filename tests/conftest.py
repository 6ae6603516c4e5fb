"""Makes the contracts importable by their name, and keeps hypothesis reproducible."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
# A contract's property is run once per class that inherits it, which is what the suppressed check asks about.
inherited = [HealthCheck.differing_executors, HealthCheck.too_slow]
settings.register_profile("ours", derandomize=True, deadline=None, suppress_health_check=inherited)
settings.load_profile("ours")
