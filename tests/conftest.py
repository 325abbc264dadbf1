"""What holds for all tests: a slow machine is no failure."""

from hypothesis import HealthCheck, settings

# Hypothesis would call 200 ms for one example, and a second for making ten, a fault of the test.
settings.register_profile(
    "any machine",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")
