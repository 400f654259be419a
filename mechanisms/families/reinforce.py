"""The score-function (REINFORCE) estimator: gradients without a derivative of the query.

Liu, Vietri and Wu (2021), appendix B.3: with x drawn from the row P_k of K rows, grad q = mean over
k of E[phi(x) grad log P_k(x)], for a query q that is the mean of any predicate phi of whole
records.
"""

from __future__ import annotations

import torch

from mechanisms.families.product_mixture import Columns


def draw_records(
    rows: torch.Tensor, columns: Columns, count: int, random: torch.Generator
) -> torch.Tensor:
    """Draw `count` records from each row, as codes: K x count x number of attributes."""
    return torch.stack(
        [
            torch.multinomial(part, count, replacement=True, generator=random)
            for part in torch.split(rows.detach(), columns.sizes, dim=1)
        ],
        dim=2,
    )


def with_score_gradient(
    values: torch.Tensor,
    rows: torch.Tensor,
    columns: Columns,
    records: torch.Tensor,
    satisfied: torch.Tensor,
) -> torch.Tensor:
    """Return `values` (the answers to q queries, constants) with the estimated gradient of the
    queries by the rows.

    `records` are from `draw_records` and `satisfied` (q x K x count) is each query's predicate on
    them. A query's mean over all records is subtracted from its predicate: the estimate stays
    unbiased up to a factor 1 - 1/(K count), and varies less.

    >>> from pgmkit.domain import Domain
    >>> columns = Columns(Domain({"a": 2}))
    >>> rows = torch.full((1000, 2), 0.5, requires_grad=True)
    >>> records = draw_records(rows, columns, 10, torch.Generator().manual_seed(0))
    >>> first = (records[..., 0] == 0).float().unsqueeze(0)
    >>> answer = with_score_gradient(torch.tensor([0.5]), rows, columns, records, first)
    >>> answer.backward()
    >>> rows.grad.sum(0).round(decimals=1).tolist()
    [0.5, -0.5]
    """
    starts = torch.tensor([columns.of(name).start for name in columns.domain], device=rows.device)
    places = (records + starts).flatten(1)
    probability = rows.gather(1, places).reshape(records.shape)
    log_probability = probability.clamp_min(torch.finfo(rows.dtype).tiny).log().sum(2)
    phi = satisfied.flatten(1).to(rows.dtype)
    centred = phi - phi.mean(1, keepdim=True)
    score = centred @ log_probability.flatten() / phi.shape[1]
    return values + score - score.detach()
