"""A run -> counts -> ``Analysis``, the one value that every report and every gate reads."""

from __future__ import annotations

from pytest_infranoise.analysis.deltas import smallest_flip_p
from pytest_infranoise.analysis.run import analyse
from pytest_infranoise.analysis.run import compare
from pytest_infranoise.chains import infra_alternative

__all__ = ["analyse", "compare", "infra_alternative", "smallest_flip_p"]
