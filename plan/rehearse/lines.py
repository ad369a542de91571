"""Finds the line of the user's program that asks for memory.

That is the innermost line of the program's own files: not of the standard library and not of an
installed package. Where a library does all the work (a trainer that was started by its own command)
it is the innermost line outside torch. The backward pass runs on a thread of its own: what it takes
belongs to the line that called it, unless a recomputed part of the model asks.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType

OWN, LIBRARY, HIDDEN = range(3)
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Lines:
    """Remembers which code is whose and where its instructions are."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        self.memroom: tuple[str, ...] = (os.path.join(HERE, ""),)
        public = getattr(sys.modules.get("memroom"), "__file__", None)
        if public:
            self.memroom += (os.path.join(os.path.dirname(os.path.abspath(public)), ""),)
        self.hidden: tuple[str, ...] = (*self.memroom, "<frozen")
        self.libraries = tuple(
            os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib")
        )
        self.begun = os.path.join(os.getcwd(), "")
        self.kinds: dict[CodeType, int] = {}
        self.texts: dict[tuple[CodeType, int], str] = {}
        self.calling = ""  # the line that runs the backward pass

    def know(self, torch_file: str | None) -> None:
        """Torch's own frames are never the answer."""
        if torch_file:
            self.hidden += (os.path.join(os.path.dirname(torch_file), ""),)
            self.kinds.clear()

    def here(self) -> str:
        frame: FrameType | None = sys._getframe(1)
        library: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            kind = self.kinds.get(code)
            if kind is None:
                kind = self.kind(code)
            if kind == OWN:
                return self._text(frame)
            if kind == LIBRARY and library is None:
                library = frame
            frame = frame.f_back
        if self.calling or library is None:
            return self.calling
        return self._text(library)

    def kind(self, code: CodeType) -> int:
        """Whose code this is."""
        kind = self.kinds[code] = self._kind(code.co_filename)
        return kind

    def ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self.memroom)

    def shown(self, code: CodeType) -> str:
        """The file of code, from where the program began."""
        path = code.co_filename
        return path[len(self.begun) :] if path.startswith(self.begun) else path

    def _kind(self, path: str) -> int:
        if path.startswith(self.hidden) or path == "<string>":
            return HIDDEN
        if path.startswith(self.libraries) or "-packages" + os.sep in path or path[:1] == "<":
            return LIBRARY
        return OWN

    def _text(self, frame: FrameType) -> str:
        key = frame.f_code, frame.f_lasti
        text = self.texts.get(key)
        if text is None:
            path = self.shown(frame.f_code)
            text = self.texts[key] = "%s:%d" % (path, frame.f_lineno or 0)
        return text

    def files(self, read: set[str]) -> list[str]:
        """Files of the program: modules that it imported, and what it read of its folder."""
        found = set(read)
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path is None:  # Python takes it from a script that has come to its end
                path = getattr(getattr(module, "__loader__", None), "path", None)
            if isinstance(path, str) and self._kind(os.path.abspath(path)) == OWN:
                found.add(os.path.abspath(path))
        return sorted(
            p[len(self.begun) :] if p.startswith(self.begun) else p
            for p in found
            if os.path.isfile(p)
        )

    def folders(self) -> list[str]:
        """Where installed packages lie."""
        found = {p.rstrip(os.sep) for p in self.libraries if "-packages" in p}
        return sorted(found | {p for p in sys.path if "-packages" in p})
