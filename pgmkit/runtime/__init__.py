"""Checks of arguments, the machine's resources (memory, threads, devices, files), and charts."""
