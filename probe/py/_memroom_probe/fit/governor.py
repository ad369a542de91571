"""Chooses, on the first training call of a module, how much of which remedy it needs to fit, and applies it.

What a row costs is measured on a few rows (measure), what there is for it is read (room). The cheapest choice that fits
is taken at once, rather than creeping up on it over several attempts:

1. the module returns its loss: pieces whose backward pass follows at once (nothing is computed twice);
2. some blocks are checkpointed, the fattest first, as many as needed;
3. the batch in pieces, as many of them recomputed as needed;
4. all blocks checkpointed and the batch in pieces.
"""
import math
import weakref

import torch

from . import blocks, measure, microbatch, room
from .rows import Cannot, Inputs

WORK_FOR_LOSS = 3  # tensors of the outputs' size that a loss over the whole batch makes: log-probabilities, two gradients
TOO_MANY = 0.08  # what a doubling of the number of pieces is taken to cost, as a share of a forward pass


class Choice:
    """One way to fit: the blocks to checkpoint, the batch's Share or None, the share of the forward pass that is run
    twice, and the bytes it would need."""

    def __init__(self, words, needs, twice, checkpoint=(), share=None, pieces=1):
        self.words, self.needs, self.twice, self.checkpoint, self.share, self.pieces = words, needs, twice, checkpoint, share, pieces


class Governor:
    """The handler of outermost calls. allowed: ids of remedies; limit: bytes, if the caller knows a lower wall; failed: the
    whole batch is known not to fit; factor: share of the room to plan with, lowered after a plan that was too bold."""

    def __init__(self, say, allowed, limit=None, failed=False, factor=1.0):
        self.say, self.allowed, self.limit, self.failed, self.factor = say, allowed, limit, failed, factor
        self.checkpointing = blocks.Checkpointing()
        self.micro = microbatch.MicroBatch(say, lambda module, inputs, plan: self._choices[module].share)
        self._choices = weakref.WeakKeyDictionary()

    def __call__(self, module, call, args, kwargs):
        if not microbatch.worth_it(module):
            return call(*args, **kwargs)
        if module not in self._choices and torch.is_grad_enabled() and self._trains(module):
            choice = self._choices[module] = self._choose(module, call, args, kwargs)
            self.checkpointing.use(choice.checkpoint)
        choice = self._choices.get(module)
        if choice is None or choice.share is None:
            return call(*args, **kwargs)
        return self.micro(module, call, args, kwargs)

    def _trains(self, module):
        return any(p.requires_grad for p in module.parameters())

    def _choose(self, module, call, args, kwargs):
        found = self._blocks(module)
        try:
            inputs = _inputs(args, kwargs)
            plan = self._plan(module, call, args, kwargs)
            if plan is not None:
                plan, inputs = plan
            around = room.of(next(module.parameters()).device, self.limit)
            cost = measure.cost(module, call, inputs, around, found)
        except Cannot as reason:
            return self._unmeasured(module, found, reason)
        _, state = room.to_come(module)
        budget = room.SAFETY * self.factor * around.limit - around.held() - state
        return self._decide(module, inputs, plan, found, cost, budget, around, state)

    def _blocks(self, module):
        if "checkpointing" not in self.allowed or type(module).__name__ == "OptimizedModule":
            return []
        return [(name, b) for name, b in blocks.find(module) if blocks.fit_for_recompute(b) is None]

    def _plan(self, module, call, args, kwargs):
        if "micro_batch" not in self.allowed:
            return None
        try:
            return self.micro.plan(module, call, args, kwargs)
        except Cannot as reason:
            self.say("declined", "%s: %s" % (microbatch.name_of(module), reason), id="micro_batch")
            return None

    def _decide(self, module, inputs, plan, found, cost, budget, around, state):
        candidates = list(_candidates(inputs, plan, found, cost))
        if self.failed and candidates:
            budget = min(budget, 0.97 * candidates[0].needs)  # the first is "as it is", and that is known to fail
        fitting = [c for c in candidates if c.needs <= budget]
        choice = min(fitting, key=lambda c: c.twice) if fitting else min(candidates, key=lambda c: c.needs)
        expected = int(around.held() + state + choice.needs)
        fields = {"predicted": expected, "limit": around.limit, "rows": inputs.rows, "pieces": choice.pieces,
                  "checkpointed": len(choice.checkpoint), "twice": round(choice.twice, 3),
                  "equivalence": plan.equivalence if plan and choice.share else "exact"}
        name = microbatch.name_of(module)
        if not fitting:
            self.say("note", "%s: cannot fit: needs at least %d bytes, %d are there" % (name, expected, around.limit),
                     id="cannot_fit", needs=expected, limit=around.limit)
        for id, on in (("micro_batch", choice.share), ("checkpointing", choice.checkpoint)):
            if on:
                self.say("applied", "%s: %s" % (name, choice.words), id=id, **fields)
        if not choice.share and not choice.checkpoint:
            self.say("note", "%s: the whole batch fits as it is" % name, id="micro_batch", **fields)
        return choice

    def _unmeasured(self, module, found, reason):
        """Without a batch to try there is only everything at once: all blocks."""
        name = microbatch.name_of(module)
        if found:
            self.say("applied", "%s: all %d blocks checkpointed (%s)" % (name, len(found), reason), id="checkpointing",
                     equivalence="exact", checkpointed=len(found))
        else:
            self.say("declined", "%s: no blocks to checkpoint, and %s" % (name, reason), id="checkpointing")
        return Choice("all blocks", 0, 1.0, [b for _, b in found])


def _inputs(args, kwargs):
    return Inputs(args, kwargs)


def _candidates(inputs, plan, found, cost):
    rows = inputs.rows
    outputs = cost.output_row * rows
    accumulates = plan is not None and plan.accumulates
    extra = 0 if accumulates else WORK_FOR_LOSS * outputs
    yield Choice("as it is", cost.peak_fixed + cost.peak_row * rows + extra, 0.0)
    yield from _some_blocks(rows, cost, extra)
    if plan is None:
        return
    for saved_fewer, checkpointed in ((0.0, ()), (_gain(cost.by_block), [b for _, b, _, _ in cost.by_block])):
        if not checkpointed and saved_fewer:
            continue
        largest = max([s for _, _, s, _ in cost.by_block] or [0]) if checkpointed else 0
        peak_row = max(cost.peak_row - saved_fewer + largest, cost.output_row)
        saved_row = max(cost.saved_row - saved_fewer, 0)
        yield from _pieces(inputs, accumulates, cost, outputs, extra, peak_row, saved_row, checkpointed)


def _gain(by_block):
    return sum(saved - given for _, _, saved, given in by_block)


def _some_blocks(rows, cost, extra):
    """The fattest blocks first; the share run twice is taken as their share of what is saved."""
    order = sorted(cost.by_block, key=lambda b: b[2] - b[3], reverse=True)
    total = sum(b[2] for b in order) or 1
    for count in range(1, len(order) + 1):
        chosen = order[:count]
        needs = cost.peak_fixed + (cost.peak_row - _gain(chosen)) * rows + extra
        needs = max(needs, cost.peak_fixed + max(b[2] for b in chosen) * rows + extra)
        words = "%d of %d blocks checkpointed" % (count, len(order))
        yield Choice(words, needs, sum(b[2] for b in chosen) / total, [b for _, b, _, _ in chosen])


def _pieces(inputs, accumulates, cost, outputs, extra, peak_row, saved_row, checkpointed):
    rows, elements = inputs.rows, inputs.elements_per_row()
    for count in _counts(rows):
        size = -(-rows // count)
        count = -(-rows // size)
        burden = TOO_MANY * math.log2(count) + (1.0 if checkpointed else 0.0)
        one = cost.peak_fixed + peak_row * size + outputs + extra
        words = "batch of %d in %d pieces%s" % (rows, count, ", %d blocks checkpointed" % len(checkpointed) if checkpointed else "")
        if accumulates:
            yield Choice(words, one, burden, checkpointed, microbatch.Share(size, 0, elements), count)
            continue
        for keep in range(count):
            kept = cost.peak_fixed + extra + outputs + saved_row * size * keep + max(0, peak_row - saved_row) * size
            said = words + (", %d of them kept" % keep if keep else "")
            yield Choice(said, max(one, kept), burden + (count - keep) / count, checkpointed, microbatch.Share(size, keep, elements), count)


def _counts(rows):
    """Numbers of pieces worth trying: fine at first, then doubling."""
    counts = [c for c in (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32) if c <= rows]
    while counts and counts[-1] * 2 <= rows:
        counts.append(counts[-1] * 2)
    return sorted(set(counts + [rows])) if rows > 1 else []
