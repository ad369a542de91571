"""Follows the script through its steps: which module is being called, forward, backward, optimizer;
and ends it in time.

After enough optimizer steps the training loader runs dry, so that the script goes on to what
follows an epoch: evaluation, whose batches are often larger. Whatever trains after that, or takes
too long, ends the rehearsal.
"""

from __future__ import annotations

import copy
import functools
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn

import torch

from . import imitation
from . import recorder as record

if TYPE_CHECKING:
    from .stage import Stage

End = Callable[[str], NoReturn]  # ends the process; takes the reason, or a sentence for the user

VARYING = 4  # times as many steps are rehearsed while they ask for different sizes
PATIENCE = (
    25  # seconds of processor time after which sizes that differ do not prolong the rehearsal
)
EVALUATED = 4  # batches of one evaluation that are rehearsed
PREPARING = 25  # seconds of processor time for the rest of a pass that comes before training
ENOUGH = (
    40  # seconds of processor time after which the second step's first passes end the rehearsal
)
REPEATED = 3  # times the same evaluation is played; what it returns after that is made without it
EVALUATING = 5  # seconds of processor time after which evaluations of most lengths are left out
LONGER = 1.125  # times as long as any that was made may those be
AFTERWARDS = 15  # seconds of processor time for what follows the last step
LAST = 2  # steps that loaders which fetch ahead may take when the data has ended

VARIES = (
    "steps ask for different sizes (samples of different lengths?): a longer run may meet "
    "larger ones"
)
SHORTENED = "evaluation was rehearsed for %d batches a pass" % EVALUATED
GROWN = "evaluations of growing lengths were rehearsed in steps of an eighth"
LONG = "steps are long: the last one was rehearsed for its first passes only"
CUT = "what follows training was rehearsed for %d seconds only" % AFTERWARDS


class Script:
    """Counts optimizer steps and calls `over` after enough of them."""

    def __init__(
        self, stage: Stage, recorder: record.Recorder, steps: int, over: End, fail: End
    ) -> None:
        self.stage, self.recorder, self.steps, self.over, self.fail = (
            stage,
            recorder,
            steps,
            over,
            fail,
        )
        # id of an optimizer, 0 for updates by hand -> steps taken; scripts with several (GANs) end
        # when each has had its share
        self.counts: dict[int, int] = {}
        self.names: dict[int, str] = {}  # id of a module -> its name below the outermost one
        self.backwards = 0  # backward passes that are running
        self.forked = False  # from a process that may have run a backward pass
        self.begun = time.process_time()
        # bytes that each step has asked for in its forward and backward passes
        self.asked: list[int] = []
        self.fed: Any = (
            None  # the loader's iterator that gave the newest batch, since the last step
        )
        self.ended: float | None = None  # when the training data was made to end
        self.later = 0  # optimizer steps since then
        # when batches of a pass before training were first given again
        self.repeating: float | None = None
        self.before = 0  # allocations made before the last step began
        self.passes = 0  # backward passes since the last step
        self.optimizers = 0  # of torch that were made
        # storages of what the last pass gave gradients to, while no optimizer of torch has stepped
        self.leaves: dict[int, Any] = {}
        self.updating = False  # the script writes into them
        # what was evaluated -> (how often, form of what came out)
        self.evaluations: dict[tuple[Any, ...] | None, tuple[int, Any]] = {}
        self.growing = imitation.Growing()
        self.evaluating = 0.0  # seconds of processor time that they took

    def install(self) -> None:
        self._follow_modules()
        self._follow_backward()
        self._follow_optimizers()
        self._follow_loaders()

    # -- modules
    # ------------------------------------------------------------

    def _follow_modules(self) -> None:
        script, stage, call = self, self.stage, torch.nn.Module.__call__

        def follow(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            outermost = not stage.modules
            if outermost:
                script.enter_model(module)
                if not torch.is_grad_enabled():
                    return script.evaluate(module, call, args, kwargs)
            stage.modules.append(script.names.get(id(module)) or type(module).__name__)
            try:
                return call(module, *args, **kwargs)
            finally:
                stage.modules.pop()

        torch.nn.Module.__call__ = follow
        linear = torch.nn.functional.linear

        def follow_linear(*args: Any, **kwargs: Any) -> torch.Tensor:
            stage.in_linear = True
            try:
                return linear(*args, **kwargs)
            finally:
                stage.in_linear = False

        torch.nn.functional.linear = follow_linear

    def evaluate(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call without gradients leaves nothing behind but what it returns. After a few of the
        same form, that is all that is made: loops over hundreds of batches between two steps are
        common.
        """
        key = imitation.form((args, kwargs))
        key = (
            (id(module), module.training, torch.is_autocast_enabled("cuda"), key)
            if key is not None and not self.backwards
            else None
        )
        times, made = self.evaluations.get(key, (0, None))
        if key is not None and times < REPEATED and self.evaluating > EVALUATING:
            made = self.growing.guess(key, LONGER)
            if made is not None:
                self.recorder.warnings[GROWN] = 1
                times = REPEATED
        if key is not None and times >= REPEATED and made is not None:
            return imitation.again(made)
        began = time.process_time()
        self.stage.modules.append(self.names.get(id(module)) or type(module).__name__)
        try:
            out = call(module, *args, **kwargs)
        finally:
            self.stage.modules.pop()
        if key is not None:
            self.evaluating += time.process_time() - began
            self.evaluations[key] = (times + 1, imitation.remember(out))
            self.growing.learn(key, self.evaluations[key][1])
        return out

    def enter_model(self, module: torch.nn.Module) -> None:
        self.keep_time()
        self.after_update()
        if id(module) not in self.names:
            self.names.clear()
            for name, part in module.named_modules():
                self.names[id(part)] = name or type(module).__name__
        if not self.backwards:  # a recomputed block is called by the backward pass
            self.recorder.mark("forward" if torch.is_grad_enabled() else "eval")

    # -- backward
    # ------------------------------------------------------------

    def _follow_backward(self) -> None:
        graph, script, recorder, fail = torch.autograd.graph, self, self.recorder, self.fail
        run = graph._engine_run_backward

        def follow(*args: Any, **kwargs: Any) -> Any:
            script.before_backward(args[0])
            recorder.settle("forward", record.ACTIVATIONS)
            recorder.mark("backward")
            before, recorder.lines.calling = recorder.lines.calling, recorder.lines.here()
            script.backwards += 1
            try:
                if not script.forked:
                    return run(*args, **kwargs)
                # the engine counted its threads before the fork
                with torch.autograd.set_multithreading_enabled(False):
                    return run(*args, **kwargs)
            except RuntimeError as e:
                if "hasPrimaryContext" in str(e):  # card.py could not answer for the driver
                    fail(
                        "torch %s cannot run a backward pass for an absent card" % torch.__version__
                    )
                raise
            finally:
                script.backwards -= 1
                recorder.lines.calling = before
                script.after_backward()

        for module in (graph, torch.autograd):
            if getattr(module, "_engine_run_backward", None) is run:
                module._engine_run_backward = follow

    def after_backward(self) -> None:
        """Accumulating scripts may take dozens of passes a step: the second step's first two show
        what the others do.
        """
        self.passes += 1
        if (
            self.recorder.step
            and self.passes >= 2
            and not self.backwards
            and time.process_time() - self.begun > ENOUGH
            and self.ended is None
        ):
            self.recorder.warnings[LONG] = 1
            self.over("steps")

    # -- updates by hand
    # ------------------------------------------------------------

    def by_hand(self) -> bool:
        """Whether the script may update its weights itself. Where it has made an optimizer of
        torch, such as for the outer of two loops, that gets its time.
        """
        return not self.counts.keys() - {0} and (
            not self.optimizers or time.process_time() - self.begun > PATIENCE
        )

    def before_backward(self, roots: Any) -> None:
        """Weights that are others than in the last pass have been made from them by an update."""
        self.after_update()
        if self.backwards or not self.by_hand():
            return
        found = leaves(roots)
        if self.passes and self.leaves and not found.keys() & self.leaves.keys():
            self.updating = True
            self.after_update()
        self.leaves = found

    def before_write(self, t: torch.Tensor) -> None:
        """The script writes into a tensor of the card, in hooks of the backward pass or after."""
        if self.updating or t.untyped_storage()._cdata not in self.leaves or not self.by_hand():
            return
        self.updating = bool(self.passes or self.backwards)
        if self.passes and not self.backwards:
            self.claim(self.leaves.values())
            self.recorder.mark("optimizer")
            self.before = self.recorder.count

    def after_update(self) -> None:
        if self.updating and not self.backwards:
            self.updating = False
            self.leaves = {}
            self.count_step(0)

    # -- optimizer
    # ------------------------------------------------------------

    def _follow_optimizers(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.optim import optimizer as module

        script, make = self, module.Optimizer.__init__

        @functools.wraps(make)
        def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            script.optimizers += 1
            make(optimizer, *args, **kwargs)

        module.Optimizer.__init__ = made
        module._foreach_supported_types.append(FakeTensor)
        module.register_optimizer_step_pre_hook(self.before_step)
        module.register_optimizer_step_post_hook(self.after_step)
        recorder, scaler = self.recorder, torch.amp.GradScaler
        scale = scaler.scale

        def follow(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            if scaler.is_enabled():
                recorder.facts["scaled"] = (
                    True  # its first steps are skipped on a card until the scale fits
                )
            return scale(scaler, outputs)

        scaler.scale = follow

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.updating = False
        for group in optimizer.param_groups:
            self.claim(group["params"])
        self.recorder.mark("optimizer")
        self.before = self.recorder.count

    def claim(self, weights: Iterable[torch.Tensor]) -> None:
        for p in weights:
            self.recorder.categorize(p.untyped_storage(), record.WEIGHTS)
            if p.grad is not None and not p.grad.is_sparse:
                self.recorder.categorize(p.grad.untyped_storage(), record.GRADIENTS)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self.recorder
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor) and not value.is_sparse:
                    recorder.categorize(value.untyped_storage(), record.OPTIMIZER)
        recorder.settle("optimizer", record.OPTIMIZER, self.before)
        self.count_step(id(optimizer))

    def count_step(self, of: int) -> None:
        """of: the optimizer's id, 0 where the script updates its weights itself."""
        recorder = self.recorder
        self.counts[of] = self.counts.get(of, 0) + 1
        recorder.mark("optimizer", max(self.counts.values()))
        self.asked.append(recorder.trained)
        recorder.trained = self.passes = 0
        if self.ended is not None:
            self.later += 1
            if self.later > LAST or self.fed is not None and not trained(self.fed):
                self.over("steps")
        elif self.fed is not None:
            self.fed._memroom_trained = True
        if self.ended is None and self.enough():
            self.end_data()
        self.fed = None

    def enough(self) -> bool:
        if min(self.counts.values()) < self.steps and max(self.counts.values()) < 3 * self.steps:
            return False
        if len(self.counts) > 1 or len(self.asked) < 3 or self.asked[-1] == self.asked[-2]:
            return True
        self.recorder.warnings[VARIES] = 1
        return (
            len(self.asked) >= VARYING * self.steps or time.process_time() - self.begun > PATIENCE
        )

    # -- what follows training
    # ------------------------------------------------------------

    def _follow_loaders(self) -> None:
        base, script = torch.utils.data.dataloader._BaseDataLoaderIter, self
        give = base.__next__

        def follow(loader: Any) -> Any:
            script.before_batch(loader)
            return give(loader)

        base.__next__ = follow

    def before_batch(self, loader: Any) -> None:
        """Ends the data: of training after the last step, of an evaluation after a few batches.
        What a pass before training computes is often looked up for every sample later, such as a
        reference's probabilities: it goes on, with batches that it has had already.
        """
        self.keep_time()
        self.after_update()
        loader._memroom_given = getattr(loader, "_memroom_given", 0) + 1
        if loader._memroom_given == 1 and not self.counts:
            Repeating.watch(loader)
        evaluates = loader._memroom_given > EVALUATED and not trained(loader)
        if self.ended is not None and (trained(loader) or evaluates):
            raise StopIteration
        if evaluates and self.fed is loader and self.recorder.phase == "eval":
            self.recorder.warnings[SHORTENED] = 1
            if not self.prepares(loader):
                raise StopIteration
        self.fed = loader

    def prepares(self, loader: Any) -> bool:
        """Whether this pass comes before training, can be repeated and has time left."""
        fetcher = getattr(loader, "_dataset_fetcher", None)
        if self.counts or not isinstance(fetcher, Repeating):
            return False
        self.repeating = self.repeating or time.process_time()
        fetcher.again = time.process_time() - self.repeating < PREPARING
        return fetcher.again

    def end_data(self) -> None:
        """Enough was trained. A loop that takes no batches from a loader cannot be ended but with
        the script.
        """
        if self.fed is None:
            self.over("steps")
        self.ended = time.process_time()
        sys.excepthook = self.broke

    def keep_time(self) -> None:
        if self.ended is not None and time.process_time() - self.ended > AFTERWARDS:
            self.recorder.warnings[CUT] = 1
            self.over("steps")

    def broke(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Code after training may expect more than three steps of it."""
        if kind is not StopIteration:
            self.recorder.warn(
                "what follows training broke off (%s: %.120s)" % (kind.__name__, error)
            )
        self.over("steps")


class Repeating:
    """Fetches samples of a dataset; later gives the batches again that it has fetched."""

    def __init__(self, fetcher: Any) -> None:
        self.fetcher, self.again = fetcher, False
        # how many samples -> the batches of so many
        self.batches: dict[int | None, list[Any]] = {}

    @classmethod
    def watch(cls, loader: Any) -> None:
        places = torch.utils.data.dataloader._DatasetKind.Map
        fetcher = getattr(loader, "_dataset_fetcher", None)
        if fetcher is not None and loader._dataset_kind == places:
            loader._dataset_fetcher = cls(fetcher)

    def fetch(self, index: Any) -> Any:
        size = len(index) if hasattr(index, "__len__") else None
        held = self.batches.setdefault(size, [])
        if self.again and held:
            held.append(held.pop(0))
            return copy.copy(held[-1])
        batch = self.fetcher.fetch(index)
        if len(held) < EVALUATED:
            held.append(copy.copy(batch))
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fetcher, name)


def leaves(roots: Any) -> dict[int, Any]:
    """What gets gradients from these results, by storage."""
    found: dict[int, Any] = {}
    nodes = [node for node in (getattr(t, "grad_fn", None) for t in roots) if node is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        weight = getattr(node, "variable", None)
        if weight is not None and torch._C._functorch.is_functorch_wrapped_tensor(weight):
            found[id(weight)] = weight
        elif weight is not None:
            found[weight.untyped_storage()._cdata] = weight
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return found


def trained(loader: Any) -> bool:
    """Whether an optimizer step was taken on batches of this loader's iterator."""
    return getattr(loader, "_memroom_trained", False)
