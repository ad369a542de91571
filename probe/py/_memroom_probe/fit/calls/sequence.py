"""The numbers by which autograd orders what it runs.

A thread numbers the nodes of the graphs that it makes, and a backward pass takes those with the
highest numbers first. On a card backward passes run in a thread of their own. What they make to be
differentiated again (create_graph) is numbered there, and runs together with what the loop's thread
has numbered. A trial of ours makes nodes as well. Had it moved one of the two on by more than the
other, later nodes would run in another order, and sums of gradients would round otherwise: a GAN
with a gradient penalty was wrong by 3e-4 after twelve steps. So both are moved on by as much.
"""

import torch

MOST = 200000  # numbers that are worth the time


class even:
    """While this is entered on the loop's thread, both threads' numbers may move on; at the end
    they are as far apart as before. device: where the backward passes run.
    """

    def __init__(self, device):
        self.on = device.type == "cuda" and hasattr(torch.autograd, "_get_sequence_nr")
        self.device = device

    def __enter__(self):
        if self.on:
            self.here = torch.autograd._get_sequence_nr()
            self.there = _there(self.device)

    def __exit__(self, kind, why, trace):
        if not self.on or isinstance(why, torch.cuda.OutOfMemoryError):
            return
        there = _there(self.device) - self.there
        ahead = torch.autograd._get_sequence_nr() - self.here - there
        if 0 <= ahead < MOST:
            _there(self.device, ahead + 1)  # this asks for one number more here
        elif -MOST < ahead < 0:
            _move_on(-ahead)


def _move_on(count):
    with torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True)
        for _ in range(count):
            leaf.view(())


def _there(device, count=0):
    """The number that comes next in the thread of the device, after it was moved on by count.
    Asking takes one number of this thread.
    """
    seen: list = []
    with torch.enable_grad():
        leaf = torch.zeros((), device=device, requires_grad=True)
        torch.autograd.grad(_Ask.apply(leaf, count, seen), leaf)
    return seen[0]


class _Ask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, leaf, count, seen):
        ctx.count, ctx.seen = count, seen
        return leaf.clone()

    @staticmethod
    def backward(ctx, grad):
        _move_on(ctx.count)
        ctx.seen.append(torch.autograd._get_sequence_nr())
        return grad, None, None
