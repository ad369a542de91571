"""The walk over the syntax tree for `memroom lint`. Standard library only; Python 3.8 and newer. Go
runs `run.py` by its path.
"""
