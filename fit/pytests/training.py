"""What the tests of the fit remedies share: a training run with and without remedies, compared."""

import contextlib
import copy
import gc
import random
import sys

import torch
import torch.nn.functional as F
from _memroom_probe.fit import registry
from _memroom_probe.fit.calls import generators, outermost

try:
    from torch.optim.optimizer import register_optimizer_step_post_hook
except ImportError:  # before PyTorch 2.1: the states are not compared there
    register_optimizer_step_post_hook = None

torch.set_num_threads(1)
# Remedies look for models and optimizers among all objects, once a run; here are hundreds of runs.
# What importing torch has made is not looked through again. The first optimizer imports the
# compiler, which makes more objects than everything else.
torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
gc.collect()
gc.freeze()


class Told(list):
    """Collects what remedies say, and the states of the generators at each optimizer step."""

    def __init__(self):
        super().__init__()
        self.states = []

    def note_states(self, *_):
        self.states.append(generators.digest())

    def expects(self):
        """Whether a remedy says that it draws other random numbers."""
        return any(fields.get("equivalence") == "expected" for _, _, fields in self)

    def say(self, kind, text, **fields):
        self.append((kind, text, fields))

    def kinds(self, id):
        return [kind for kind, _, fields in self if fields.get("id") == id]

    def text(self):
        return "; ".join("%s %s" % (kind, text) for kind, text, _ in self)


@contextlib.contextmanager
def remedies(*asked, of):
    """Remedies in place for a while: ("micro_batch", {"pieces": 4}), ...

    At every optimizer step all generators must be as in the run of the same objects without
    remedies, which comes first. Where there is nothing to compare, `of` is the reason.
    """
    told, divergence = Told(), F.kl_div
    noting = register_optimizer_step_post_hook and register_optimizer_step_post_hook(
        told.note_states
    )
    try:
        registry.apply([{"id": id, "params": params} for id, params in asked], told.say)
        yield told
        if not isinstance(of, str):
            same_draws(of, asked, told)
    finally:
        if noting:
            noting.remove()
        outermost.forget_all()
        F.kl_div = divergence


class _By:
    """Some objects, equal to the same ones. They are kept, so that no other takes the place of
    one.
    """

    def __init__(self, objects):
        self.objects = objects

    def __eq__(self, other):
        return len(self.objects) == len(other.objects) and all(
            a is b or isinstance(a, str) and a == b for a, b in zip(self.objects, other.objects)
        )


_plain: list = []  # (what ran, states) of the runs without remedies


def sow(seed):
    """Seeds every generator that anybody may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def plain(objects):
    """The states at each step of the last run of these objects without remedies, if there was
    one.
    """
    ran = _By(objects)
    return next((states for known, states in reversed(_plain) if known == ran), None)


def same_draws(objects, asked, told):
    """Compares a run with the one without remedies, unless a remedy has said that it draws other
    numbers.
    """
    before = plain(objects)
    if not asked:
        _plain.append((_By(objects), told.states))
    elif before is None:
        raise AssertionError("there was no run without remedies")
    elif not told.expects() and told.states != before:
        raise AssertionError("other random numbers were drawn, and nothing says so: %s" % told)


def train(model, step, batches, optimizer, asked=(), after=None, seed=1):
    """Trains a copy of the model; returns (losses, the trained copy, what was said)."""
    ran = [model, step, batches, optimizer, after, str(seed)]
    if asked and plain(ran) is None:
        train(model, step, batches, optimizer, (), after, seed)
    model = copy.deepcopy(model)
    sow(seed)
    losses = []
    with remedies(*asked, of=ran) as told:
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
