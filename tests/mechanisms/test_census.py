"""The built-in data follow the network as it is written down."""

from __future__ import annotations

import numpy as np
import pytest
from chance import FALSE_ALARM, assert_follows
from scipy import stats

from mechanisms.datasets.census import LABELS, NETWORK, census, domain
from pgmkit import InvalidInput


def test_labels_rates_and_codes_agree() -> None:
    data = census(3000)
    for attribute, node in NETWORK.items():
        assert len(LABELS[attribute]) == len(node.rates) == domain().sizes[attribute]
        assert len(set(LABELS[attribute])) == len(node.rates)
        assert (data.marginal((attribute,)) > 0).all()


def test_a_root_follows_its_rates() -> None:
    rates = np.array(NETWORK["age"].rates, dtype=float)
    observed = census(20_000).marginal(("age",))
    assert_follows(observed, rates)


def test_a_child_follows_its_conditional_law() -> None:
    # Marital status given age and sex, the softmax written out for every parent combination.
    node, data = NETWORK["marital"], census(20_000)
    observed = data.marginal(("age", "sex", "marital"))
    age, sex, value = np.meshgrid(*(np.linspace(-1, 1, n) for n in observed.shape), indexing="ij")
    pull = node.slopes["age"] * age + node.slopes["sex"] * sex
    law = np.array(node.rates) * np.exp(pull * value)
    expected = law / law.sum(-1, keepdims=True) * observed.sum(-1, keepdims=True)
    for group, each in zip(
        observed.reshape(-1, len(node.rates)), law.reshape(-1, len(node.rates)), strict=True
    ):
        assert_follows(group, each)
    # All groups at once: a small error in each adds up.
    enough = expected > 20
    statistic = ((observed - expected)[enough] ** 2 / expected[enough]).sum()
    assert statistic <= stats.chi2.isf(FALSE_ALARM, enough.sum())


def test_the_same_seed_gives_the_same_rows() -> None:
    first, second, third = census(500), census(500), census(500, seed=1)
    assert all((first.columns[a] == second.columns[a]).all() for a in first.domain)
    assert any((first.columns[a] != third.columns[a]).any() for a in first.domain)


def test_no_records_are_refused_by_the_name_of_their_number() -> None:
    with pytest.raises(InvalidInput, match="rows must be a whole number of records from 1 to"):
        census(0)
