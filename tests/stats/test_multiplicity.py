"""Adjusted p-values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_infranoise.stats.multiplicity import bh
from pytest_infranoise.stats.multiplicity import holm


def test_one_test_needs_no_adjustment() -> None:
    assert holm([0.03]).tolist() == bh([0.03]).tolist() == [0.03]
    assert holm([]).size == bh([]).size == 0


def test_tests_that_were_not_made_do_not_count() -> None:
    assert holm([0.01, math.nan, 0.04])[[0, 2]] == pytest.approx(holm([0.01, 0.04]))
    assert np.isnan(bh([0.01, math.nan])[1])


def test_ties_share_their_adjustment() -> None:
    assert holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)
    assert bh([0.02, 0.02, 0.02]) == pytest.approx([0.02] * 3)


@pytest.mark.parametrize("p", [[-0.1], [1.1], [[0.1]]])
def test_only_probabilities_are_accepted(p: list[float]) -> None:
    for function in (holm, bh):
        with pytest.raises(ValueError, match="p-values"):
            function(p)
