"""`stream.decode(function)`: images of a stream as arrays."""

import io
from typing import Any, Callable, Dict, List, Optional

from .wire import FeedError

IMAGES = {"image", "img", "jpg", "jpeg", "png", "webp", "gif", "bmp", "ppm", "tif", "tiff"}


def image_columns(schema: List[Dict[str, Any]], names: List[str]) -> List[str]:
    """The columns of encoded images: those named, otherwise those whose names say so."""
    binary = [c["name"] for c in schema if c["kind"] == "binary"]
    found = names or [n for n in binary if IMAGES & set(n.lower().split("."))]
    wrong = [n for n in found if n not in binary]
    if wrong or not found:
        raise ValueError(
            "decode takes columns of encoded images, by name: there are %r" % (binary,)
            if not wrong
            else "%r is no column of encoded images; there are %r" % (wrong[0], binary)
        )
    return found


class Decode:
    """Replaces the images of a batch by what function makes of them."""

    def __init__(
        self, names: List[str], function: Optional[Callable[[Any], Any]], skip: bool
    ) -> None:
        from PIL import Image

        Image.preinit()  # its readers are loaded here, not once in each worker
        self.names, self.function, self.skip = names, function, skip

    def __call__(self, batch: Dict[str, Any]) -> Dict[str, Any]:
        import numpy

        made, bad = {name: Stack(len(batch[name])) for name in self.names}, set()
        for name, stack in made.items():
            for row, data in enumerate(batch[name]):
                try:
                    stack.put(row, None if data is None else self.decoded(data))
                except FeedError as error:
                    if not self.skip:
                        raise FeedError("%s (%s)" % (error, self.which(batch, name, row))) from None
                    bad.add(row)
        kept = numpy.asarray([r for r in range(stack.rows) if r not in bad], dtype=int)
        return {
            name: made[name].taken(kept) if name in made else values[kept] if bad else values
            for name, values in batch.items()
        }

    def decoded(self, data: bytes) -> Any:
        import numpy
        from PIL import Image

        try:
            image = Image.open(io.BytesIO(data)).convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise FeedError("memroom: an image cannot be decoded: %s" % error) from None
        return numpy.asarray(image if self.function is None else self.function(image))

    def which(self, batch: Dict[str, Any], name: str, row: int) -> str:
        for other in ("path", name.rpartition(".")[0] + ".path", "__key__"):
            if other in batch and other not in self.names:
                return str(batch[other][row])
        return "row %d of a batch" % row


class Stack:
    """Results as rows of one array where all have one shape; otherwise an array of arrays. No
    result is held twice: a batch of images is large."""

    def __init__(self, rows: int) -> None:
        self.rows, self.array, self.others = rows, None, {}  # type: int, Any, Dict[int, Any]

    def put(self, row: int, value: Any) -> None:
        import numpy

        if self.array is None and value is not None:
            self.array = numpy.empty((self.rows, *value.shape), value.dtype)
        if value is not None and (value.shape, value.dtype) == (
            self.array.shape[1:],
            self.array.dtype,
        ):
            self.array[row] = value
        else:
            self.others[row] = value

    def taken(self, kept: Any) -> Any:
        """The results of these rows."""
        import numpy

        if self.array is not None and not self.others:
            return self.array if len(kept) == self.rows else self.array[kept]
        out = numpy.empty(len(kept), object)
        for i, row in enumerate(kept):
            out[i] = self.others[row] if row in self.others else self.array[row]
        return out
