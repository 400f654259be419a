"""Built-in data: a made-up census."""
