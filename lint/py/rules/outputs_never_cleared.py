"""Outputs of every evaluation pile up.

severity: warning
remedy: eval_outputs

The list is older than the evaluation. Outputs of the whole dataset are added to it in every
epoch, and those of earlier epochs stay.

Instead: Make the list at the start of each evaluation, or empty it (`outputs.clear()`) when the
metric has been computed.
"""
