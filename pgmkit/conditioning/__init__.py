"""A factor graph given evidence: orders, messages, trees kept between questions, and answers."""
