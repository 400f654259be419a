"""The one loop of the adaptive mechanisms, and how its rounds select and measure."""
