"""Estimation where no junction tree fits: tables that agree locally, and a joint distribution near
them.
"""
