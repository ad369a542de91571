"""The types that travel between the parts of fit, where they are no class of their own."""

from typing import Any, Callable, Dict, Tuple

Say = Callable[..., None]  # say(kind, text, **fields): "applied", "declined", "note", "rehearsed"
Params = Dict[str, Any]  # of one remedy, as the protocol carries them
Args = Tuple[Any, ...]
Kwargs = Dict[str, Any]
Call = Callable[..., Any]  # a module's call, with the module already in it
