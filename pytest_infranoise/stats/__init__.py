"""Estimators behind every number the plugin reports.

Pure functions of small count arrays; numpy and scipy only, no Docker, no pytest. Everything is a
proportion in [0, 1] (a delta in [-1, 1]), never percent. The unit of analysis is the task: an
array argument called `x` or `n` holds one entry per task, a matrix is tasks x configs.

Two targets run through the package. `benchmark`: the score of exactly these tasks, where only the
sampling of trials is random. `population`: tasks like these, where the tasks are a sample too.
"""

from __future__ import annotations
