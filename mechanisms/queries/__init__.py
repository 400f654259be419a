"""Questions about records: cells of marginals and predicates. Nothing here is private."""
