"""Data frames in memory, or in an engine: DuckDB, Spark or Dask."""
