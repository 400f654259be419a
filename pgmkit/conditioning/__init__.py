"""Inference given evidence: elimination orders, messages, calibrated trees kept between questions,
and answers.
"""
