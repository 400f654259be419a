"""What a mechanism hands out: models and tables with their price, as files and as reports."""
