"""Many problems of one structure estimated side by side, with one more axis on every table."""
