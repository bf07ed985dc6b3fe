"""What readers see of an analysis."""

from __future__ import annotations
