from __future__ import annotations

from hypothesis import HealthCheck
from hypothesis import settings

# How long drawing an example takes says more about the machine's other work than about the code.
settings.register_profile("any-load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-load")
