# %% [markdown]
# # Write your own mechanism
#
# A mechanism is a function of a Curator, a workload and settings. The Curator holds the data: the
# mechanism asks it for noisy tables at a cost, and never sees a record. This one measures the
# pairs of neighbouring columns. The file `chain_of_pairs.py` beside this notebook is all of it;
# importing it registers the mechanism.

# %%
from pathlib import Path

import chain_of_pairs

print(Path(chain_of_pairs.__file__).read_text(encoding="utf-8"))

# %% [markdown]
# A registered mechanism runs by its name wherever a built-in one does.

# %%
from mechanisms import MECHANISMS, TableRelease, k_way, plan, synthesize
from mechanisms.datasets.census import domain, people, schema

print(MECHANISMS["chain"].summary)

# %% [markdown]
# `plan` runs it on made-up records, so that it costs nothing to see what it would spend on what.

# %%
print(plan("chain", k_way(domain(), 2), 1.0, 1e-7, neighbours="add/remove", rows=5000))

# %%
release = synthesize(people(5000), schema(), epsilon=1.0, delta=1e-7, mechanism="chain")
print(release.ask("income | education = bachelor"))
release

# %% [markdown]
# Releases are saved and loaded with their settings.

# %%
release.save("chain.pgm")
print(TableRelease.load("chain.pgm").settings)

# %% [markdown]
# To make it available to everybody who installs your package, name its Entry in `pyproject.toml`:
#
# ```toml
# [project.entry-points."pgmkit.mechanisms"]
# chain = "chain_of_pairs:CHAIN"
# ```
#
# `pgmkit mechanisms` then lists it, and `pgmkit synth --mechanism chain` runs it.
