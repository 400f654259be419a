"""Many problems of one structure estimated at the same time, with one more axis on every table."""
