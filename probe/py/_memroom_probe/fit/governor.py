"""Chooses, on the first training call of a module, how much of which remedy it needs to fit, and applies it.

What a row costs is measured on a few rows (measure), what there is for it is read (room). The cheapest choice that fits
is taken at once, rather than creeping up on it over several attempts:

1. the module returns its loss: pieces whose backward pass follows at once (nothing is computed twice);
2. some blocks are checkpointed, the fattest first, as many as needed;
3. the batch in pieces, as many of them recomputed as needed;
4. all blocks checkpointed and the batch in pieces.
"""
import weakref

import torch

from . import blocks, measure, microbatch, room, tree
from .rows import Cannot, Inputs, is_tensor

WORK_FOR_LOSS = 8  # bytes that a loss over the whole batch makes for each element of the outputs beside the one gradient that
# was measured: log-probabilities and another gradient, fp32
WORK_IN_HALF = 12  # and a copy in fp32 where the outputs are in half precision
FORWARD = 1 / 3  # share of a step's computation
LARGER = 1.05  # times the batch a choice was made for, from which it is made anew


class Choice:
    """One way to fit: the blocks to checkpoint, the batch's Share or None, the bytes it would need, the share of the
    forward pass that is run twice, and the seconds a step would take."""

    def __init__(self, words, needs, twice, cost, rows, checkpoint=(), share=None, pieces=1):
        self.words, self.needs, self.twice, self.checkpoint, self.share, self.pieces = words, needs, twice, checkpoint, share, pieces
        self.seconds = (cost.time_fixed * pieces + cost.time_row * rows) * (1 + FORWARD * twice)


class Everything:
    """The choice where nothing can be measured."""

    share = None

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint


class Governor:
    """The handler of outermost calls. allowed: ids of remedies; limit: bytes, if the caller knows a lower wall; failed: the
    whole batch is known not to fit; factor: share of the room to plan with, lowered after a plan that was too bold."""

    def __init__(self, say, allowed, limit=None, failed=False, factor=1.0):
        self.say, self.allowed, self.limit, self.failed, self.factor = say, allowed, limit, failed, factor
        self.checkpointing = blocks.Checkpointing()
        self.micro = microbatch.MicroBatch(say, lambda module, inputs, plan: self._choices[module].share)
        self._choices = weakref.WeakKeyDictionary()
        self._uncut = weakref.WeakSet()  # modules that showed in a run that they cannot be cut

    def __call__(self, module, call, args, kwargs):
        if not microbatch.worth_it(module):
            return call(*args, **kwargs)
        choice = self._choices.get(module)
        if torch.is_grad_enabled() and self._trains(module):
            size = _size(args, kwargs)
            if choice is None or size > LARGER * choice.size:
                choice = self._choices[module] = self._choose_safely(module, call, args, kwargs)
                choice.size = size
                self.checkpointing.use(module, choice.checkpoint)
        if choice is None or choice.share is None:
            return call(*args, **kwargs)
        try:
            return self.micro.run(module, call, args, kwargs)
        except Cannot as reason:
            return self._without_pieces(module, call, args, kwargs, reason)

    def _without_pieces(self, module, call, args, kwargs, reason):
        """Pieces turned out not to be possible. A batch of one row says nothing; otherwise the choice is made anew without."""
        if torch.is_grad_enabled() and Inputs(args, kwargs).rows > 1:
            self.micro.decline(module, reason)
            self._uncut.add(module)
            choice = self._choices[module] = self._choose_safely(module, call, args, kwargs)
            choice.size = _size(args, kwargs)
            self.checkpointing.use(module, choice.checkpoint)
        return call(*args, **kwargs)

    def _choose_safely(self, module, call, args, kwargs):
        """A fault of ours costs the remedy, not the training."""
        try:
            return self._choose(module, call, args, kwargs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as why:
            self.say("declined", "%s: %s: %s" % (microbatch.name_of(module), type(why).__name__, why), id="micro_batch")
            return Everything([])

    def _trains(self, module):
        return any(p.requires_grad for p in module.parameters())

    def _choose(self, module, call, args, kwargs):
        if any(type(p).__name__ in ("DTensor", "FlatParameter") for p in module.parameters()):
            self.say("declined", "%s: its parameters are sharded (FSDP)" % microbatch.name_of(module), id="micro_batch")
            return Everything([])
        found = self._blocks(module)
        try:
            inputs = Inputs(args, kwargs)
            plan = self._plan(module, call, args, kwargs)
            if plan is not None:
                plan, inputs = plan
            around = room.of(next(module.parameters()).device, self.limit)
            held = around.held()
            cost = measure.cost(module, call, inputs, around, found)
        except Cannot as reason:
            return self._unmeasured(module, found, reason)
        _, state = room.to_come(module)
        return self._decide(module, inputs, plan, found, cost, around.limit, held + state)

    def _blocks(self, module):
        if "checkpointing" not in self.allowed or type(module).__name__ == "OptimizedModule":
            return []
        return [(name, b) for name, b in blocks.find(module) if blocks.fit_for_recompute(b) is None]

    def _plan(self, module, call, args, kwargs):
        if "micro_batch" not in self.allowed or module in self._uncut:
            return None
        try:
            return self.micro.plan(module, call, args, kwargs)
        except Cannot as reason:
            self.say("declined", "%s: %s" % (microbatch.name_of(module), reason), id="micro_batch")
            return None

    def _decide(self, module, inputs, plan, found, cost, limit, always):
        """always: bytes that are held whatever is chosen."""
        budget = room.SAFETY * self.factor * limit - always
        candidates = list(_candidates(inputs, plan, found, cost))
        if self.failed and candidates:
            budget = min(budget, 0.97 * candidates[0].needs)  # the first is "as it is", and that is known to fail
        fitting = [c for c in candidates if c.needs <= budget]
        choice = min(fitting, key=lambda c: c.seconds) if fitting else min(candidates, key=lambda c: c.needs)
        expected = int(always + choice.needs)
        fields = {"predicted": expected, "limit": limit, "rows": inputs.rows, "pieces": choice.pieces,
                  "checkpointed": len(choice.checkpoint), "twice": round(choice.twice, 3),
                  "equivalence": plan.equivalence if plan and choice.share else "exact"}
        name = microbatch.name_of(module)
        if not fitting:
            needs = int(expected / room.SAFETY)
            self.say("note", "%s: cannot fit: needs at least %s, %s are there" % (name, room.words(needs), room.words(limit)),
                     id="cannot_fit", needs=needs, limit=limit)
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
        return Everything([b for _, b in found])


def _size(args, kwargs):
    """Elements of the call's largest tensor: a choice holds until a batch comes that is larger."""
    return max([leaf.numel() for leaf in tree.flatten((args, kwargs))[0] if is_tensor(leaf)], default=0)


def _candidates(inputs, plan, found, cost):
    """Every choice that is thought of; the first is to change nothing."""
    rows = inputs.rows
    accumulates = plan is not None and plan.accumulates
    extra = 0 if cost.has_loss else (WORK_IN_HALF if cost.half else WORK_FOR_LOSS) * cost.elements_row * rows
    yield Choice("as it is", cost.peak_fixed + cost.peak_row * rows + extra, 0.0, cost, rows)
    yield from _some_blocks(rows, cost, extra)
    if plan is None:
        return
    yield from _pieces(inputs, accumulates, cost, extra, cost.peak_row, cost.saved_row, ())
    if cost.by_block:
        saved_row = max(cost.saved_row - _gain(cost.by_block), 0)
        peak_row = max(cost.peak_row - _gain(cost.by_block) + max(b[2] for b in cost.by_block), cost.output_row)
        yield from _pieces(inputs, accumulates, cost, extra, peak_row, saved_row, [b for _, b, _, _ in cost.by_block])


def _gain(by_block):
    return sum(saved - given for _, _, saved, given in by_block)


def _some_blocks(rows, cost, extra):
    """The fattest blocks first; the share run twice is taken as their share of what is saved."""
    order = sorted(range(len(cost.by_block)), key=lambda i: cost.by_block[i][2] - cost.by_block[i][3], reverse=True)
    total = sum(b[2] for b in cost.by_block) or 1
    for count in range(1, len(order) + 1):
        chosen = set(order[:count])
        blocks_chosen = [cost.by_block[i] for i in sorted(chosen)]
        at_loss = (cost.peak_row - _gain(blocks_chosen)) * rows + extra
        needs = cost.peak_fixed + max(at_loss, _at_recompute(cost, chosen) * rows)
        words = "%d of %d blocks checkpointed" % (count, len(order))
        yield Choice(words, needs, sum(b[2] for b in blocks_chosen) / total, cost, rows, [b[1] for b in blocks_chosen])


def _at_recompute(cost, chosen):
    """Bytes a row while the fattest moment of the recompute lasts: what was saved before the block, the block itself and
    what a backward pass needs beside it. What is saved outside blocks is taken to come before them."""
    before = max(0, cost.saved_row - sum(b[2] for b in cost.by_block))
    beside = max(0, cost.peak_row - cost.saved_row - 2 * cost.output_row)
    most = 0
    for i, (_, _, saved, given) in enumerate(cost.by_block):
        most = max(most, before + saved + beside if i in chosen else 0)
        before += given if i in chosen else saved
    return most


def _pieces(inputs, accumulates, cost, extra, peak_row, saved_row, checkpointed):
    rows, elements = inputs.rows, inputs.elements_per_row()
    outputs = cost.output_row * rows
    inner = 1.0 if checkpointed else 0.0
    for count in _counts(rows):
        size = -(-rows // count)
        count = -(-rows // size)
        one = cost.peak_fixed + peak_row * size + outputs + extra
        words = "batch of %d in %d pieces%s" % (rows, count, ", %d blocks checkpointed" % len(checkpointed) if checkpointed else "")
        if accumulates:
            yield Choice(words, one, inner, cost, rows, checkpointed, microbatch.Share(size, 0, elements), count)
            continue
        for keep in range(0, count, max(1, count // 16)):
            kept = cost.peak_fixed + extra + outputs + saved_row * size * keep + max(0, peak_row - saved_row) * size
            said = words + (", %d of them kept" % keep if keep else "")
            share = microbatch.Share(size, keep, elements)
            yield Choice(said, max(one, kept), inner + (count - keep) / count, cost, rows, checkpointed, share, count)


def _counts(rows):
    """Numbers of pieces worth trying: fine at first, then coarser. Hundreds of pieces help nobody."""
    counts = [c for c in (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if c <= rows]
    return sorted(set(counts + [rows])) if 1 < rows <= 256 else counts
