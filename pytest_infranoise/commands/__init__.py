"""Subcommands of ``infranoise`` about numbers: each checks its arguments and calls what does the work."""

from __future__ import annotations
