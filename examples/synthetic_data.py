# %% [markdown]
# # Synthetic data from a data frame
#
# A data frame, a schema and a privacy budget in; synthetic records, labelled tables with error
# bars and a ledger out. The data are made up, so that anybody may look at them and compare.

# %%
import numpy as np
import pandas as pd

from mechanisms import synthesize
from pgmkit import Boolean, Categorical, Integer, Numeric, Schema

rng = np.random.default_rng(0)
rows = 5000
age = rng.integers(18, 90, rows)
frame = pd.DataFrame(
    {
        "age": age,
        "region": rng.choice(["north", "south", "islands"], rows, p=[0.5, 0.4, 0.1]),
        "retired": rng.random(rows) < np.where(age > 65, 0.9, 0.02),
        "income": np.where(age > 65, 15, 30) * rng.gamma(3, 0.5, rows),
    }
)
print(frame.head())

# %% [markdown]
# The schema says what each column may hold. It is public: write it from what you know about the
# columns, never from what the private records happen to contain.

# %%
schema = Schema(
    {
        "age": Integer(edges=(18, 30, 45, 55, 66, 80, 100)),
        "region": Categorical(("north", "south", "islands")),
        "retired": Boolean(),
        "income": Numeric(0, 100, bins=10, outside="clip"),
    }
)

# %% [markdown]
# The budget is spent here, once. `auto`, the default, says which mechanism it took and why.

# %%
release = synthesize(frame, schema, epsilon=1.0, delta=1e-7)
print(release.mechanism, "because", release.reason)
release

# %% [markdown]
# The records come back in a frame of the same kind, with the same columns.

# %%
records = release.sample(1000)
assert isinstance(records, pd.DataFrame) and list(records) == list(frame)
print(records.head())

# %% [markdown]
# Counts with standard errors and 95% intervals; and answers without drawing records.

# %%
release.table("region", "retired")

# %%
release.ask("cdf(income) | age in 66..79")

# %% [markdown]
# Records under a condition are drawn from the conditional model; nothing is thrown away.

# %%
print(release.sample(5, given={"region": "islands", "retired": True}))

# %% [markdown]
# What was promised, and what every step cost.

# %%
release.ledger
