"""Hypothesis strategies for runs of any shape."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.builders import Counts

_CELLS = st.tuples(*(st.integers(0, most) for most in (4, 4, 3, 2)))
# A slash would stand between an agent's name and its model.
_NAMES = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=60)


@st.composite
def count_tables(draw: st.DrawFn, names: st.SearchStrategy[str] = _NAMES) -> Counts:
    """Return agents x configs x tasks with any number of passes, fails, infra-errors and missing trials."""
    agents = draw(st.lists(names, max_size=3, unique=True))
    configs = draw(st.lists(names, max_size=6, unique=True))
    tasks = draw(st.lists(names, max_size=5, unique=True))
    return {
        agent: {config: {task: draw(_CELLS) for task in tasks if draw(st.integers(0, 9))} for config in configs}
        for agent in agents
    }
