"""The Curator, through which alone mechanisms see private data; its budget, noise and selection."""
