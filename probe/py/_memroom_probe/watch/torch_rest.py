"""Hooks that rest are out of torch's way: their places hold what was there before us, or one short
function that counts.

Between two steps our code has left the processor's caches, and each call of it takes a microsecond
or more, of a step that may last half a millisecond. Places are items of dictionaries: torch's
tables of hooks, and a module's names. Their values are exchanged and no item comes or goes, since
torch may be walking a table; a place where somebody else has put something is left alone.
"""

from typing import Any, Dict, List, Tuple

from .. import compiled, guard
from . import steps


class Rest:
    """The places of our hooks."""

    __slots__ = ("_loop", "_places")

    def __init__(self, loop: steps.Loop) -> None:
        self._loop = loop
        # (dictionary, key, our hook, what is there while hooks rest)
        self._places: List[Tuple[Dict[Any, Any], Any, Any, Any]] = []

    def place(self, names: Dict[Any, Any], key: Any, hook: Any, rests: Any) -> None:
        """Names a place of one of our hooks."""
        if names.get(key) is hook:
            self._places.append((names, key, hook, rests))

    def install(self) -> None:
        """Hooks come back for good when the program begins to compile: what is traced must stay the
        same.
        """
        if self._places:
            self._loop.glance_ns = guard.GLANCE_NS
            compiled.when_used(self._for_good)

    def _for_good(self) -> None:
        self._loop.glance_ns = guard.GLANCES_NS
        self.back()

    def aside(self) -> None:
        """Hooks begin to rest."""
        if not compiled.compiler.in_use:
            for names, key, hook, rests in self._places:
                if names.get(key) is hook:
                    names[key] = rests

    def back(self) -> None:
        """Hooks are awake again."""
        for names, key, hook, rests in self._places:
            if names.get(key) is rests:
                names[key] = hook


@compiled.left_alone
def nothing(optimizer: Any, args: Any = None, kwargs: Any = None) -> None:
    """Stands where a hook was."""
