"""Dataset made from a whole array.

severity: info
remedy: tf_data_budget

from_tensor_slices makes a copy of the array. Beside the original that is twice the data in host
memory.

Instead: Read from files (TFRecord, Parquet), or use np.load(..., mmap_mode='r') and
Dataset.from_generator.
"""

from typing import Iterator

from ..findings import Finding, finding
from ..names import File
from ..tensorflow import TEXT_TABLES, whole_arrays


def datasets_of_arrays(file: File) -> Iterator[Finding]:
    """Dataset.from_tensor_slices(data) of an array read whole"""
    for call, name, part, reader in whole_arrays(file):
        if name.endswith(("Dataset.from_tensor_slices", "Dataset.from_tensors")):
            yield finding(
                "tf-dataset-from-array",
                call,
                "`%s` is read whole and copied once more into the dataset: stream it from disk"
                % part,
                hint=reader in TEXT_TABLES,
            )


CHECKS = (datasets_of_arrays,)
