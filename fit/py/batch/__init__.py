"""Splitting a batch: what carries it in a call, whether samples can be run apart, how results
join.
"""
