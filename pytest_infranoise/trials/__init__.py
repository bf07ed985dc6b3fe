"""One trial from start to verdict; nothing here imports pytest, so a trial can be run from a script."""

from __future__ import annotations
