"""Python objects shared by many workers.

severity: warning
remedy: share_data

Reading a Python object writes its reference count, and the page it lies in is copied into each
worker: host memory grows by the list's size times the workers.

Instead: Write `samples = memroom.share(samples)`: workers map one copy. Or keep the items in
one numpy array or Arrow table.
"""

from typing import Iterator

from ..data import lists_and_workers
from ..findings import Finding, finding
from ..names import File


def lists_of_workers(file: File) -> Iterator[Finding]:
    for call, name, attribute, workers, _, small in lists_and_workers(file):
        yield finding(
            "workers-copy-python-list",
            call,
            "`%s.%s` is a Python list: reading it changes reference counts, so each of the %d workers copies its pages over time"
            % (name, attribute, workers),
            hint=small,
        )


CHECKS = (lists_of_workers,)
