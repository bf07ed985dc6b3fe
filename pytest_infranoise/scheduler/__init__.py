"""Which trial starts when, and beside what."""

from __future__ import annotations
