"""Data frames and where their records are: in memory, in DuckDB, Spark or Dask."""
