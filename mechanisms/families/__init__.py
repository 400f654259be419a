"""What the mechanisms update: families of distributions over the domain."""
