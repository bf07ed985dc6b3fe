"""Task loaders: files in, checked `Task` values out."""

from __future__ import annotations
