"""What the machine gives: memory, threads, devices, random numbers, files, HTML."""
