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
        self.names, self.function, self.skip = names, function, skip

    def __call__(self, batch: Dict[str, Any]) -> Dict[str, Any]:
        import numpy

        batch, bad = dict(batch), set()
        for name in self.names:
            made = []
            for row, data in enumerate(batch[name]):
                try:
                    made.append(None if data is None else self.decoded(data))
                except FeedError as error:
                    if not self.skip:
                        raise FeedError("%s (%s)" % (error, self.which(batch, name, row))) from None
                    bad.add(row)
                    made.append(None)
            batch[name] = made
        kept = [row for row in range(len(made)) if row not in bad]
        for name, values in batch.items():
            if name in self.names:
                batch[name] = _stacked([values[row] for row in kept])
            elif bad:
                batch[name] = values[numpy.asarray(kept, dtype=int)]
        return batch

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


def _stacked(values: List[Any]) -> Any:
    """One array where all have one shape; otherwise an array of arrays."""
    import numpy

    if values and all(v is not None and v.shape == values[0].shape for v in values):
        return numpy.stack(values)
    out = numpy.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out
