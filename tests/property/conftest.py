"""Hypothesis profiles: `fixed` (always the same examples, for CI) unless another is asked for with --hypothesis-profile."""

from hypothesis import HealthCheck, settings

CALM = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("fixed", derandomize=True, max_examples=35, **CALM)
settings.register_profile("explore", max_examples=2000, **CALM)
if settings.get_current_profile_name() in ("default", "ci"):
    settings.load_profile("fixed")
