"""The machine's resources: memory, threads, devices, random numbers, files; and HTML output."""
