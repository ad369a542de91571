"""Objects that workers copy.

severity: info
remedy: share_data

Each of these objects has a reference count in the page it lies in. Workers that read them copy
the pages.

Instead: Keep the fields in numpy arrays or one Arrow table, or write `samples =
memroom.share(samples)`.
"""

from typing import Iterator

from ..data import lists_and_workers
from ..findings import Finding, finding
from ..names import File


def lists_copied(file: File) -> Iterator[Finding]:
    for call, _, _, _, gathered, small in lists_and_workers(file):
        if gathered is not None and not small:
            yield finding(
                "list-copied-here",
                gathered,
                "the objects gathered here are what each worker copies (line %d)" % call.lineno,
            )


CHECKS = (lists_copied,)
