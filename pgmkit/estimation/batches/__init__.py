"""Many problems of one structure side by side: one more axis on every table."""
