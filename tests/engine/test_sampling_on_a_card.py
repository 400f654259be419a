"""Records of a model on a pretend card are drawn from the card's own tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pretend_device import pretend_card

from pgmkit import Domain, Factor, GraphicalModel
from pgmkit.records.sampling import sample


@pytest.mark.parametrize("method", ["round", "sample"])
def test_a_model_on_a_card_draws_from_its_tables_there(method: str) -> None:
    domain = Domain({"a": 3, "b": 20_000, "c": 2})  # smaller models are answered on the processor
    rng = np.random.default_rng(0)
    with pretend_card() as card:
        factors = tuple(
            Factor(
                domain.project(pair),
                torch.from_numpy(rng.normal(0, 2, domain.shape(pair))).to("cuda"),
            )
            for pair in (("a", "b"), ("b", "c"))
        )
        there = GraphicalModel(domain, factors, total=10.0)
        records = there.sample(2000, method=method, rng=5)
        assert card.launches > 0
        # Sums on a card are rounded otherwise, so the records are those of the card's own tables.
        marginals = [there.marginal(clique) for clique in there.tree.cliques]
    plain = sample(there.tree, marginals.__getitem__, 2000, np.random.default_rng(5), method)
    for name in domain:
        np.testing.assert_array_equal(records.columns[name], plain[name])
