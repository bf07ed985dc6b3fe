"""Who solves the tasks."""

from __future__ import annotations
