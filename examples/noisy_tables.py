# %% [markdown]
# # From noisy tables to answers
#
# A statistical office publishes three tables with noise of known size. Nothing else is known. One
# consistent model of them answers questions that none of the tables answers.

# %%
import numpy as np

from pgmkit import Domain, Measurement, error_bars, estimate
from pgmkit.queries import FactoredQuery, identity, prefix, range_

domain = Domain({"age": 6, "sex": 2, "work": 3, "income": 5})
rng = np.random.default_rng(0)
truth = rng.dirichlet(np.full(domain.size(domain.attributes), 0.3)) * 10_000
truth = truth.reshape(domain.shape(domain.attributes))


def published(*columns: str, stddev: float) -> Measurement:
    """A table of the made-up population, with noise."""
    others = tuple(i for i, name in enumerate(domain) if name not in columns)
    table = truth.sum(axis=others)
    return Measurement(columns, table + rng.normal(0, stddev, table.shape), stddev)


tables = [
    published("age", "work", stddev=20.0),
    published("work", "income", stddev=20.0),
    published("sex", "work", stddev=50.0),
]

# %% [markdown]
# The total is estimated from the tables. The fit says how close it is to the best possible one.

# %%
model = estimate(domain, tables)
print(round(model.total), model.certificate)
model

# %% [markdown]
# A pair that nobody measured, a cumulative distribution for each sex, and a range.

# %%
print(model.marginal(("age", "income")).round())
cumulative = FactoredQuery({"sex": identity(2), "income": prefix(5)})
print(model.answer(cumulative).round())
middle_aged = FactoredQuery({"age": range_(6, 2, 3), "income": range_(5, 3, 4)})
print(float(model.answer(middle_aged).item()))

# %% [markdown]
# Standard errors and 95% intervals. For tables that were measured they are known in closed form.

# %%
bars = error_bars(model, tables, replicates=30, seed=0)
measured = bars.marginal(("age", "work"))
print(
    measured.method,
    np.mean((measured.low <= truth.sum((1, 3))) & (truth.sum((1, 3)) <= measured.high)),
)
measured

# %% [markdown]
# How well do the tables agree? A p-value near 0 says that they contradict each other by more than
# their noise explains, as with this wrong number of women; `estimate` then warns.

# %%
wrong = Measurement(("sex",), [9000.0, 1000.0], stddev=1.0)
print(model.fit)
print(estimate(domain, [*tables, wrong]).fit)
