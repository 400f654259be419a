"""Files of records: CSV, parquet, JSON lines, Excel and other programs' formats."""
