"""Inference given evidence: elimination orders, messages, calibrated trees for further evidence,
and answers.
"""
