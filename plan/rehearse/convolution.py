"""Convolution and batch normalization as cuDNN and ATen's own depthwise kernels run them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Iterable, Sequence, Tuple

import torch

from . import cudnn
from . import recorder as record

if TYPE_CHECKING:
    from .rules import Rules
    from .stage import Call, Rule, Stage

Image = Tuple[int, ...]  # samples, channels, height, width
# a filter's shape, how it is laid on the image, groups, type of its numbers, order of channels
Filter = Tuple[Any, ...]
Sizes = Tuple[int, ...]  # bytes of the workspaces, in the order of KINDS

KINDS = ("forward", "data", "filter")
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
SMALL = 1 << 16  # bytes; kernels that need no copies of their operands take this much at most
LOOKS = 3  # measured convolutions that are compared with one that was not
TILE = 1 << 16  # bytes of a filter's gradient in fp32 that a multiprocessor sums by itself
# Fourier transforms of padded images were seen with sides of 16 to 64 pixels, 48 samples or more,
# filters of 3 x 3 and at most so many pairs of channels (with 7 x 7 there were none), never more of
# them out than in
SIDES, SAMPLES, TAPS, PAIRS = (16, 64), 48, 5, 8192
# a filter measured with so many samples without transforms was never seen to take them with more
MANY = 256
# bytes of the gradients of a 1x1 filter that are summed over the batch afterwards: of 3,711 in the
# table none has more, and 40 that would take something else
MOST_SUMMED = 256 << 20
DTYPES = {torch.float32: cudnn.FLOAT, torch.float16: cudnn.HALF, torch.bfloat16: cudnn.BFLOAT16}


def rules(base: Rules) -> dict[str, Rule]:
    convolutions = Convolutions(base)
    return {
        "convolution": convolutions.forward,
        "_convolution": convolutions.forward,
        "cudnn_convolution": convolutions.forward,
        "convolution_backward": convolutions.backward,
        "convolution_overrideable": convolutions.forward,
    }


def install(stage: Stage) -> None:
    stage.laid_out.update(convolution=laid_out, convolution_backward=laid_out)


class Convolutions:
    """Sizes of cuDNN's workspaces, asked of the library once a shape."""

    def __init__(self, base: Rules) -> None:
        self.base = base
        self.sizes: dict[tuple[Any, ...], tuple[int, int]] = {}
        self.table: Measured | None = None
        self.library: cudnn.Library | None = None
        self.asked = False

    def forward(self, call: Call) -> None:
        args = call.args
        x, w, stride, padding, dilation, transposed, groups = (
            args[0],
            args[1],
            args[3],
            args[4],
            args[5],
            args[6],
            args[8],
        )
        copies = self.turned(call, x, like=(x, w))
        self.base.results(call)
        copies += self.turned(call, w, like=(x, w))
        if not depthwise(x, w, groups, transposed):
            kind = "data" if transposed else "forward"
            y = call.outs[0]
            self.scratch(
                call,
                kind,
                y if transposed else x,
                w,
                x if transposed else y,
                padding,
                stride,
                dilation,
            )
        self.base.drop(call, copies)

    def turned(self, call: Call, t: torch.Tensor, like: tuple[torch.Tensor, ...]) -> list[int]:
        """A copy of an operand whose channels come first where another's come last; give it to
        `drop`.
        """
        if (
            not any(channels_last(other) for other in like)
            or channels_last(t)
            or same_either_way(t)
        ):
            return []
        return [call.stage.take(t.numel() * t.element_size(), call)]

    def backward(self, call: Call) -> None:
        args = call.args
        grad, x, w, stride, padding, dilation, transposed, groups, mask = (
            args[0],
            args[1],
            args[2],
            args[4],
            args[5],
            args[6],
            args[7],
            args[9],
            args[10],
        )
        grads, stage = call.out, call.stage
        if depthwise(x, w, groups, transposed):
            for i in (1, 0):
                if mask[i]:
                    stage.result(grads[i], call)
        else:
            copies = (
                [stage.take(grad.numel() * grad.element_size(), call)]
                if not dense(grad)
                else self.turned(call, grad, like=(x, w))
            )
            for i, kind in ((0, "data"), (1, "filter")):
                if mask[i]:
                    stage.result(grads[i], call)
                    filters = self.turned(call, w, like=(x, w)) if i == 0 else []
                    if transposed:
                        self.scratch(
                            call,
                            "forward" if i == 0 else "filter",
                            grad,
                            w,
                            x,
                            padding,
                            stride,
                            dilation,
                        )
                    else:
                        self.scratch(call, kind, x, w, grad, padding, stride, dilation)
                    self.base.drop(call, filters)
            self.base.drop(call, copies)
        if mask[2]:
            stage.result(grads[2], call)
            self.base.reduction(call, grad, {0} | set(range(2, grad.dim())), 4)

    def scratch(
        self,
        call: Call,
        kind: str,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        if (
            not x.numel() or not y.numel()
        ):  # no image, such as a detector's heads without a box: nothing is computed
            return
        size, larger = self.workspace(call, kind, x, w, y, padding, stride, dilation)
        recorder = call.stage.recorder
        recorder.facts["cudnn"] = True
        if torch.backends.cudnn.benchmark:
            recorder.facts["benchmark"] = True
        if size or larger:
            ident = call.stage.take(size or 1, call, record.WORKSPACE)
            if larger > size:
                recorder.larger(ident, larger)
            recorder.free(ident)

    def workspace(
        self,
        call: Call,
        kind: str,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> tuple[int, int]:
        """The bytes to reckon with, and those that cuDNN may choose instead, or 0."""
        nhwc = channels_last(x) or channels_last(w)
        shapes = [flat(t, nhwc) for t in (x, w, y)]
        dims = len(shapes[0][0]) - 2
        padding, stride, dilation = (
            spread(padding, dims, 0),
            spread(stride, dims, 1),
            spread(dilation, dims, 1),
        )
        key = (
            kind,
            x.dtype,
            nhwc,
            tuple(map(tuple, (s for shape in shapes for s in shape))),
            tuple(padding),
            tuple(stride),
            tuple(dilation),
        )
        if key not in self.sizes:
            self.sizes[key] = self.ask(call, kind, x.dtype, shapes, nhwc, padding, stride, dilation)
        return self.sizes[key]

    def ask(
        self,
        call: Call,
        kind: str,
        dtype: torch.dtype,
        shapes: list[cudnn.Laid],
        nhwc: bool,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> tuple[int, int]:
        """What was measured on such a card; else what the library says without one, corrected where
        it is known to choose otherwise on one (recordings of 1700 convolutions): there matrix
        products serve plain 1x1 filters, and fp32 filter gradients are split over the card.
        """
        (x, _), (w, _), (y, _) = shapes
        if self.table is None:
            self.table = Measured(call.stage.card.card)
        filter = (
            *w,
            *stride,
            *padding,
            *dilation,
            x[1] // w[1],
            NAMES.get(dtype),
            "last" if nhwc else "-",
        )
        known = self.table.exact.get((*x, *filter))
        if known:
            return known[KINDS.index(kind)], 0
        size = self.estimated(call, kind, dtype, shapes, filter, nhwc, padding, stride, dilation)
        if kind != "filter" or dtype is not torch.float32 or nhwc or len(x) != 4:
            return size, 0
        copied = size > 4 * (product(x) + product(y))
        tiles = (
            size + TILE * self.base.sms if copied else 0
        )  # as seen of a filter of 128 x 3 x 4 x 4
        return size, max(self.table.transforms(x, y, filter), tiles)

    def estimated(
        self,
        call: Call,
        kind: str,
        dtype: torch.dtype,
        shapes: list[cudnn.Laid],
        filter: Filter,
        nhwc: bool,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> int:
        """The size of a convolution that was not measured."""
        (x, _), (w, _), (y, _) = shapes
        assert self.table is not None
        half = dtype is not torch.float32
        plain = (
            all(n == 1 for n in w[2:])
            and all(n == 1 for n in stride)
            and not any(padding)
            and w[1] == x[1]
        )
        near = self.table.near(x, filter) if plain else None
        if near:
            call.stage.recorder.facts["convolutions"] = True
            return self.carried(call, kind, dtype, x, w, near, nhwc, padding, stride, dilation)
        pointwise = plain and not nhwc
        if pointwise and kind != "filter" and not (half and x[0] >= 16 and product(x[2:]) % 4):
            return 0
        call.stage.recorder.facts["convolutions"] = True
        if half:
            call.stage.recorder.facts["half_convolutions"] = True
        size, engine = self.proposed(call, kind, dtype, shapes, nhwc, padding, stride, dilation)
        if pointwise and size and kind == "filter":
            narrow, odd = x[0] < 64 and min(x[1], w[0]) <= (40 if half else 24), product(x[2:]) % 4
            summed = 4 * x[0] * product(w)  # over the batch, in fp32
            few = summed <= (32 << 20 if odd else MOST_SUMMED)
            return summed if few and not (narrow or odd and half) else size
        if kind == "filter" and not plain and size:
            return max(0, size + self.beyond(call, dtype, y, filter, nhwc, engine))
        return size

    def beyond(
        self,
        call: Call,
        dtype: torch.dtype,
        y: Sequence[int],
        filter: Filter,
        nhwc: bool,
        engine: int,
    ) -> int:
        """What cuDNN takes on the card for a filter's gradient beyond its proposal without one:
        sums of parts of the batch's positions, which the kernels of some engines keep apart. They
        depend on the filter and the number of positions, so they are those of the measured
        convolution that is nearest in them, of as large a filter and by the same engine. Of 1,793
        and 466 others this finds 84 of 100 sizes in fp32 and in bf16, where the proposal alone is
        right for 72 and 75.
        """
        assert self.table is not None
        for _, like, other in self.table.as_large(y, filter):
            w = other[:4]
            stride, padding, dilation = other[4:6], other[6:8], other[8:10]
            shapes = forms(like, w, nhwc, padding, stride, dilation)
            size, by = self.proposed(call, "filter", dtype, shapes, nhwc, padding, stride, dilation)
            more = self.table.exact[like + other][2] - size
            if by == engine and more <= 2 * TILE * self.base.sms:  # more is another algorithm
                return more
        return 0

    def carried(
        self,
        call: Call,
        kind: str,
        dtype: torch.dtype,
        x: Sequence[int],
        w: Sequence[int],
        near: tuple[Image, Sizes],
        nhwc: bool,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> int:
        """The size of a plain 1x1 convolution from that of the same filter on other images. Leaving
        one out, this finds 92 of 100 sizes in half precision, where the library's word is good for
        78.
        """
        like, sizes = near
        size = sizes[KINDS.index(kind)]
        if size <= SMALL:
            return size
        each = 4 * product(w)  # of the batch's samples, whose filter gradients are summed in fp32
        here, there = (
            self.proposed(
                call,
                kind,
                dtype,
                forms(i, w, nhwc, padding, stride, dilation),
                nhwc,
                padding,
                stride,
                dilation,
            )[0]
            for i in (x, like)
        )
        if abs(size - each * like[0]) <= size // 100:
            return each * x[0] if each * x[0] <= MOST_SUMMED else here
        return max(0, size + here - there)

    def proposed(
        self,
        call: Call,
        kind: str,
        dtype: torch.dtype,
        shapes: list[cudnn.Laid],
        nhwc: bool,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> tuple[int, int]:
        """What the library says of a card that is not there, and the number of its engine."""
        library = self.open(call)
        if library is not None and dtype in DTYPES:
            try:
                x, w, y = shapes
                return library.workspace(kind, x, w, y, DTYPES[dtype], padding, stride, dilation)
            except cudnn.Refused:
                pass
        return 0 if nhwc else dtype.itemsize * sum(product(shape) for shape, _ in shapes) + 16, -1

    def open(self, call: Call) -> cudnn.Library | None:
        if not cudnn.asked:
            return None
        if not self.asked:
            self.asked = True
            try:
                self.library = cudnn.Library(call.stage.card.properties)
            except cudnn.Refused as e:
                call.stage.recorder.warn(
                    "cuDNN could not be asked for its workspaces (%s): they are estimated" % e
                )
        return self.library


class Measured:
    """Sizes by shape, from the file of the target's card if it was measured with this release of
    torch: a line a convolution, 17 words for the shape and three sizes (docs/format/cards.md).
    """

    def __init__(self, card: dict[str, Any]) -> None:
        self.exact: dict[tuple[Any, ...], Sizes] = {}  # by image and filter
        self.filters: dict[Filter, list[Image]] = {}  # the images a filter was measured with
        # by how large the filter is: positions of the result, image and filter
        self.sizes: dict[tuple[Any, ...], list[tuple[int, Image, Filter]]] = {}
        path, release = card.get("workspaces"), card.get("workspaces_torch") or ""
        if not path or torch.__version__.split(".")[:2] != release.split(".")[:2]:
            return
        with open(path) as lines:
            for line in lines:
                words = line.split()
                numbers = tuple(map(int, words[:15]))
                image: Image = numbers[:4]
                filter: Filter = (*numbers[4:], *words[15:17])
                self.exact[image + filter] = tuple(map(int, words[17:]))
                self.filters.setdefault(filter, []).append(image)
                if self.exact[image + filter][2]:
                    found = (image[0] * product(result(image, filter)), image, filter)
                    self.sizes.setdefault(large(filter), []).append(found)

    def as_large(self, y: Sequence[int], filter: Filter) -> list[tuple[int, Image, Filter]]:
        """The convolutions of as large a filter with the most similar number of positions."""
        positions = y[0] * product(y[2:])
        return sorted(
            self.sizes.get(large(filter), ()), key=lambda one: abs(math.log(one[0] / positions))
        )[:LOOKS]

    def near(self, x: Sequence[int], filter: Filter) -> tuple[Image, Sizes] | None:
        """The image that is most like x among those the filter was measured with: of the same side
        if there is one, else of as regular a side; and its sizes.
        """
        found = [
            like
            for like in self.filters.get(filter, ())
            if (like[2] * like[3] % 4 == 0) == (x[2] * x[3] % 4 == 0)
        ]
        if not found:
            return None
        same = [like for like in found if like[2:] == tuple(x[2:])]
        like = min(same or found, key=lambda like: abs(math.log(product(like) / product(x))))
        return like, self.exact[tuple(like) + tuple(filter)]

    def transforms(self, x: Sequence[int], y: Sequence[int], filter: Filter) -> int:
        """Bytes of a filter's gradient by Fourier transforms in fp32, 0 where they were never seen:
        those of all images and gradients, twice, and the gradients once more. On a card cuDNN took
        them for 18 convolutions of the table, and in the GANs and the ResNet of `bench/zoo`, which
        have batches of 1024 and more. Without one it does not propose them.
        """
        w, (rows, columns), padding = filter[:4], filter[2:4], filter[6:8]
        plain = filter[4:6] == filter[8:10] == (1, 1) and filter[10] == 1
        side, largest = SIDES
        while side < max(n + 2 * p for n, p in zip(x[2:], padding)):
            side *= 2
        if (
            not plain
            or not (1 < rows <= TAPS and 1 < columns <= TAPS and all(padding))
            or side > largest
            or x[0] < SAMPLES
            or w[0] > w[1]
            or w[0] * w[1] > PAIRS
        ):
            return 0
        transform = 8 * side * (side // 2 + 1)
        each: int = 2 * (x[1] + w[0]) * transform + 4 * product(y[1:])  # sample
        for like in self.filters.get(filter, ()):
            if like[2:] == tuple(x[2:]) and like[0] >= MANY:
                if self.exact[like + filter][2] < each * like[0]:
                    return 0
        return each * x[0]


def forms(
    x: Sequence[int],
    w: Sequence[int],
    nhwc: bool,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[cudnn.Laid]:
    """Shapes and strides of image, filter and result."""
    y = [x[0], w[0], *sides(x, w, stride, padding, dilation)]
    return [(list(shape), strided(shape, nhwc)) for shape in (x, w, y)]


def sides(
    x: Sequence[int],
    w: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Height and width of the result."""
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, p, s, d in zip(x[2:], w[2:], padding, stride, dilation)
    ]


def result(image: Image, filter: Filter) -> list[int]:
    return sides(image, filter[:4], filter[4:6], filter[6:8], filter[8:10])


def large(filter: Filter) -> tuple[Any, ...]:
    """How large a filter of an image or a volume is, with what else decides about kernels."""
    sides = (len(filter) + 3) // 4  # four words each but for groups, type and order
    return filter[0], product(filter[1:sides]), *filter[-3:]


def product(values: Iterable[int]) -> int:
    n = 1
    for v in values:
        n *= v
    return n


def dense(t: torch.Tensor) -> bool:
    return t.is_contiguous() or channels_last(t)


def channels_last(t: torch.Tensor) -> bool:
    if t.dim() == 4:
        return t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()
    if t.dim() == 5:
        return t.is_contiguous(memory_format=torch.channels_last_3d) and not t.is_contiguous()
    return False


def same_either_way(t: torch.Tensor) -> bool:
    """Whether channels first and channels last are one and the same order: one channel, or one
    pixel.
    """
    return (
        t.dim() in (4, 5) and (t.shape[1] == 1 or product(t.shape[2:]) == 1) and t.is_contiguous()
    )


def laid_out(stage: Stage, args: tuple[Any, ...], out: Any) -> Any:
    """Results in the order in which the card writes them. For bfloat16 torch asks the card whether
    cuDNN will do it, and without an answer takes kernels that know only channels first.
    """
    operands = args[:2] if isinstance(out, torch.Tensor) else args[1:3]
    if operands[0].dtype is not torch.bfloat16 or not any(channels_last(t) for t in operands):
        return out
    if isinstance(out, torch.Tensor):
        return turn(out)
    return (
        *(turn(t) if isinstance(t, torch.Tensor) and t.dim() > 1 else t for t in out[:2]),
        *out[2:],
    )


def turn(t: torch.Tensor) -> torch.Tensor:
    if channels_last(t) or t.dim() not in (4, 5):
        return t
    return torch.empty_strided(t.shape, strided(t.shape, True), dtype=t.dtype, device=t.device)


def flat(t: torch.Tensor, nhwc: bool) -> cudnn.Laid:
    """Shape and strides as cuDNN sees them: one-dimensional convolutions have a height of one."""
    shape = list(t.shape)
    if len(shape) == 3:
        shape.insert(2, 1)
    return shape, strided(shape, nhwc)


def strided(shape: Sequence[int], nhwc: bool) -> list[int]:
    strides, step = [0] * len(shape), 1
    order = (
        [1] + list(range(len(shape) - 1, 1, -1)) + [0] if nhwc else range(len(shape) - 1, -1, -1)
    )
    for d in order:
        strides[d] = step
        step *= shape[d]
    return strides


def spread(values: Sequence[int], dims: int, neutral: int) -> list[int]:
    """The values of a one-dimensional convolution for a height of one as well."""
    return [neutral] * (dims - len(values)) + list(values)


def depthwise(x: torch.Tensor, w: torch.Tensor, groups: int, transposed: bool) -> bool:
    """Whether ATen's own kernel runs it: one filter a channel, channels first."""
    return (
        not transposed
        and groups == x.shape[1]
        and groups > 1
        and w.shape[0] % groups == 0
        and w.shape[1] == 1
        and x.dim() == 4
        and not channels_last(x)
    )
