"""Files of records: CSV, parquet, Excel and other programs' formats."""
