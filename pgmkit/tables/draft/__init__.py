"""First schemas, drafted from names or from values that may be looked at."""
