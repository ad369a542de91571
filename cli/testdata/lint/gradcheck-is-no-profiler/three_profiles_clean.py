"""gradcheck as a test of an operation, and readings of memory without it."""

import torch
from torch.autograd import gradcheck
from torch.nn import functional as F


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def test_cube():
    x = torch.randn(4, dtype=torch.double, requires_grad=True)
    assert gradcheck(Cube.apply, (x,))


def test_sizes():
    for size in (1, 5, 9):
        x = torch.randn(size, dtype=torch.double, requires_grad=True)
        assert gradcheck(Cube.apply, (x,), fast_mode=True)


def peaks(model, optimizer, loader):
    for x, y in loader:
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        F.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
        print(torch.cuda.max_memory_allocated() >> 20, "MiB")
