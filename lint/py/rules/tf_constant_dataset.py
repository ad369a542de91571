"""Dataset as a constant.

severity: warning
remedy: tf_data_budget

The array exists twice: in NumPy and as a tensor.

Instead: Stream it: tf.data from files, or a generator.
"""

import re
from typing import Any, Iterator

from ..findings import finding
from ..names import File
from ..tensorflow import TEXT_TABLES, whole_arrays


def constants_of_arrays(file: File) -> Iterator[Any]:
    """tf.constant(data) of an array read whole"""
    for call, name, part, reader in whole_arrays(file):
        if name in ("tensorflow.constant", "tensorflow.convert_to_tensor"):
            yield finding(
                "tf-constant-dataset",
                call,
                "`%s` is read whole and copied into a tensor, on the GPU where there is one" % part,
                hint=reader in TEXT_TABLES or not _SAMPLES.search(part.split(".")[-1]),
            )


# What samples are called; a table of faces or of weights is not one.
_SAMPLES = re.compile(
    r"(^|_)(xs?|data(set)?|images?|imgs?|pictures|videos?|frames|audio|waves?|features?|samples|inputs?|"
    r"train|test|val|corpus|tokens|texts?|volumes?|arr(ay)?|whole)(\d*)(_|$)|^x_?(train|test|val)",
    re.I,
)


CHECKS = (constants_of_arrays,)
