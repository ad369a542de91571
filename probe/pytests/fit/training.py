"""What the tests of the fit remedies share: a training run with and without remedies, compared."""

import contextlib
import copy
import gc

import torch
import torch.nn.functional as F
from _memroom_probe.fit import registry
from _memroom_probe.fit.calls import outermost

torch.set_num_threads(1)
# Remedies look for models and optimizers among all objects, once a run; here are hundreds of runs.
# What importing torch has made is not looked through again. The first optimizer imports the
# compiler, which makes more objects than everything else.
torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
gc.collect()
gc.freeze()


class Told(list):
    """Collects what remedies say."""

    def say(self, kind, text, **fields):
        self.append((kind, text, fields))

    def kinds(self, id):
        return [kind for kind, _, fields in self if fields.get("id") == id]

    def text(self):
        return "; ".join("%s %s" % (kind, text) for kind, text, _ in self)


@contextlib.contextmanager
def remedies(*asked):
    """Remedies in place for a while: ("micro_batch", {"pieces": 4}), ..."""
    told, divergence = Told(), F.kl_div
    try:
        registry.apply([{"id": id, "params": params} for id, params in asked], told.say)
        yield told
    finally:
        outermost.forget_all()
        F.kl_div = divergence


def train(model, step, batches, optimizer, asked=(), after=None, seed=1):
    """Trains a copy of the model; gives (losses, the trained copy, what was said)."""
    model = copy.deepcopy(model)
    torch.manual_seed(seed)
    losses = []
    with remedies(*asked) as told:
        opt = optimizer(model.parameters())
        for batch in batches:
            opt.zero_grad()
            loss = step(model, batch)
            loss.backward()
            if after:
                after(model, opt)
            opt.step()
            losses.append(loss.item())
    return losses, model, told


def furthest(a, b):
    """The largest relative difference of two trajectories."""
    return max(abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b))


def parameters_apart(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a.parameters(), b.parameters()))


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


PIECES = (("micro_batch", {"pieces": 4}),)
