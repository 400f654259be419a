"""From a data frame and a budget to a release: the schema, the choice of a mechanism, the plan."""
