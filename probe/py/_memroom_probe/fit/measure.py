"""What a row of the batch costs: the module runs forward and backward on a few rows, on twice as
many, and on twice as many again where there is room.

Two sizes tell what grows with the batch from what does not (gradients, workspaces, half copies of
weights). With too few rows the peak is where the last gradients are made; with many it is at the
loss, and grows faster: the larger two sizes count. Everything is put back afterwards: random
generators, buffers, gradients.
"""

import contextlib
import time

import torch

from . import accumulate, blocks, generators, keepsakes, outermost, tree
from .rows import Cannot, is_tensor


class Cost:
    """Bytes: saved per row and fixed (kept from forward to backward), peak per row and fixed
    (forward and backward of one piece, gradients included), the same while what is saved is away
    (travel: seconds of a byte there and back), outputs per row with their elements, whether they
    are in half precision and whether a loss is among them. grains: the module taken apart coarsely
    and finely, each a list of blocks.Part with bytes per row. Seconds: of a forward and a backward
    pass, per row and for a piece of any size (launching kernels). repeats: whether a second run
    gives the same results; recomputable: whether its backward pass bears checkpointing too.
    """

    def __init__(
        self, saved, peak, seconds, outputs, grains, away, repeats=True, recomputable=True
    ):
        self.repeats, self.recomputable = repeats, recomputable
        (self.away_fixed, self.away_row), self.travel = away
        self.saved_fixed, self.saved_row = saved
        self.peak_fixed, self.peak_row = peak
        self.time_fixed, self.time_row = seconds
        self.output_row, self.elements_row, self.half, self.has_loss = outputs
        self.grains = grains


GRAINS = (1 / 4, 1 / 14)  # of what is saved, the most that one part may save


def cost(module, call, inputs, room, apart=True, away=False):
    """Measures on an eighth of the batch, at least one row and two rows, and on at most a quarter.
    apart: look for parts to checkpoint; away: see what is needed while all that is saved waits on
    the host.
    """
    few = max(2 if inputs.rows >= 4 else 1, inputs.rows // 16)  # one row alone upsets BatchNorm
    many = min(2 * few, inputs.rows)
    if many == few:
        raise Cannot("the batch has one row")
    try:
        first, second = _twice(module, call, inputs, few, many, room)
    except torch.cuda.OutOfMemoryError:
        first = None
    if first is None:
        few, many = 1, 2
        first, second = _twice_or_never(module, call, inputs, room)
    elsewhere = away and _away(
        module, call, inputs, few, many, room, second
    )  # of few rows: pinned memory is not given back
    larger = _larger(module, call, inputs, many, second, room)
    if larger is not None:
        few, first, many, second = many, second, 2 * many, larger
    lines = [
        _line(few, getattr(first, what), many, getattr(second, what))
        for what in ("saved", "peak", "seconds")
    ]
    size, elements, half, has_loss = second.outputs
    lines[1] = _at_least(lines[1], lines[0][1] + (size + second.late) / many, many, second.peak)
    beside, travel = elsewhere or (lines[1], 0.0)
    grains = (
        _grains(module, _growing(first.records, few, second.records, many), second.saved, many)
        if apart and second.repeats
        else []
    )
    return Cost(
        *lines,
        (size / many, elements / many, half, has_loss),
        grains,
        (beside, travel),
        second.repeats,
        second.repeats and not second.once,
    )


def _twice(module, call, inputs, few, many, room):
    try:
        with _put_back(module):
            way, before = _way_to_gradients(module, call, inputs, few, room)
            first, second = (
                _one(module, call, inputs, few, room, way),
                _one(module, call, inputs, many, room, way),
            )
            first.repeats = second.repeats = before.same_results(first)
            second.way = way
            return first, second
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as why:
        raise Cannot("the module does not run on a part of the batch: %s" % type(why).__name__)


def _larger(module, call, inputs, rows, seen, room):
    """What a run of twice as many rows shows, or None where the batch or the room is too small for
    that.
    """
    if inputs.rows < 4 * rows or room.held() + 2.5 * seen.peak > room.limit:
        return None
    try:
        with _put_back(module):
            larger = _one(module, call, inputs, 2 * rows, room, seen.way)
    except Exception:  # what is known of fewer rows has to do
        return None
    larger.repeats = seen.repeats
    return larger


def _growing(first, few, second, many):
    """Records of the larger run without what is there for any number of rows, such as half copies
    of weights.
    """
    found = {}
    for key, record in second.items():
        found[key] = grown = blocks.Record(record.order)
        grown.once, grown.twice = record.once, record.twice
        for what in ("saved", "given"):
            b = getattr(record, what)
            setattr(
                grown,
                what,
                max(0, b - getattr(first[key], what)) * many // (many - few) if key in first else b,
            )
    return found


def _away(module, call, inputs, few, many, room, seen):
    """The line of the peak with all that is saved in host memory, and the seconds that a byte takes
    there and back; None where that does not work. seen: of as many rows, what they save.
    """
    from . import offload  # it stands above this module

    def run(rows, where=None):
        args, kwargs = inputs.pick(list(range(rows)))
        before = room.held()
        room.start_peak()
        room.wait()
        begin = time.perf_counter()
        with torch.enable_grad(), where or offload.Away(module, above=0):
            results = [
                t
                for t in tree.flatten(call(*args, **kwargs))[0]
                if is_tensor(t) and t.requires_grad and t.is_floating_point()
            ]
        if results:
            _by_grad(
                [t.float().sum() for t in results],
                [p for p in module.parameters() if p.requires_grad],
            )
        room.wait()
        return room.peak() - before, time.perf_counter() - begin

    try:
        with _put_back(module):
            line = _line(few, run(few)[0], many, run(many)[0])
            extra = (
                run(many)[1] - run(many, contextlib.nullcontext())[1]
            )  # pinned memory has been made by now
            return line, max(extra, 0.0) / max(seen.saved, 1)
    except Exception:  # whatever it is, the choice is made without
        return None


def _twice_or_never(module, call, inputs, room):
    try:
        return _twice(module, call, inputs, 1, 2, room)
    except torch.cuda.OutOfMemoryError:
        raise Cannot("not even 2 rows of %d fit" % inputs.rows)


def check_recompute(module, call, inputs, room):
    """Raises Cannot where a backward pass would not bear checkpointing."""
    rows = 1 if inputs.rows < 4 else 2
    first, second = _twice(module, call, inputs, rows, rows, room)
    if second.once:
        raise Cannot(
            "it cannot be run twice: a list of its own grows, or its backward pass reads a saved tensor twice"
        )
    if not second.repeats:
        raise Cannot(OTHERWISE)


OTHERWISE = "a second run gives other results: it draws random numbers that cannot be put back, or changes what it computes with"


def _grains(module, records, saved, rows):
    """The module taken apart, coarsely and finely, with bytes for one row."""
    found = []
    for share in GRAINS:
        parts = blocks.take_apart(module, records, share * saved)
        if parts and [p.name for p in parts] not in [[p.name for p in known] for known in found]:
            found.append(parts)
    for parts in found:
        for part in parts:
            part.saved, part.given = part.saved / rows, part.given / rows
    return found


def _line(few, a, many, b):
    """(fixed, per row) of the straight line through two measurements."""
    slope = max(0.0, (b - a) / (many - few))
    return max(0.0, a - slope * few), slope


def _at_least(line, slope, many, peak):
    """A peak grows with every row by what the row leaves for the backward pass. Two measurements of
    a few rows may hide that behind a library's workspace, which is not larger for more rows, or
    behind gradients of weights, which come at another moment.
    """
    if line[1] >= slope:
        return line
    return max(0.0, peak - slope * many), slope


class _Seen:
    """What one run showed. Bytes saved, of them the largest that came late, and at the peak,
    seconds, the outputs described, records of the modules inside; once: whether a second run would
    be seen; repeats: whether it gives the same results; way: how gradients were taken.
    """

    def __init__(self, tally, peak, seconds, outputs, records, once, results):
        self.saved, self.late = tally.bytes, tally.late()
        self.peak, self.seconds, self.outputs, self.records, self.once = (
            peak,
            seconds,
            outputs,
            records,
            once,
        )
        self.repeats, self.way = True, None
        self.results = [t.detach().flatten()[:KEPT].double() for t in results if not t.is_complex()]

    def same_results(self, other):
        """Up to what kernels that add in any order may differ by."""
        return len(self.results) == len(other.results) and all(
            a.shape == b.shape and _near(a, b) for a, b in zip(self.results, other.results)
        )


KEPT = 4096  # elements of each result that are compared with those of a second run


def _near(a, b):
    good = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[good], b[good]
    return not len(a) or bool((a - b).abs().max() <= 1e-2 * max(float(a.abs().max()), 1e-6))


def _one(module, call, inputs, rows, room, backward):
    """Runs the module forward and backward on a few rows."""
    args, kwargs = inputs.pick(list(range(rows)))
    before, lengths, drawn = room.held(), keepsakes.lengths(module), generators.read(module)
    room.start_peak()
    room.wait()
    begin = time.perf_counter()
    tally = _Tally(module)
    watch = _Watch(module, tally)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(
        tally.pack, tally.unpack
    ), watch:
        results = [t for t in tree.flatten(call(*args, **kwargs))[0] if is_tensor(t)]
    generators.note_drawn(drawn, generators.read(module))
    outputs = sum(t.numel() * t.element_size() for t in results)
    targets = [t for t in results if t.requires_grad and t.is_floating_point()]
    if targets:
        backward(
            [t.float().sum() for t in targets], [p for p in module.parameters() if p.requires_grad]
        )
    room.wait()
    seconds = time.perf_counter() - begin
    gradients = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    peak = room.peak() - before if room.peak() > before else 0
    differentiable = [t for t in results if t.requires_grad]
    described = (
        outputs,
        sum(t.numel() for t in differentiable),
        any(t.element_size() < 4 for t in differentiable),
        any(t.dim() == 0 for t in differentiable),
    )
    for key in tally.twice & set(watch.records):
        watch.records[key].twice = True
    return _Seen(
        tally,
        max(peak, tally.bytes + outputs + gradients),
        seconds,
        described,
        watch.records,
        bool(tally.twice) or keepsakes.lengths(module) != lengths,
        results,
    )


def _by_grad(sums, parameters):
    """Takes gradients and drops them."""
    torch.autograd.grad(sums, parameters, allow_unused=True)


def _by_backward(sums, parameters):
    """The same where only backward() will do: the script's own gradients are laid aside meanwhile."""
    kept = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = None
        torch.autograd.backward(sums)
    finally:
        for p, grad in zip(parameters, kept):
            p.grad = grad


def _way_to_gradients(module, call, inputs, rows, room):
    """How gradients can be taken from this module, and what a run showed, which also fills
    workspaces and caches; generators are left as they were. torch's reentrant checkpointing wants
    backward(), which is not tried where somebody waits for gradients: other ranks, hooks.
    """
    states = generators.read(module)
    try:
        return _by_grad, _one(module, call, inputs, rows, room, _by_grad)
    except RuntimeError as why:
        hooked = any(
            p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
            for p in module.parameters()
        )
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not accumulate.bears_no_grad(why) or hooked or distributed:
            raise
    finally:
        generators.put_back(states)
    try:
        return _by_backward, _one(module, call, inputs, rows, room, _by_backward)
    finally:
        generators.put_back(states)


LATE = 0.8  # of what is saved in the end, from which on something comes late


class _Tally:
    """Counts the storages that autograd keeps, each once, parameters not at all; and finds the
    modules whose backward pass asks for a saved tensor twice, which checkpointing answers with an
    error.
    """

    def __init__(self, module):
        self.bytes, self.calls, self.twice = 0, [id(module)], set()
        self._largest, self._before_largest = 0, 0
        self.seen = {p.untyped_storage().data_ptr() for p in module.parameters()}

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            if storage.nbytes() > self._largest:
                self._largest, self._before_largest = storage.nbytes(), self.bytes
            self.bytes += storage.nbytes()
        return [
            tensor.detach(),
            tuple(self.calls),
        ]  # a saved result that keeps its own node would be a cycle

    def late(self):
        """Bytes of the largest storage where it comes near the end, as logits do: its gradient is
        there with all that was saved.
        """
        return self._largest if self._before_largest + self._largest >= LATE * self.bytes else 0

    def unpack(self, packed):
        if len(packed) > 2:
            self.twice.update(packed[1])
        packed.append("asked for")
        return packed[0]


class _Watch:
    """Reads the tally around the call of every module inside."""

    def __init__(self, module, tally):
        self.inside, self.tally = [m for m in module.modules() if m is not module], tally
        self.records = {}

    def __enter__(self):
        outermost.handle_inner(self.inside, self)

    def __exit__(self, *_):
        outermost.leave_inner(self.inside)

    def __call__(self, module, call, args, kwargs):
        tensors = [t for t in tree.flatten((args, kwargs))[0] if is_tensor(t)]
        record = self.records.setdefault(id(module), blocks.Record(len(self.records)))
        before, versions, lengths = (
            self.tally.bytes,
            [t._version for t in tensors],
            keepsakes.lengths(module),
        )
        self.tally.calls.append(id(module))
        result = call(*args, **kwargs)
        self.tally.calls.pop()
        record.saved += self.tally.bytes - before
        record.given += sum(t.numel() * t.element_size() for t in tensors if t.requires_grad)
        if (
            any(t._version != v for t, v in zip(tensors, versions))
            or keepsakes.lengths(module) != lengths
        ):
            record.once = True
        return result


@contextlib.contextmanager
def _put_back(module):
    device = next(module.parameters()).device
    buffers, attributes = (
        [(b, b.detach().clone()) for b in module.buffers()],
        keepsakes.Snapshot(module),
    )
    states = generators.read(module)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        attributes.put_back()
        generators.put_back(states)
        with torch.no_grad():
            for buffer, value in buffers:
                if buffer.shape == value.shape:
                    buffer.copy_(value)
