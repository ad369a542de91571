"""Keepers of another file: one cuts the graph, the other does not."""

import torch


class CutHolder:
    def __init__(self, name):
        self.name, self.kept = name, []

    def add(self, value):
        self.kept.append(value.detach().cpu())


class RawHolder:
    def __init__(self, name):
        self.name, self.kept = name, []

    def add(self, value):
        self.kept.append(value)

    def stacked(self):
        return torch.stack(self.kept)
