"""Where trials run: containers with floor and ceiling, and what the engine and the kernel say of them."""

from __future__ import annotations
