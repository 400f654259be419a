"""The loop that all adaptive mechanisms share, and how its rounds select and measure."""
