"""Measure how much of a benchmark score is the machine: agent tasks under resource floors and ceilings."""

from __future__ import annotations

__version__ = "0.1.0"
