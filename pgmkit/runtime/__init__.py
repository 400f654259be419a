"""The machine's means: memory, threads, devices, random numbers, files, HTML."""
