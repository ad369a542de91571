"""What the user is told of a choice: what is done, and what can never fit."""

from typing import Any, Dict

import torch

from ..calls.modules import name_of
from ..measure.cost import Cost
from ..memory import room
from . import traits
from .case import Case
from .means import Means, Say

SLIGHT = 0.01  # of what a step needs: a choice that spares less is not why it fits
PIECES = " (pieces of a batch run in other kernels than the whole)"
TRIED = "cuDNN picks algorithms by trying them in the room there is: torch.backends.cudnn.benchmark"
# Why pieces differ by more than full precision rounds.
HALF = "sums over pieces are rounded in half precision"


def tell_choice(means: Means, case: Case, total: int, limit: int) -> None:
    """What is done from now on. total: bytes that the step is predicted to need."""
    choice, say = case.choice, means.say
    seconds = choice.seconds + means.travels()
    fields: Dict[str, Any] = {
        "predicted": total,
        "limit": limit,
        "slight": case.candidates[0].needs - choice.needs < SLIGHT * total,
        "rows": case.rows,
        "pieces": choice.pieces,
        "checkpointed": len(choice.checkpoint),
        "twice": round(choice.twice, 3),
        "slower": round(seconds / (case.candidates[0].seconds or 1) - 1, 3),
        "equivalence": case.plan.equivalence if case.plan and _was_cut(case) else "exact",
    }
    if _rounds(case):
        fields["amplifies"] = case.amplifies + case.rounding
    elif case.half and _was_cut(case):
        fields["amplifies"] = HALF
    elif case.precision and _was_cut(case):
        fields["rounds"] = case.precision + PIECES
    words = "%s: %s" % (case.name, choice.words)
    for id in choice.remedies():
        say("applied", words, id=id, **fields)
    if not choice.remedies():
        say("note", "%s: the whole batch fits as it is" % case.name, id="micro_batch", **fields)


def tell_algorithms(say: Say, module: torch.nn.Module, precision: str) -> None:
    """Whatever is done, cuDNN may find another algorithm the fastest than with more memory."""
    if precision and traits.tries_algorithms(module):
        words = "%s: %s; others round by %s" % (name_of(module), TRIED, precision)
        say("note", words, id="micro_batch", rounds="%s (%s)" % (precision, TRIED))


def tell_beginning(say: Say, case: Case, held: float, cost: Cost, limit: int) -> None:
    """held: bytes that are there now. What is said here is final, so nothing is claimed that could
    be otherwise: no workspaces, no work of a loss outside, no optimizer state, which can wait
    elsewhere; only what lies there beside one row.
    """
    module = case.module()
    assert module is not None  # its call is being looked at
    _tell_if_nothing_fits(say, case, module, held, limit)
    gradients = sum(
        p.numel() * p.element_size()
        for p in module.parameters()
        if p.requires_grad and p.grad is None
    )
    _tell_if_no_step_fits(say, module, held, gradients, limit)
    needs = int(held - room.state() + gradients + cost.output_row * case.rows)
    beside = "" if traits.is_on_card(module) else "Python with its libraries, data, "
    if needs > limit:
        say(
            "note",
            (
                "cannot fit: needs at least %s, %s are there: so much do %sweights, gradients "
                "and the results of %s take"
            )
            % (room.words(needs), room.words(limit), beside, case.name),
            id="cannot_fit",
            needs=needs,
            limit=limit,
        )
    for id in case.choice.remedies() or ["micro_batch"]:
        say("note", "%s: the first step with: %s" % (case.name, case.choice.words), id=id)


def _tell_if_no_step_fits(
    say: Say, module: torch.nn.Module, held: float, gradients: int, limit: int
) -> None:
    """On a CPU what an optimizer keeps can wait nowhere else: its first step needs all of it beside
    weights and gradients, however small the batch is cut.
    """
    state, work = room.first_step()
    needs = held + gradients + state + work
    if traits.is_on_card(module) or needs <= limit:
        return
    say(
        "note",
        "cannot fit: the optimizer's first step needs at least %s, %s are there: Python with "
        "its libraries, data and weights %s, gradients %s, optimizer state %s, and %s to "
        "compute with" % tuple(map(room.words, (needs, limit, held, gradients, state, work))),
        id="cannot_fit",
        needs=needs,
        limit=limit,
    )


def _tell_if_nothing_fits(
    say: Say, case: Case, module: torch.nn.Module, held: float, limit: int
) -> None:
    """On a CPU peaks are those of the process, so another attempt would find the same."""
    needs = int(held + min(c.needs for c in case.candidates))
    if traits.is_on_card(module) or needs <= limit:
        return
    say(
        "note",
        "cannot fit: even the smallest way to run %s needs about %s, of which Python, its "
        "libraries and data take %s; %s are there"
        % (case.name, *map(room.words, (needs, held, limit))),
        id="cannot_fit",
        needs=needs,
        limit=limit,
    )


def _rounds(case: Case) -> bool:
    """Whether the result is not equal to the bit in a training where that matters."""
    if case.choice.bitwise and not case.cut:
        return False
    return bool(case.amplifies) and case.plan is not None and case.plan.equivalence == "exact"


def _was_cut(case: Case) -> bool:
    """Whether pieces of the batch are run, or were in the first step: that stays in the weights."""
    return case.cut or case.choice.share is not None
