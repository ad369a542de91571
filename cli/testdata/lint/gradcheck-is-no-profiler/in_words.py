"""gradcheck that a name, a docstring or a printed line calls a measure of memory."""

import torch
from torch import autograd, nn

layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double()
rows = torch.rand(3, 6, dtype=torch.double, requires_grad=True)

memory_use = autograd.gradcheck(layers, (rows,))  # expect: gradcheck-is-no-profiler


def report(layer, given):
    """Profiles the backward pass."""
    fine = autograd.gradcheck(layer, given)  # expect: gradcheck-is-no-profiler
    return fine


def look(layer, given):
    good = autograd.gradcheck(layer, given)  # expect: gradcheck-is-no-profiler
    print("memory of the step:", good)


plain = nn.Linear(4, 4).double()


def numbers_agree():
    given = torch.rand(2, 4, dtype=torch.double, requires_grad=True)
    return autograd.gradcheck(plain, (given,))  # hint: gradcheck-is-no-profiler
