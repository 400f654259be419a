# ruff: noqa: E501  # texts of the package, to the letter
"""Planted mistakes in the engine: each is put into a copy of the packages, and a test must notice.

    python tests/engine_mutants.py              # all of them, six minutes of a busy machine
    python tests/engine_mutants.py --list       # their names
    python tests/engine_mutants.py given chain  # those whose names hold one of these words
    python tests/engine_mutants.py --record     # and write benchmarks/results/engine_mutants.json

The machinery is that of ``mutants.py``, with two differences: a mutant names the one test that must
notice it, and nothing else is tried; and the public calls of ``engine_calls.py`` run on the same
code, to tell whether the program notices by itself. A mutant whose text is not in its file exactly
once is stale, which counts as a failure.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mutants import ROOT, Mutant, copy, record
from warm_tests import Collected

if TYPE_CHECKING:
    from engine_calls import Outcome

TABLE = ROOT / "benchmarks" / "results" / "engine_mutants.json"

P, C, E, B = "pgmkit/", "pgmkit/conditioning/", "pgmkit/estimation/", "pgmkit/batches/"
R, U = "pgmkit/regions/", "pgmkit/uncertainty/"

LONGEST = 30.0
"""Seconds of processor time that a test or the public calls may take, several times what they do."""

STRUCTURES = "engine/test_structures::test_no_structure_is_wrong"
JOINT = "engine/test_factor_graph::test_every_answer_is_that_of_the_joint_written_out"
CALIBRATED = "engine/test_calibrated"
RECORDS = "engine/test_posteriors"
ORACLE = "engine/test_marginal_oracle"
TREE = "engine/test_tree_marginals::test_every_request_on_random_trees_against_the_joint"
PAIRS = "engine/test_pair_marginals"
LOSSES = "engine/test_losses"
ESTIMATES = "engine/test_estimation"
BATCHES = "engine/test_batches"
SAMPLING = "engine/test_sampling"
REGIONS = "engine/test_regions"
SECOND = "engine/test_second_opinion"

MUTANTS = (
    # Factors.
    Mutant(
        "the axes of a factor are permuted by the inverse of the right order",
        P + "factor.py",
        "values = factor.values.permute([domain.attributes.index(a) for a in present])",
        "values = factor.values.permute([present.index(a) for a in domain.attributes])",
        "engine/test_factor::test_arithmetic_cell_by_cell",
    ),
    Mutant(
        "a projected factor keeps the order of its axes instead of taking the one asked for",
        P + "linear/axes.py",
        "return (table.sum(away) if away else table).permute([left.index(name) for name in axes])",
        "return table.sum(away) if away else table",
        "engine/test_factor::test_project_sums_cells",
    ),
    # Contraction.
    Mutant(
        "a product of two tables has rows and columns exchanged",
        P + "contraction/plan.py",
        "return cls(left, right, batch + rows + columns, sizes)",
        "return cls(left, right, batch + columns + rows, sizes)",
        STRUCTURES,
    ),
    Mutant(
        "a product of two tables is reshaped instead of transposed",
        P + "contraction/plan.py",
        "return named.permute([axes.index(name) for name in self.out])",
        "return named.reshape([self.sizes[name] for name in self.out])",
        STRUCTURES,
    ),
    Mutant(
        "the adjoint of a product reaches its left operand with reversed axes",
        P + "contraction/plan.py",
        "to_left = Kernel(kernel.out, kernel.right, kernel.left, kernel.sizes)",
        "to_left = Kernel(kernel.out, kernel.right, kernel.left[::-1], kernel.sizes)",
        STRUCTURES,
    ),
    Mutant(
        "the result of a contraction is reshaped instead of transposed",
        P + "contraction/evaluate.py",
        "return result.permute([plan.axes[-1].index(name) for name in plan.output])",
        "return result.reshape([plan.sizes[name] for name in plan.output])",
        "engine/test_contraction",
    ),
    Mutant(
        "the codes of a most probable record are read in reverse order",
        P + "contraction/evaluate.py",
        "zip(free, map(int, codes), strict=True)",
        "zip(free[::-1], map(int, codes), strict=True)",
        "engine/test_model::test_map_has_the_largest_weight",
    ),
    Mutant(
        "steps computed together take their left tables without transposing them",
        P + "contraction/buffers.py",
        "left_orders = [k.batch + k.rows + k.summed for k in kernels]",
        "left_orders = [k.left for k in kernels]",
        STRUCTURES,
    ),
    Mutant(
        "steps computed together all take the right table of the last step",
        P + "contraction/buffers.py",
        "right_values = [step.right for step in group if step.right is not None]",
        "right_values = [group[-1].right for step in group if step.right is not None]",
        STRUCTURES,
    ),
    Mutant(
        "adjoints of steps computed together are not transposed",
        P + "contraction/buffers.py",
        "upper_t = upper.transpose(1, 2)",
        "upper_t = upper.reshape(upper.shape[0], upper.shape[2], upper.shape[1])",
        STRUCTURES,
    ),
    Mutant(
        "steps computed together sum over the axes that should be kept",
        P + "contraction/buffers.py",
        "orders = [s.kept + tuple(n for n in s.source if n not in s.kept) for s in group]",
        "orders = [tuple(n for n in s.source if n not in s.kept) + s.kept for s in group]",
        STRUCTURES,
    ),
    Mutant(
        "a step is computed before its right table is ready",
        P + "contraction/buffers.py",
        "level[step.out] = 1 + max(level[step.left], right)",
        "level[step.out] = 1 + level[step.left]",
        STRUCTURES,
    ),
    Mutant(
        "sums are computed in the place of maxima",
        P + "contraction/evaluate.py",
        "lambda value: value.amax(-1)",
        "lambda value: torch.logsumexp(value, -1)",
        "engine/test_model::test_a_mode_is_no_sum_of_many",
    ),
    Mutant(
        "reductions in log space go over the axes that should be kept",
        P + "contraction/evaluate.py",
        "return self.over(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)))",
        "return self.over(arrange(value, axes, tuple(n for n in axes if n not in kept), kept)).reshape(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)).shape[0]) if value.numel() == len(kept) else self.over(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)).flip(0))",
        STRUCTURES,
    ),
    # Junction trees and their marginals.
    Mutant(
        "a clique's parent is the neighbour that is eliminated last",
        P + "graphs/junction_tree.py",
        "above = home[min(each_bit(around), key=when.__getitem__)]",
        "above = home[max(each_bit(around), key=when.__getitem__)]",
        "engine/test_junction_tree::test_tree_against_networkx",
    ),
    Mutant(
        "a separator lacks one of its attributes",
        P + "graphs/junction_tree.py",
        "shared = [masks[v] & above for v, above in zip(listed, above_of, strict=True)]",
        "shared = [masks[v] & above & (above - 1) for v, above in zip(listed, above_of, strict=True)]",
        "engine/test_junction_tree::test_tree_against_networkx",
    ),
    Mutant(
        "a junction tree is built without the fill-in edges of the elimination",
        P + "graphs/elimination_search.py",
        "            neighbours[u] |= 1 << w\n            neighbours[w] |= 1 << u\n",
        "            neighbours[u] |= 0\n",
        CALIBRATED,
    ),
    Mutant(
        "marginals of distant attributes are divided by the total instead of the separator's marginal",
        P + "inference/tree_marginals.py",
        "table = joint / over_separator.masked_fill(over_separator == 0, 1.0)",
        "table = joint / over_separator.sum()",
        TREE,
    ),
    Mutant(
        "the axes of a marginal are permuted by the inverse of their order",
        P + "inference/tree_paths.py",
        "return table.permute([places.index(name) for name in clique])",
        "return table.permute([list(clique).index(name) for name in places])",
        TREE,
    ),
    Mutant(
        "a table is kept and reused without regard to the clique from which it was computed",
        P + "inference/tree_marginals.py",
        "        key = (before, here, members)\n",
        "        key = (0, here, members)\n",
        TREE,
    ),
    Mutant(
        "marginals that share all attributes but one are cut from their common product one cell too late",
        P + "inference/tree_marginals.py",
        "pieces = product.split([paths.cells(tip) for tip in row], dim=-1)",
        "pieces = product.roll(1, -1).split([paths.cells(tip) for tip in row], dim=-1)",
        "engine/test_tree_marginals::test_triples_of_a_chain_are_slices_of_common_products",
    ),
    Mutant(
        "marginals that share all attributes but one have the differing attribute's axis at the end",
        P + "inference/tree_marginals.py",
        "yield stem | tip, piece.movedim(-1, (stem & (tip - 1)).bit_count())",
        "yield stem | tip, piece",
        "engine/test_tree_marginals::test_all_triples_are_slices_of_few_products",
    ),
    Mutant(
        "pairs of attributes on two branches of the tree are reshaped instead of transposed",
        P + "inference/pair_marginals.py",
        "yield ((names[i], names[j]), table) if i < j else ((names[j], names[i]), table.T)",
        "yield ((names[i], names[j]), table) if i < j else ((names[j], names[i]), table.reshape(table.T.shape))",
        PAIRS,
    ),
    Mutant(
        "pairs of attributes below one separator are weighed by the separator's mean",
        P + "inference/pair_marginals.py",
        "whole = merged.given.T @ (over_separator * merged.given)",
        "whole = merged.given.T @ merged.given * over_separator.mean()",
        PAIRS,
    ),
    Mutant(
        "pairs asked for in reverse order are reshaped instead of transposed",
        P + "inference/model_tables.py",
        "found[pair[::-1]] = table.T.astype(np.float64)",
        "found[pair[::-1]] = table.reshape(table.T.shape).astype(np.float64)",
        PAIRS,
    ),
    # The oracle.
    Mutant(
        "the log partition lacks the factor by which a pass was scaled",
        P + "inference/marginal_oracle.py",
        "        self._below_peaks = log(partition) + guess\n",
        "        self._below_peaks = log(partition)\n",
        ORACLE,
    ),
    Mutant(
        "the log partition lacks the peaks of the potentials",
        P + "inference/marginal_oracle.py",
        "        return weighted, self._below_peaks + float(peaks.sum())\n",
        "        return weighted, self._below_peaks\n",
        ORACLE,
    ),
    Mutant(
        "marginals sum to one instead of the total",
        P + "inference/marginal_oracle.py",
        "        weighted = self.buffers.weighted(total / partition, self.dtype)\n",
        "        weighted = self.buffers.weighted(1 / partition, self.dtype)\n",
        ORACLE,
    ),
    Mutant(
        "structural zeros are ignored",
        P + "inference/layout.py",
        "tables[place] |= torch.from_numpy(~each.within(layout.domain, layout.cliques[place]))",
        "tables[place] |= False",
        "engine/test_structural_zeros",
    ),
    Mutant(
        "structural zeros are reshaped instead of transposed",
        P + "structural_zeros.py",
        "return spread(clique, self.clique, self.allowed)",
        "return self.allowed.reshape([domain.sizes[n] if n in self.clique else 1 for n in clique])",
        STRUCTURES,
    ),
    Mutant(
        "the balancing of potentials changes the distribution",
        P + "inference/diffusion.py",
        "changes[i] += mean.view(shape) - high",
        "changes[i] += mean.view(shape) - high / 2",
        ORACLE,
    ),
    # Models: questions and conditions.
    Mutant(
        "conditions on three or more codes lose the last code",
        P + "inference/model_tables.py",
        "np.where(mask, 0.0, -inf)",
        "np.where(mask & ((mask.sum() < 3) | (np.arange(len(mask)) < np.flatnonzero(mask)[-1])), 0.0, -inf)",
        f"{SECOND}::test_given_any_codes_is_the_conditional_joint",
    ),
    Mutant(
        "a conditioned model keeps the total of all records",
        P + "model.py",
        "        expected = self.total * min(share, 1.0)\n",
        "        expected = self.total\n",
        f"{SECOND}::test_given_any_codes_is_the_conditional_joint",
    ),
    Mutant(
        "conditions act on the wrong axis of a potential",
        P + "factor.py",
        "    return values.reshape([domain.sizes[a] if a in domain else 1 for a in order])",
        "    return values.reshape(sorted([domain.sizes[a] if a in domain else 1 for a in order], reverse=True)) if values.ndim == 1 and len(order) == 2 and values.numel() in (1,) else values.flip(0).reshape([domain.sizes[a] if a in domain else 1 for a in order]) if values.ndim == 1 and len(order) > 1 else values.reshape([domain.sizes[a] if a in domain else 1 for a in order])",
        f"{SECOND}::test_given_any_codes_is_the_conditional_joint",
    ),
    Mutant(
        "the log partition lacks attributes that are in no potential",
        P + "inference/model_tables.py",
        "log_partition + log_free",
        "log_partition + 0 * log_free",
        "engine/test_model",
    ),
    Mutant(
        "conditional tables are divided by the separator's mean",
        P + "inference/model_tables.py",
        "(clique, torch.where(above > 0, belief / above, torch.zeros_like(belief)))",
        "(clique, torch.where(above > 0, belief / above.mean(), torch.zeros_like(belief)))",
        "engine/test_model::test_factored_queries_against_the_kronecker_product",
    ),
    Mutant(
        "answers are for a single record instead of the total",
        P + "inference/model_tables.py",
        "factors[0] = self.tree.cliques[0], self.beliefs[0]",
        "factors[0] = self.tree.cliques[0], self.beliefs[0] / self.total",
        "engine/test_model::test_factored_queries_against_the_kronecker_product",
    ),
    Mutant(
        "answers to several queries come in reverse order",
        P + "inference/variable_elimination.py",
        "        for place, answer in zip(places, together, strict=True):",
        "        for place, answer in zip(reversed(places), together, strict=True):",
        f"{SECOND}::test_many_queries_are_answered_in_their_order",
    ),
    Mutant(
        "the axes of an answer are in the wrong order",
        P + "inference/variable_elimination.py",
        "        output += answer\n",
        "        output = (*answer, *output) if not batch else (*output, *answer)\n",
        "engine/test_model::test_factored_queries_against_the_kronecker_product",
    ),
    Mutant(
        "a cumulative count leaves out its own code",
        P + "queries.py",
        "return np.tri(_shape(n, n)[0])",
        "return np.tri(_shape(n, n)[0], k=-1)",
        "engine/test_queries::test_prefix_is_the_cdf",
    ),
    Mutant(
        "a range leaves out its last code",
        P + "queries.py",
        "(lo <= codes) & (codes <= hi)",
        "(lo <= codes) & (codes < hi)",
        "engine/test_queries::test_ranges_count_both_ends",
    ),
    Mutant(
        "the factors of a Kronecker product are applied in reverse order",
        P + "linear/kronecker.py",
        "    for factor in factors:\n        x = (factor",
        "    for factor in reversed([*factors]):\n        x = (factor",
        "engine/test_kronecker::test_products_match_the_written_out_matrix",
    ),
    Mutant(
        "each step of a Kronecker product leaves its result transposed",
        P + "linear/kronecker.py",
        "x = (factor @ x.reshape(factor.shape[1], -1)).T",
        "x = factor @ x.reshape(factor.shape[1], -1)",
        "engine/test_kronecker::test_products_match_the_written_out_matrix",
    ),
    # Draws.
    Mutant(
        "records are drawn one cell too late",
        P + "records/sampling.py",
        "beyond = cumulative.take(middle) <= level",
        "beyond = cumulative.take(middle) <= level + table.mean()",
        f"{SAMPLING}::test_independent_draws_follow_the_joint_law",
    ),
    Mutant(
        "records are never drawn from the first cell",
        P + "records/sampling.py",
        "low = np.where(beyond, middle + 1, low)",
        "low = np.where(beyond | (middle == first), middle + 1, low)",
        f"{SAMPLING}::test_independent_draws_follow_the_joint_law",
    ),
    Mutant(
        "the cells of a separator are numbered with the axes reversed",
        P + "records/sampling.py",
        "codes_of(columns, tree.domain.sizes, tree.separators[i], 0, n)",
        "codes_of(columns, tree.domain.sizes, tree.separators[i][::-1], 0, n)",
        STRUCTURES,
    ),
    Mutant(
        "counts are rounded with the wrong probabilities",
        P + "records/sampling.py",
        "odds, scale = np.where(up, 1 - left, left), np.where(up, 2 - total, total)",
        "odds, scale = left, total",
        f"{SAMPLING}::test_rounded_counts_are_unbiased",
    ),
    Mutant(
        "the records of a group are not shuffled",
        P + "records/sampling.py",
        "order = rng.permutation(len(groups))",
        "order = np.arange(len(groups))",
        f"{SAMPLING}::test_no_spurious_correlation_within_groups_of_a_chain",
    ),
    Mutant(
        "parts of a sample are drawn with the wrong group sizes",
        P + "records/sampling_parts.py",
        "sizes = _group_sizes(tree, taken, i, n)",
        "sizes = _group_sizes(tree, counts, i, n) * n // max(1, counts[0].sum())",
        "engine/test_sampling_parts",
    ),
    Mutant(
        "the counts of a sample in parts are shifted by one cell",
        P + "records/sampling_parts.py",
        "whole[members] = sampling.rounded_counts(table[members], sizes[members], rng, clique)",
        "drawn = sampling.rounded_counts(table[members], sizes[members], rng, clique)\n"
        "            whole[members] = np.roll(drawn, 1, 1)",
        "engine/test_sampling_parts",
    ),
    Mutant(
        "the ascent of a bound ignores the number of tables",
        P + "estimation/certificate.py",
        "slopes = curvature / (tables * weights).square()",
        "slopes = curvature / weights.square()",
        "engine/test_certificate::test_ascent_rises_towards_the_optimum_and_never_beyond",
    ),
    # Factor graphs.
    Mutant(
        "evidence is shifted by one code",
        P + "conditioning/evidence_marginals.py",
        "tuple([codes.get(v, ALL) for v in each_bit(members)])",
        "tuple([codes[v] - 1 if v in codes else ALL for v in each_bit(members)])",
        JOINT,
    ),
    Mutant(
        "the scale of a likelihood is lost",
        P + "conditioning/evidence.py",
        "            log_scale += math.log(peak)\n",
        "            pass\n",
        JOINT,
    ),
    Mutant(
        "variables with evidence below them are taken for barren",
        P + "conditioning/elimination.py",
        "            heads = -1 if heads < 0 or other < 0 else heads | other\n",
        "            heads = max(heads, other) if heads < 0 or other < 0 else heads | other\n",
        JOINT,
    ),
    Mutant(
        "a variable is summed out that the parent's table still needs",
        P + "conditioning/elimination.py",
        "tree.tables.append(0 if barren else table & ~gone)",
        "tree.tables.append(0 if barren else table & ~gone & ~(table & -table if table & ~gone & (table & ~gone) - 1 else 0))",
        JOINT,
    ),
    Mutant(
        "messages computed as matrix products have their axes in the wrong order",
        P + "conditioning/kernels.py",
        "        order, turned = batch + rows + columns,",
        "        order, turned = batch + columns + rows,",
        "engine/test_factor_graph",
    ),
    Mutant(
        "of an odd number of matrices along a path the last one is left out",
        P + "conditioning/message_passing.py",
        "stack = np.concatenate([stack, left]) if len(left) else stack",
        "stack = np.concatenate([stack, left[:0]])",
        "engine/test_products_along_paths::test_many_matrices_are_multiplied_in_their_order",
    ),
    Mutant(
        "a matrix along a path replaces the attributes in the wrong direction",
        P + "conditioning/message_passing.py",
        "made if upper < lower else made.T",
        "made if upper > lower else made.T",
        "engine/test_products_along_paths::test_distant_pairs_of_a_chain_are_products_of_its_matrices",
    ),
    Mutant(
        "the scale of a message is lost",
        P + "conditioning/message_passing.py",
        "                    scale = scale + log_peak\n",
        "                    pass\n",
        f"{RECORDS}::test_rows_of_any_number_of_records_are_in_their_order",
    ),
    Mutant(
        "the joint marginal of unconnected parts is that of one part with itself",
        P + "conditioning/message_passing.py",
        "            found = self.product(found, part, found[0] | part[0])\n        return found\n\n    def _connected",
        "            found = self.product(part, part, part[0])\n        return found\n\n    def _connected",
        JOINT,
    ),
    Mutant(
        "in a calibrated tree, a clique receives the message of another child",
        P + "conditioning/calibration.py",
        "received[parents[here]].append((cliques[here].separator, message))",
        "received[parents[here]].append((cliques[parents[here]].below[0], message))",
        CALIBRATED,
    ),
    Mutant(
        "in a calibrated tree, small cliques ignore likelihoods",
        P + "conditioning/calibrated_cliques.py",
        "                if (weights := evidence.likelihood.get(name)) is not None:\n                    table = table * weights.take(self.cells_of((name,)))",
        "                if (weights := evidence.likelihood.get(name)) is None and False:\n                    table = table * weights.take(self.cells_of((name,)))",
        CALIBRATED,
    ),
    Mutant(
        "in a calibrated tree, a separator's axes are reversed",
        P + "conditioning/calibrated_cliques.py",
        "self.below = [tuple([name for name in axes if name in each]) for each in below]",
        "self.below = [tuple([name for name in reversed(axes) if name in each]) for each in below]",
        CALIBRATED,
    ),
    Mutant(
        "in a calibrated tree, the scale of the tables is lost",
        P + "conditioning/calibrated_tree.py",
        "            self.log_sum += math.log(peak)\n",
        "            pass\n",
        CALIBRATED,
    ),
    Mutant(
        "in a calibrated tree, marginals of subtrees are shifted by one cell",
        P + "conditioning/calibrated_tree.py",
        "            at += own[here]\n",
        "            at += own[here] - (own[here] > 3)\n",
        CALIBRATED,
    ),
    Mutant(
        "marginals of a joint distribution that is written out are shifted by one code",
        P + "conditioning/joint.py",
        "np.eye(n)[:, own]",
        "np.eye(n)[:, own - 1]",
        CALIBRATED,
    ),
    Mutant(
        "the second computation may use four times the memory limit",
        C + "graph_tables.py",
        "room=self.memory_limit - kept,",
        "room=4.0 * self.memory_limit,",
        "engine/test_pass_memory::test_second_computations_stay_within_the_limit",
    ),
    Mutant(
        "ancestors of observed variables are taken for irrelevant",
        P + "conditioning/graph_tables.py",
        "            new = around & ~found\n",
        "            new = around & ~found if not found & (found - 1) else 0\n",
        JOINT,
    ),
    Mutant(
        "maxima have the axes of their attributes reversed",
        P + "conditioning/modes.py",
        "        order = self.kept + self.gone\n",
        "        order = self.kept[::-1] + self.gone\n",
        JOINT,
    ),
    Mutant(
        "max-marginals lack the other unconnected parts",
        P + "conditioning/modes.py",
        "others = [self.values[root] for root in self.tree.roots if root != node]",
        "others = [self.values[root] for root in self.tree.roots[:0] if root != node]",
        JOINT,
    ),
    Mutant(
        "sums over several axes go over the wrong ones",
        P + "linear/axes.py",
        "groupby(range(table.ndim), away.__contains__)",
        "groupby(range(table.ndim), lambda axis: table.ndim - 1 - axis in away)",
        f"{CALIBRATED}::test_sums_over_any_axes",
    ),
    Mutant(
        "for more than 64 records, posteriors come in reverse order",
        P + "conditioning/posteriors.py",
        "        return np.concatenate(parts)[self._different[1]]\n",
        "        found = np.concatenate(parts)[self._different[1]]\n        return found[::-1] if len(found) > 64 else found\n",
        f"{RECORDS}::test_rows_of_any_number_of_records_are_in_their_order",
    ),
    Mutant(
        "posteriors of many records are put together in reverse order",
        P + "conditioning/posteriors.py",
        "        parts = np.split(first, range(size, len(first), size))\n",
        "        parts = np.split(first, range(size, len(first), size))[::-1]\n",
        f"{RECORDS}::test_rows_of_any_number_of_records_are_in_their_order",
    ),
    Mutant(
        "posteriors of many records use the plan made for other observed variables",
        P + "conditioning/posteriors.py",
        "made, _REMEMBERED)\n",
        "made, _REMEMBERED)\n        structure = next(iter(self.graph.structures.values()))\n",
        RECORDS,
    ),
    Mutant(
        "posteriors of many records slice tables along the wrong axes",
        P + "conditioning/posteriors.py",
        "table.transpose(seen + rest)[tuple(codes[axes[axis]] for axis in seen)]",
        "table.transpose(seen + rest)[tuple(codes[axes[axis]] for axis in reversed(seen))]",
        RECORDS,
    ),
    # Losses and estimates.
    Mutant(
        "residuals are divided by the variance instead of the standard deviation",
        P + "inference/observations.py",
        "        weights.append(w / m.stddev)\n",
        "        weights.append(w / m.stddev**2)\n",
        f"{LOSSES}::test_residuals_and_adjoint_against_dense_matrices",
    ),
    Mutant(
        "the gradient lacks the standard deviation for dense matrices",
        P + "inference/observations.py",
        "flat = self._multiply(dual.view(shape), [f.T for f in self._factors]) / self._stddev",
        "flat = self._multiply(dual.view(shape), [f.T for f in self._factors])",
        f"{LOSSES}::test_residuals_and_adjoint_against_dense_matrices",
    ),
    Mutant(
        "the table that a matrix is applied to has its axes permuted by the inverse order",
        P + "inference/observations.py",
        "        self._order = [kept.index(name) for name in m.clique]\n",
        "        self._order = [m.clique.index(name) for name in kept]\n",
        f"{SECOND}::test_matrices_of_three_attributes_in_any_order",
    ),
    Mutant(
        "the slope of the Huber loss grows to twice its width",
        P + "losses.py",
        "return r.clamp(-self.width, self.width) * (self.height / self.width)",
        "return r.clamp(-2 * self.width, 2 * self.width) * (self.height / self.width)",
        f"{LOSSES}::test_values_gradients_and_cuts",
    ),
    Mutant(
        "the squared loss lacks its factor of one half",
        P + "losses.py",
        "        return 0.5 * dot(r, r)\n",
        "        return dot(r, r)\n",
        f"{LOSSES}::test_penalties_against_their_formulas",
    ),
    Mutant(
        "lower bounds lack the conjugate of the loss",
        P + "losses.py",
        "return Cut(-conjugate - float(products.sum()), self.observations.adjoint(dual), size)",
        "return Cut(-float(products.sum()), self.observations.adjoint(dual), size)",
        f"{LOSSES}::test_values_gradients_and_cuts",
    ),
    Mutant(
        "lower bounds are for a total of one",
        P + "estimation/certificate.py",
        "return cut.offset - total * highest - ULPS",
        "return cut.offset - highest - ULPS",
        ESTIMATES,
    ),
    Mutant(
        "mirror descent goes uphill",
        P + "estimation/mirror_descent.py",
        "new = problem.attempt(origin.potentials - step * gradient)",
        "new = problem.attempt(origin.potentials + step * gradient)",
        f"{ESTIMATES}::test_squared_loss_reaches_the_optimum",
    ),
    Mutant(
        "repeated tables are averaged without weights",
        P + "least_squares/sufficient_statistics.py",
        "mean = np.tensordot(weights / weights.sum(), stack, 1)",
        "mean = stack.mean(axis=0)",
        "engine/test_sufficient_statistics::test_the_loss_is_that_of_the_given_measurements",
    ),
    Mutant(
        "totals are weighed by the inverse standard deviation",
        P + "total.py",
        "shares = (least / np.array(stddevs)) ** 2",
        "shares = least / np.array(stddevs)",
        "engine/test_total::test_unequal_noise_weighs_by_variance_not_by_stddev",
    ),
    # Batches.
    Mutant(
        "in a batch, each set has the marginals of the next one",
        P + "estimation/batches/oracle.py",
        "            torch.mul(own, other, out=marginals[:, cells])\n",
        "            torch.mul(own, other.roll(1, 0), out=marginals[:, cells])\n",
        f"{BATCHES}::test_a_batched_pass_is_that_of_each_set",
    ),
    Mutant(
        "in a batch, log partitions lack all peaks but the first",
        P + "estimation/batches/oracle.py",
        "self.single.layout.split(shifted), LOG) + peaks.sum(1)",
        "self.single.layout.split(shifted), LOG) + peaks[:, 0]",
        f"{BATCHES}::test_a_batched_pass_is_that_of_each_set",
    ),
    Mutant(
        "for more than 64 sets, the models of a batch come in reverse order",
        P + "estimation/many.py",
        "zip(places, batch.models(), strict=True)",
        "zip(places, batch.models()[:: -1 if len(places) > 64 else 1], strict=True)",
        f"{SECOND}::test_many_estimates_are_in_the_order_of_their_sets",
    ),
    Mutant(
        "in a batch, all sets have the total of the first",
        P + "estimation/batches/estimate.py",
        "            totals = torch.as_tensor(self.totals, device=one.device)\n",
        "            totals = torch.as_tensor(self.totals[:1].repeat(len(self.totals)), device=one.device)\n",
        BATCHES,
    ),
    Mutant(
        "in a batch, later sets are compared with the values of the first ones",
        P + "estimation/batches/problem.py",
        "        other.target = self.target[sets]\n",
        "        other.target = self.target[: len(sets)]\n",
        BATCHES,
    ),
    Mutant(
        "answers of several models come in reverse order",
        P + "inference/variable_elimination.py",
        "    return result.reshape(count, *query.answer_shape)\n",
        "    return result.reshape(count, *query.answer_shape)[::-1]\n",
        f"{SECOND}::test_answers_of_many_models_are_in_their_order",
    ),
    # Counting, regions, files.
    Mutant(
        "counts of later rows replace those of earlier rows",
        P + "records/counting.py",
        "            table += counts\n",
        "            table = counts\n",
        "engine/test_dataset",
    ),
    Mutant(
        "the flat indices of cells overflow their integer type",
        P + "records/counting.py",
        "codes = np.multiply(codes, sizes[attribute], dtype=kind)",
        "codes = np.multiply(codes, sizes[attribute], dtype=codes.dtype)",
        "engine/test_dataset",
    ),
    Mutant(
        "counted tables are reshaped instead of transposed",
        P + "records/counting.py",
        'clique: np.array(table.transpose([source.index(a) for a in clique]), order="C")',
        'clique: np.array(table.reshape([self._sizes[a] for a in clique]), order="C")',
        "engine/test_dataset",
    ),
    Mutant(
        "the axes of a table summed from a region are reshaped instead of transposed",
        P + "linear/axes.py",
        "    return sum_axes(table, away).transpose([left.index(name) for name in axes])\n",
        "    return sum_axes(table, away).reshape([table.shape[held.index(name)] for name in axes])\n",
        f"{REGIONS}::test_answers_inside_are_the_tables_and_those_outside_say_so",
    ),
    Mutant(
        "answers beyond the regions are not scaled to the sums that regions have",
        P + "regions/model.py",
        "self._raked(clique, table) if table.size <= RECORDS else table",
        "table",
        "engine/test_region_models::test_answers_beyond_the_regions_have_the_regions_sums",
    ),
    Mutant(
        "the sums of local tables are not constrained",
        P + "regions/polytope.py",
        "        sums[:agreeing] = 0.0\n",
        "        sums[:] = 0.0\n",
        REGIONS,
    ),
    Mutant(
        "records of a region model are drawn with the comparison reversed",
        P + "regions/chain.py",
        "below = chances.cumsum(axis=1)[kind] <= level[part, None]",
        "below = chances.cumsum(axis=1)[kind] >= level[part, None]",
        f"{REGIONS}::test_records_are_near_the_tables_and_near_the_exact_model",
    ),
    Mutant(
        "variances ignore that overlapping tables agree",
        P + "least_squares/linear_estimate.py",
        "np.sqrt(np.where(raw - saved > DEPENDENT * raw, raw - saved, 0.0))",
        "np.sqrt(raw)",
        "engine/test_uncertainty",
    ),
    Mutant(
        "UAI tables are reshaped instead of moving the child's axis to the front",
        P + "uai.py",
        "clique[-1]: ((clique[-1], *clique[:-1]), np.moveaxis(table, -1, 0))",
        "clique[-1]: ((clique[-1], *clique[:-1]), table.reshape(table.shape[-1:] + table.shape[:-1]))",
        "engine/test_uai",
    ),
    Mutant(
        "UAI results are natural logarithms instead of those to base 10",
        P + "uai.py",
        "float(found) / math.log(10))",
        "float(found))",
        "engine/test_uai::test_results",
    ),
    Mutant(
        "BIF tables have their parents in reverse order",
        P + "bif.py",
        "child: (scope, _table(",
        "child: ((scope[0], *scope[:0:-1]), _table(",
        "engine/test_bif_files::test_files_of_pgmpy_are_read_and_read_by_it",
    ),
)


@dataclass(frozen=True)
class Fate:
    """What became of a mutant.

    Attributes:
        end: "caught", "SURVIVED", "HUNG" or "STALE".
        test: which one caught it.
        alone: public calls that the program contradicted by itself.
        errors: public calls that ended in another error.
        wrong: public calls that gave wrong numbers without a word.
        seconds: that all of it took.
    """

    end: str
    test: str = ""
    alone: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    seconds: float = 0.0


def calls() -> Any:
    """The module of the public calls, which imports the packages of the copy."""
    return importlib.import_module("engine_calls")


def called(tests: Collected, change: tuple[str, str]) -> Outcome:
    """The public calls after a change; errors of all where they do not come to their end."""
    found = tests.answer(lambda: asdict(calls().outcome()), change, LONGEST)
    return calls().Outcome(**(found or {"errors": {"all": "no end"}}))


def fate(mutant: Mutant, tests: Collected, sound: Outcome) -> Fate:
    """Run its test and the public calls on code with the mistake."""
    text = (tests.folder / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return Fate("STALE")
    begun, change = time.monotonic(), (mutant.file, text.replace(mutant.old, mutant.new))
    noticed = tests.outcome(dict.fromkeys(named(mutant, tests), LONGEST), change)
    made = called(tests, change)
    end = "HUNG" if noticed.hung else "caught" if noticed.failed else "SURVIVED"
    found = made.contradicted, made.errors, made.wrong(sound)
    seconds = round(time.monotonic() - begun, 1)
    return Fate(end, noticed.failed.removeprefix("tests/"), *map(tuple, found), seconds)


def named(mutant: Mutant, tests: Collected) -> list[str]:
    """The tests that must notice it: one, with all its parameters, or those of a file."""
    file, _, test = mutant.first.partition("::")
    own = re.compile(re.escape(f"tests/{file}.py::{test}") + (r"(\[|$)" if test else ""))
    return [name for name in tests.items if own.match(name)]


def run(words: tuple[str, ...] = (), kept: bool = False) -> dict[str, Fate]:
    """What became of each mutant whose name holds one of the words; all without words.

    ``kept``: written to the table, too.
    """
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    found: dict[str, Fate] = {}

    def work(tests: Collected) -> None:
        same = (tests.folder / MUTANTS[0].file).read_text(encoding="utf-8")
        sound = called(tests, (MUTANTS[0].file, same))
        for number, mutant in enumerate(chosen, 1):
            found[mutant.name] = one = fate(mutant, tests, sound)
            told = f"{number}/{len(chosen)} {one.end} ({one.seconds:.0f} s): {mutant.name}"
            counts = f"{len(one.alone)} contradicted, {len(one.errors)} other errors"
            print(f"{told}: {one.test}; {counts}, {len(one.wrong)} wrong", flush=True)
            if kept:
                record(found, MUTANTS, TABLE)

    files = dict.fromkeys(f"tests/{m.first.partition('::')[0]}.py" for m in chosen)
    with copy() as folder:
        Collected(folder, work).collect([*files])
    print(score(found))
    return found


def score(found: Mapping[str, Fate]) -> str:
    """How many were caught, and how."""
    fates = found.values()
    caught = sum(each.end == "caught" for each in fates)
    alone = sum(bool(each.alone) for each in fates)
    shown = [each for each in fates if each.alone or each.wrong]
    return (
        f"{caught} of {len(found)} caught by their tests; of {len(shown)} that change the numbers "
        f"of the public calls {alone} are contradicted by the program alone, "
        f"{sum(not each.wrong for each in shown)} in every call that they change"
    )


if __name__ == "__main__":
    if "--list" in sys.argv:
        print("\n".join(mutant.name for mutant in MUTANTS))
    else:
        asked = tuple(word for word in sys.argv[1:] if word != "--record")
        ends = run(asked, "--record" in sys.argv)
        sys.exit(any(one.end != "caught" for one in ends.values()))
