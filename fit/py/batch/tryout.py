"""Tries a module on a few rows before its calls are cut: do rows apart give what rows together
give?

The trial runs without gradients, on copies, with the random generators put back afterwards. It
learns where each output carries the batch and how a returned loss is weighed, and it finds the
reasons not to cut: rows that see each other, buffers or counters that every call moves on,
arguments changed in place.
"""

import contextlib
import math
from typing import Any, Callable, Dict, Iterator, Optional, Set, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ..calls import again, bounds, generators, keepsakes, outermost, packing, tree, weights
from ..calls.autocast import is_on_anywhere
from ..calls.modules import one_line
from ..memory import room
from . import draws, losses
from .inputs import Cannot, Together, is_tensor
from .outputs import LOSS, ROWS, Findings, apart, close, judge, leafwise, may_use_tf32
from .without_dropout import in_backward, without_dropout

# times that chance is given to mix rows: a permutation of five rows leaves the first two alone once
# in ten
CHANCES = 4


def try_out(module: torch.nn.Module, call: Callable[..., Any], inputs: Any) -> Any:
    """Returns Findings, or raises Cannot with the reason."""
    if inputs.rows < 2:
        raise Cannot("the batch has one row")
    _refuse_by_sight(module)
    try:
        return _with_or_without_autocast(module, call, inputs, *_groups(inputs.rows))
    except torch.cuda.OutOfMemoryError:
        if inputs.rows < 3:
            raise
    return _with_or_without_autocast(
        module, call, inputs, [0], [1]
    )  # even a few rows may be too many


def _with_or_without_autocast(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, first: Any, second: Any
) -> Any:
    try:
        return _try_out(module, call, inputs, first, second, autocast=False)
    except Together:
        if not is_on_anywhere() or not _rounds_by_itself(module, call, inputs, first):
            raise
        return _try_out(module, call, inputs, first, second, autocast=True)
    except Cannot:
        if not is_on_anywhere():
            raise
        return _try_out(module, call, inputs, first, second, autocast=True)


def _rounds_by_itself(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, rows: Any
) -> bool:
    """Whether a module computes in half precision where nobody asks it to."""
    bench, seen = _Bench(module, call, inputs), _Halves()
    with bench.undisturbed(), seen:
        bench.run(rows)
    return seen.found


class _Halves(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_tensor(result) and result.dtype in (torch.float16, torch.bfloat16):
            self.found = True
        return result


def _try_out(
    module: torch.nn.Module,
    call: Callable[..., Any],
    inputs: Any,
    first: Any,
    second: Any,
    autocast: bool,
) -> Any:
    bench = _Bench(module, call, inputs, autocast)
    with bench.undisturbed():
        fresh, start = keepsakes.Snapshot(module), generators.read(module)
        random = bench.uses_random_numbers(first)
        bench.see_first_call(fresh, start, (second * len(first))[: len(first)])
        chancy = random and bench.still_random(first)
        outputs, bad, (a, b, ab) = bench.judged(first, second, chancy)
        unsteady = bool(bad) and chancy
        if unsteady:
            outputs = _in_eval(bench, module, first, second, outputs)
            bad = [o for o in outputs if isinstance(o, Cannot)]
            if bad:
                raise Cannot(
                    "it draws random numbers itself, so nobody can tell whether its samples "
                    "interact"
                )
        if not bad and chancy:  # what the comparison saw may have been luck
            bench.see_rows_apart(first, second, outputs)
        elif not bad:
            bench.see_rows_alone(first, second, outputs)
        if bad:
            # one that this frame does not hold, or it would hold the frame in turn
            raise type(bad[0])(str(bad[0]))
        for index, (output, values) in enumerate(zip(outputs, leafwise(a, b, ab))):
            if output.kind == LOSS:
                output.candidates = bench.settle(output, index, values, first, second)
        del a, b, ab, values
        if not unsteady:
            bench.confirm(outputs, first + second)
        same = random and bench.same_draws(first, second, outputs)
        own = bench.draws(first, second, outputs) if random and not same else None
        return Findings(outputs, random, same, own, autocast)


def narrow_down(
    module: torch.nn.Module,
    call: Callable[..., Any],
    inputs: Any,
    index: int,
    candidates: Any,
    autocast: bool = False,
) -> Any:
    """Tries the rules of the loss at leaf index on more rows of this batch; gives those that still
    hold. autocast: they were found out under autocast, because without it nothing added up.
    """
    bench = _Bench(module, call, inputs, autocast)
    left = list(range(min(inputs.rows, 32)))
    with bench.undisturbed():
        for _ in range(6):
            if len(candidates) < 2 or len(left) < 2:
                break
            a, b = losses.most_telling(
                candidates, [inputs.flat(inputs.pick([row]))[0] for row in left]
            )
            pair = [left[a]], [left[b]]
            values = [tree.flatten(r)[0][index] for r in bench.results(*pair)]
            candidates = bench.filter_by_gradients(
                bench.filter(candidates, values, *pair), index, *pair
            )
            left = [row for row in left if row not in (pair[0][0], pair[1][0])]
    return candidates


def _refuse_by_sight(module: torch.nn.Module) -> None:
    if outermost.sharded(module):
        raise Cannot("its parameters are sharded (%s)" % outermost.sharded(module))
    for name, m in module.named_modules():
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and m.training:
            raise Cannot(
                "%s is a %s in training mode: its statistics are over the whole batch"
                % (name, type(m).__name__)
            )
        if again.drops_by_itself(m):
            raise Cannot(
                "%s drops values by cuDNN's own generator: a second run would drop others"
                % (name or "the module")
            )
        for hook in list(m._forward_hooks.values()) + list(m._forward_pre_hooks.values()):
            if not _is_harmless(hook):
                raise Cannot(
                    "a forward hook on %s would see micro-batches" % (name or "the module")
                )


def _is_harmless(hook: Any) -> Any:
    """Hooks of torch itself that only compute a weight (a power iteration among them is caught by
    its buffer), and the one with which transformers and peft make embeddings differentiable.
    """
    if getattr(hook, "__name__", "").startswith("make_inputs_require_grad"):
        return True
    return again.is_recorder(hook) or (type(hook).__module__ or "").startswith("torch.nn.utils")


def _groups(rows: int) -> Any:
    if rows >= 5:
        return [0, 1], [2, 3, 4]
    return ([0], [1, 2]) if rows >= 3 else ([0], [1])


APART, APART_IN_HALF = (
    5e-4,
    0.05,
)  # of a parameter's gradient by which sums in another order never differ

# Of the largest result, what other rows beside some may make of theirs: shapes inside may change.
ALONE = 1e-5
# Of a parameter's gradient, by which rows apart and together differ in full precision, at the most
# times what rows in another order differ by, and in any case.
ORDERS, LEAST = 20, 2e-5

SOME = 65536  # elements of a parameter's gradient that are compared

# of the largest gradient, below which a parameter's is rounding, as of the bias of attention's keys
TINY = 1e-5


def _add_up(gradients: Any, shares: Any, most: Any) -> bool:
    """Whether each parameter's gradient of rows together is the sum of those of rows apart, times
    their shares. most: what of it may be missing.
    """
    table = []
    for one, other, together in gradients:
        parts = [s * g.double() for s, g in zip(shares, (one, other)) if g is not None]
        if not parts or together is None:
            continue
        size = max(float(g.norm()) for g in parts + [together])
        table.append((float((sum(parts) - together.double()).norm()), size))
    largest = max([size for _, size in table], default=0.0)
    return all(
        error <= most * size
        for error, size in table
        if size > TINY * largest and math.isfinite(error)
    )


def _all_finite(gradients: Any) -> bool:
    return all(bool(g.isfinite().all()) for some in gradients for g in some if g is not None)


class _Bench:
    """Runs the module on some rows without leaving a trace."""

    def __init__(self, module: Any, call: Any, inputs: Any, autocast: Any = False) -> None:
        self.module, self.call, self.inputs, self.autocast = module, call, inputs, autocast
        self.ignored: Set[Any] = set()
        self.drawing = None  # by which samples apart draw what they draw together
        half = autocast or any(
            p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters()
        )
        # A small term that is no mean over samples hides in what is allowed here.
        self.half = half
        self.loss_tolerance = 2e-3 if half else 1e-4 if self._tf32() else 1e-5

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[Any]:
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        saved, attributes = (
            [(b, b.detach().clone()) for b in self.module.buffers() if not b.is_inference()],
            keepsakes.Snapshot(self.module),
        )
        states = generators.read(self.module)
        self.parameters = weights.Kept(self.module)
        # Tensors made in inference mode, in which many evaluate, do not tell whether they were
        # changed, and cannot be put back.
        with torch.inference_mode(False), torch.no_grad(), _precision(device.type, self.autocast):
            try:
                with packing.checked(), bounds.checked(device):
                    yield
            except Cannot:
                raise
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as why:  # the module does not take a part of its batch
                raise Cannot(
                    "the module does not run on a part of the batch: %s: %s"
                    % (type(why).__name__, one_line(why))
                ) from None
            finally:
                self.parameters.put_back()
                for buffer, value in saved:
                    if buffer.shape == value.shape:
                        buffer.copy_(value)
                attributes.put_back()
                generators.put_back(states)

    def calls(self, first: Any, second: Any) -> Any:
        """The calls for samples apart, drawing as together where that is known."""
        total = len(first) + len(second)
        begins = (0, len(first)), (len(first), len(second))
        return [draws.of_piece(self.call, self.drawing, *span, total) for span in begins]

    def run(self, rows: int, call: Optional[Callable[..., Any]] = None) -> Any:
        args, kwargs = self.inputs.pick(rows)
        given = [t for t in tree.flatten((args, kwargs))[0] if is_tensor(t)]
        versions = [t._version for t in given]
        result = (call or self.call)(*args, **kwargs)
        if any(t._version != v for t, v in zip(given, versions)):
            raise Cannot("the module changes an argument in place")
        return result

    def uses_random_numbers(self, rows: int) -> bool:
        """Runs once as training would; also lets caches fill that a first call fills."""
        before = generators.read(self.module)
        with self.parameters.learn():
            self.run(rows)
        for name in sorted(weights.changed(self.module))[:1]:
            raise Cannot("every call changes parameter %s of the module" % name)
        after = generators.read(self.module)
        generators.note_drawn(before, after)
        return not generators.same(before, after)

    def see_first_call(self, fresh: Any, start: Any, others: Any) -> None:
        """Raises Cannot where what a first call sets in the module depends on its samples: pieces
        would set it by the first of them. fresh, start: the module's attributes and generators
        before its first call; others: as many samples as that had.
        """
        kept = fresh.added()
        if not kept:
            return
        after = generators.read(self.module)
        fresh.put_back()
        generators.put_back(start)
        self.run(others)
        generators.put_back(after)
        left = keepsakes.left_behind(kept, fresh.added())
        if left:
            raise Cannot("its first call sets %s by the samples of the batch" % left)

    def same_draws(self, first: Any, second: Any, outputs: Any) -> Any:
        """Whether rows apart draw what rows together draw, from the same start: a layer is skipped
        for all rows or for none. Seen by outputs that fit together with randomness on, as dropout's
        do not.
        """
        start, ends, results = generators.read(self.module), [], []
        for rows in (first, second, first + second):
            generators.put_back(start)
            results.append(tree.flatten(self.run(rows))[0])
            ends.append(generators.read(self.module))
        judged = [
            judge(len(first), o.name, *leaf)
            for o, *leaf in zip(outputs, *results)
            if o.kind == ROWS and leaf[0].is_floating_point()
        ]
        return (
            bool(judged)
            and not any(isinstance(j, Cannot) for j in judged)
            and all(generators.same(ends[0], end) for end in ends)
        )

    def judged(self, first: Any, second: Any, chancy: Any) -> Any:
        """What is found of each output, those that cannot be split, and the results. Where
        randomness is left, samples apart draw what they draw together, if there is a way.
        """
        self.drawing = self.recorded(first, second) if chancy else None
        if self.drawing is not None:
            try:
                outputs, bad, results = self._judged(first, second)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:
                bad = True  # what does not bear being drawn for
            if not bad:
                return outputs, bad, results
            self.drawing = None
        return self._judged(first, second)

    def _judged(self, first: Any, second: Any) -> Any:
        results = self.results(first, second)
        outputs = [judge(len(first), *leaf) for leaf in leafwise(*results)]
        return outputs, [o for o in outputs if isinstance(o, Cannot)], results

    def draws(self, first: Any, second: Any, outputs: Any) -> Any:
        """What pieces must draw by so that they draw what the whole batch does, seen by results and
        gradients that fit together with randomness on; None where there is no such way. Gradients
        show what the script itself runs again in a backward pass, where nobody draws so.
        """
        for some in ((first, second), (first[:1], second[:2]), (first[:1], second[:1])):
            try:
                return self._draws(*some, outputs)
            except torch.cuda.OutOfMemoryError as why:
                del why  # its frames hold tensors; fewer samples may do
            except Exception as why:
                del why
                return None
        return None

    def _draws(self, first: Any, second: Any, outputs: Any) -> Any:
        groups, start = (first, second, first + second), generators.read(self.module)
        found = self.recorded(first, second)
        if found is not None and self._draw_alike(found, groups, outputs, start):
            return found
        return None

    def recorded(self, first: Any, second: Any) -> Any:
        """Where samples lie in what is drawn, as far as that can be seen; None where it cannot."""
        if any(_draws_inside(m) for m in self.module.modules()):
            return None
        groups, start = (first, second, first + second), generators.read(self.module)
        records = [draws.Recorder() for _ in groups]
        try:
            for rows, record in zip(groups, records):
                generators.put_back(start)
                with record:
                    self.run(rows)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:
            return None  # what does not bear being watched
        finally:
            generators.put_back(start)
        return draws.compare(tuple(len(rows) for rows in groups), records)

    def _draw_alike(self, found: Any, groups: Any, outputs: Any, start: Any) -> Any:
        counts, ends, seen = [len(rows) for rows in groups], [], []
        begins = (0, counts[0], 0)
        for rows, begin in zip(groups, begins):
            generators.put_back(start)
            call = self.call
            if len(rows) < counts[2]:
                call = draws.of_piece(call, found, begin, len(rows), counts[2])
            seen.append(self._with_gradients(call, rows, outputs))
            ends.append(generators.read(self.module))
        results, gradients = zip(*seen)
        judged = [judge(counts[0], *leaf) for leaf in leafwise(*results)]
        shares = self._shares(outputs, results, groups)
        most = APART_IN_HALF if self.half else APART
        return (
            shares is not None
            and not any(isinstance(j, Cannot) for j in judged)
            and all(generators.same(ends[0], end) for end in ends)
            and _add_up(zip(*gradients), shares, max(most, self._tf32()))
        )

    def _tf32(self) -> Any:
        card = any(p.is_cuda for p in self.module.parameters())
        return APART_IN_HALF if card and may_use_tf32() else 0.0

    def _shares(self, outputs: Any, results: Any, groups: Any) -> Any:
        """By what gradients of samples apart are multiplied; None where losses do not add up."""
        shares = [1.0, 1.0]
        pieces = [self.inputs.flat(self.inputs.pick(rows))[0] for rows in groups[:2]]
        for at, output in enumerate(outputs):
            if output.kind == LOSS:
                values = [tree.flatten(r)[0][at] for r in results]
                left = self.filter(output.candidates, values, *groups[:2])
                if not left:
                    return None
                shares = [float(s) for s in left[0].shares(pieces)]
        return shares

    def _with_gradients(self, call: Callable[..., Any], rows: int, outputs: Any) -> Any:
        """The results for some rows, and the gradients of their loss, or of their squares."""
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        alone = getattr(self.module, "no_sync", contextlib.nullcontext)
        args, kwargs = self.inputs.pick(rows)
        with torch.enable_grad(), alone():
            result = call(*args, **kwargs)
            leaves = tree.flatten(result)[0]
            wanted = [t for t, o in zip(leaves, outputs) if o.kind == LOSS] or [
                t.double().pow(2).sum()
                for t, o in zip(leaves, outputs)
                if o.kind == ROWS and t.is_floating_point()
            ]
            wanted = [t for t in wanted if t.requires_grad]
            if not wanted or any(p._backward_hooks for p in parameters):
                return _detached(result), []
            gradients = torch.autograd.grad(sum(wanted), parameters, allow_unused=True)
        kept = [None if g is None else g.reshape(-1)[:SOME].clone() for g in gradients]
        return _detached(result), kept

    def results(self, first: Any, second: Any) -> Any:
        state, start = _moving_state(self.module), generators.read(self.module)
        calls = self.calls(first, second)
        with without_dropout(self.ignored):
            a = self.run(first, calls[0])
            kept = {
                name: [t.clone() for t in those]
                for name, those in keepsakes.tensors(self.module).items()
            }
            generators.put_back(
                start
            )  # what is drawn for the whole batch, such as layers to skip, must be the same
            b = self.run(second, calls[1])
            left = keepsakes.left_behind(kept, keepsakes.tensors(self.module))
            generators.put_back(start)
            results = a, b, self.run(first + second)
        moved = [
            name for name, value in _moving_state(self.module).items() if state.get(name) != value
        ]
        if moved:
            raise Cannot("every call changes %s of the module" % moved[0])
        if left:
            raise Cannot(
                "every call leaves its own %s in the module, where the loop may use it" % left
            )
        return results

    def still_random(self, rows: int) -> bool:
        """Whether randomness is left that without_dropout does not know (stochastic depth, dropout
        inside an LSTM).
        """
        with without_dropout(self.ignored):
            before = generators.read(self.module)
            self.run(rows)
            return not generators.same(before, generators.read(self.module))

    def see_rows_apart(self, first: Any, second: Any, outputs: Any) -> None:
        """Raises Cannot where, as in training, rows come to depend on others by chance: mixup
        inside of the module. Rows in whose stead others stand must leave the first rows' results as
        they were, whatever is drawn.
        """
        for _ in range(CHANCES):
            start = generators.read(self.module)
            before = tree.flatten(self.run(first + second))[0]
            generators.put_back(start)
            after = tree.flatten(self.run(first + first[:1] * len(second)))[0]
            for output, x, y in zip(outputs, before, after):
                if output.kind == ROWS and not close(
                    *(output.rows_of(t, len(first), len(first + second)) for t in (x, y))
                ):
                    raise Cannot(
                        "output %s: samples are mixed with each other at random"
                        % (output.name or "0")
                    )

    def see_rows_alone(self, first: Any, second: Any, outputs: Any) -> None:
        """Raises Together where the first rows' results change with the rows beside them, by
        however little: kernels see the same shapes, so what does not meet stays equal to the bit,
        or differs by no more than two runs of the same do.
        """
        if not any(o.kind == ROWS for o in outputs):
            return
        start, results = generators.read(self.module), []
        with without_dropout(self.ignored):
            for rows in (second, second, first[:1] * len(second)):
                generators.put_back(start)
                results.append(tree.flatten(self.run(first + rows))[0])
        for output, *three in zip(outputs, *results):
            if output.kind != ROWS or not three[0].is_floating_point():
                continue
            if three[0].shape != three[2].shape:
                continue  # it goes by what the rows hold, and may compute with other kernels
            a, again, other = (output.rows_of(t, len(first), len(first + second)) for t in three)
            if apart(other, a) > max(ALONE, 4 * apart(again, a)):
                raise Together(
                    "output %s of a sample depends on the other samples of the batch: samples "
                    "interact" % (output.name or "0")
                )

    def confirm(self, outputs: Any, few: Any) -> None:
        """Raises Cannot where many rows are treated otherwise than the few that were tried: a
        module may go by the size of its batch.
        """
        many = list(range(self._bearable(few)))
        if len(many) <= len(few):
            return
        first, second = many[: len(many) // 2], many[len(many) // 2 :]
        try:
            results = self.results(first, second)
        except torch.cuda.OutOfMemoryError:
            return
        for output, (name, *values) in zip(outputs, leafwise(*results)):
            again = judge(len(first), name, *values)
            if isinstance(again, Cannot) or (again.kind, again.dim, again.interleaved) != (
                output.kind,
                output.dim,
                output.interleaved,
            ):
                raise Cannot(
                    (
                        "output %s of %d samples differs from that of %d samples: it depends on "
                        "the size of the batch"
                    )
                    % (name or "0", len(many), len(few))
                )
            if output.kind == LOSS:
                output.candidates = self.filter(output.candidates, values, first, second)
                if not output.candidates:
                    raise Cannot(
                        "the %s weighs %d samples in another way than %d samples"
                        % (_loss(name), len(many), len(few))
                    )

    def _bearable(self, few: Any) -> Any:
        """How many rows can be run without gradients and compared, by what a few take. On the host
        nobody can ask for too much and be told so: a few more than a few at the most.
        """
        around = room.of(next(self.module.parameters()).device)
        most = self.inputs.rows if around.is_card else min(self.inputs.rows, 16)
        before, states = around.held(), generators.read(self.module)
        around.start_peak()
        with without_dropout(self.ignored):
            results = [t for t in tree.flatten(self.run(few))[0] if is_tensor(t)]
        generators.put_back(states)
        compared = 5 * sum(
            t.numel() * t.element_size() for t in results
        )  # both halves, the whole, and what a comparison makes
        per_row = (around.peak() - before + compared) / len(few)
        return min(most, int(0.5 * (around.limit - before) / max(per_row, 1)))

    def settle(self, output: Any, index: int, values: Any, first: Any, second: Any) -> Any:
        """The rules that a loss may follow, by what was seen and, where labels can be marked as
        ignored, by a test.
        """
        candidates = losses.rules(self.inputs, self.ignored)
        candidates = self.filter(candidates, values[1:], first, second)
        if len(candidates) > 1 and self._may_mark_labels():
            candidates = self._filter_by_marked_labels(output, candidates, first, second)
        if not candidates:
            raise Together(
                "the %s of several samples is not a weighted mean or sum of their own losses"
                % _loss(output.name)
            )
        candidates = self.filter_by_gradients(candidates, index, first, second)
        if not candidates:
            raise Together(
                (
                    "the %s has a small part that is not a mean or sum over samples, as its "
                    "gradients show"
                )
                % _loss(output.name)
            )
        return candidates

    def filter(self, candidates: Any, values: Any, first: Any, second: Any) -> Any:
        a, b, ab = (float(v) for v in values)
        if not all(math.isfinite(v) for v in (a, b, ab)):
            return candidates  # rows without any label that counts tell nothing
        pieces = [self.inputs.flat(self.inputs.pick(rows))[0] for rows in (first, second)]
        return losses.survivors(candidates, pieces, [a, b], ab, self.loss_tolerance)

    def filter_by_gradients(self, candidates: Any, index: int, first: Any, second: Any) -> Any:
        """The rules by which gradients of rows together are those of rows apart too. A small term
        of another kind, such as the balance of experts, hardly moves the loss but is most of what
        some parameters learn from. A trial that does not run tells nothing; where the script's own
        hooks wait for gradients there is none.
        """
        if any(p._backward_hooks for p in self.module.parameters()):
            return candidates
        groups = (first[:1], second[:1]), (first, second)
        try:
            for first, second in groups:
                gradients = self._gradients(index, first, second)
                if _all_finite(gradients):  # a variance of one sample is not
                    break
        except Exception as why:
            del why  # out of memory too: its frames hold tensors
            return candidates
        pieces = [self.inputs.flat(self.inputs.pick(rows))[0] for rows in (first, second)]
        most = APART_IN_HALF if self.half else max(APART, self._tf32())
        if not self.half:
            most = min(most, max(LEAST, ORDERS * self._rounding(index, first, second, gradients)))
        return [
            rule
            for rule in candidates
            if _add_up(gradients, [float(s) for s in rule.shares(pieces)], most)
        ]

    def _rounding(self, index: int, first: Any, second: Any, gradients: Any) -> float:
        """What rounding makes of gradients here: of the rows in another order against those given,
        the largest difference of a parameter's.
        """
        try:
            other = self._gradients_of(index, [second + first], [self.call])[0]
        except Exception as why:
            del why  # out of memory too
            return math.inf
        sizes = [
            (float(g.norm()), float((g - h).norm()))
            for (_, _, g), h in zip(gradients, other)
            if g is not None and h is not None
        ]
        largest = max([size for size, _ in sizes], default=0.0)
        return max([error / size for size, error in sizes if size > TINY * largest], default=0.0)

    def _gradients(self, index: int, first: Any, second: Any) -> Any:
        """Gradients of the loss at that leaf of the result, parameter by parameter: of rows apart,
        apart, and together.
        """
        calls = *self.calls(first, second), self.call
        return list(zip(*self._gradients_of(index, (first, second, first + second), calls)))

    def _gradients_of(self, index: int, groups: Any, calls: Any) -> Any:
        """The same of each group of rows, each with its call."""
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        start, found = generators.read(self.module), []
        alone = getattr(
            self.module, "no_sync", contextlib.nullcontext
        )  # other ranks know nothing of this
        with without_dropout(self.ignored), torch.enable_grad(), alone():
            for rows, call in zip(groups, calls):
                generators.put_back(start)
                loss = tree.flatten(self.run(rows, call))[0][index]
                with in_backward():
                    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                found.append(
                    [None if g is None else g.reshape(-1)[:SOME].clone() for g in gradients]
                )
                del gradients, loss  # three sets of gradients may be more than there is room for
        return found

    def _may_mark_labels(self) -> Any:
        """transformers' models take labels, and -100 in them is ignored by contract."""
        at = self._labels()
        return at is not None and any(
            c.__name__ == "PreTrainedModel" for m in self.module.modules() for c in type(m).__mro__
        )

    def _labels(self) -> Any:
        for at, (name, leaf) in enumerate(zip(self.inputs.names, self.inputs.leaves)):
            if (
                name.split(".")[-1] == "labels"
                and is_tensor(leaf)
                and leaf.dtype == torch.int64
                and self.inputs.dims[at] == 0
            ):
                return at
        return None

    def _filter_by_marked_labels(
        self, output: Any, candidates: Any, first: Any, second: Any
    ) -> Any:
        at = self._labels()
        kept = self.inputs.leaves[at]
        self.inputs.leaves[at] = _mark(kept.clone(), first, second)
        try:
            with without_dropout(self.ignored):
                results = self.run(first), self.run(second), self.run(first + second)
            values = [tree.flatten(r)[0][_index(output, r)] for r in results]
            return self.filter(candidates, values, first, second)
        finally:
            self.inputs.leaves[at] = kept


def _loss(name: str) -> Any:
    """A loss in words. name: of the result, empty where it is the only one."""
    return ("loss " + name).rstrip()


def _mark(labels: Any, first: Any, second: Any) -> Any:
    """Ignores all labels of the first rows but a few of those that count, so that rows and labels
    weigh differently.
    """
    if labels.dim() == 1:
        if len(second) > 1:
            labels[second[0]] = -100
        return labels
    for row in first:
        counting = (labels[row] != -100).nonzero().flatten()
        labels[row, counting[:-3]] = -100
    return labels


def _index(output: Any, result: Any) -> Any:
    return tree.paths(result).index(output.name)


def _in_eval(bench: Any, module: torch.nn.Module, first: Any, second: Any, before: Any) -> Any:
    """Compares again in evaluation mode, for modules whose randomness cannot be switched off
    otherwise.
    """
    flags = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        outputs = [judge(len(first), *leaf) for leaf in leafwise(*bench.results(first, second))]
    finally:
        for m, training in flags:
            m.training = training
    return outputs if len(outputs) == len(before) else before


def _detached(result: Any) -> Any:
    leaves, rebuild = tree.flatten(result)
    return rebuild([t.detach() if is_tensor(t) else t for t in leaves])


def _draws_inside(module: torch.nn.Module) -> Any:
    """A compiled program draws inside of itself, and a recurrent layer that works in pieces draws
    for each of them.
    """
    compiled = type(module).__name__ == "OptimizedModule" or (
        getattr(module, "_compiled_call_impl", None) is not None
    )
    return compiled or hasattr(vars(module).get("forward"), "memroom_stands_for")


def _precision(device_type: Any, autocast: bool) -> Any:
    """Full precision for the comparison where the module takes it, so that a small difference means
    something.
    """
    if autocast or device_type not in ("cuda", "cpu"):
        return contextlib.nullcontext()
    return torch.autocast(device_type=device_type, enabled=False)


def _moving_state(module: torch.nn.Module) -> Any:
    """What a call may move on: buffers by identity and version, numbers among the modules'
    attributes by value.
    """
    state = {}
    for name, m in module.named_modules():
        for key, buffer in m._buffers.items():
            if buffer is not None:
                state["buffer %s.%s" % (name, key)] = (
                    id(buffer),
                    None if buffer.is_inference() else buffer._version,
                )
    state.update(("attribute " + name, value) for name, value in keepsakes.numbers(module).items())
    return state
