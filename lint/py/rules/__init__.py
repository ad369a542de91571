"""The rules, one a file named by its id. A file has

- a docstring: the title, `severity:` and `remedy:`, why it costs memory, and after `Instead:` what
  to write. Go reads it for the messages, the list of rules and the pages of the documentation;
- CHECKS: generators over a names.File that yield findings. A rule without any is found by the
  abstract run (lifetimes.py); two rules may share one;
- HINTS: functions of a File and a line. One that returns true makes a finding there a hint.
"""

import importlib
import pkgutil
from typing import Any, Callable, Dict, Iterator, Tuple

from ..findings import Finding

Check = Callable[[Any], Iterator[Finding]]
Reason = Callable[[Any, int], bool]

_MODULES = {
    name.replace("_", "-"): importlib.import_module("." + name, __name__)
    for name in sorted(m.name for m in pkgutil.iter_modules(__path__))
}
CHECKS: Tuple[Check, ...] = tuple(
    dict.fromkeys(check for m in _MODULES.values() for check in getattr(m, "CHECKS", ()))
)
HINTS: Dict[str, Tuple[Reason, ...]] = {
    rule: getattr(m, "HINTS", ()) for rule, m in _MODULES.items()
}
