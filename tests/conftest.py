"""Hypothesis profiles: the same examples on every run; HYPOTHESIS_PROFILE=explore looks further."""

import os

from hypothesis import HealthCheck, settings

# A busy machine must not fail a property for taking long.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gate", derandomize=True, max_examples=60, **_COMMON)
settings.register_profile("explore", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
