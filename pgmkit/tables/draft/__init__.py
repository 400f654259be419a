"""First drafts of schemas, from column names or from values that may be read."""
