"""Files that the script writes exist for the script, and for nobody else.

What is written goes to a folder that is thrown away, under the path that it would have had. Reading
looks there first, so that a script finds what it has saved. torch.save writes the structure of what
it is given, with tensors by their sizes: fake ones have no content, and torch.load makes others of
the same size where they were or are wanted.

Only what goes through Python's open and os is seen. What libraries write by themselves, to folders
for temporary files and caches, is left alone: other programs may read it.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pickle
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from .install import Rehearsal

MARK = b"memroom rehearsal "  # begins what torch.save has written
SMALL = 1 << 20  # bytes up to which a real tensor's content is kept


class Overlay:
    """The folder with what was written, and what was removed. record: a path that is written to for
    good; the folder lies beside it, and who asked for the record removes both. warn: told when a
    file is written.
    """

    def __init__(self, record: str, warn: Callable[[str], None]) -> None:
        self.record, self.warn = os.path.abspath(record), warn
        self.gone: set[str] = set()
        self.read: set[str] = set()  # files of the script's folder that it has opened to read
        self.top = os.path.realpath(tempfile.mkdtemp("", "overlay-", os.path.dirname(self.record)))
        self.begun = os.getcwd()
        self.temporary = os.path.join(os.path.realpath(tempfile.gettempdir()), "")
        others = [self.temporary, "/dev", "/proc", "/sys", sys.prefix, sys.base_prefix]
        others += [os.path.expanduser("~/.cache"), os.path.expanduser("~/.triton")]
        self.others = [os.path.join(os.path.realpath(p), "") for p in others]

    def install(self) -> None:
        builtins.open = io.open = self._open(io.open)
        for name in ("stat", "lstat", "access", "chmod", "utime"):
            setattr(os, name, self._reading(getattr(os, name)))
        os.listdir = self._listing(os.listdir, str)
        os.scandir = self._scanning(self._listing(os.scandir, lambda entry: entry.name))
        os.remove = os.unlink = self._removing(os.remove)
        os.rmdir = self._removing(os.rmdir)
        os.mkdir = self._making(os.mkdir)
        os.rename = os.replace = self._moving(os.replace)
        setattr(shutil, "_use_fd_functions", False)  # noqa: B010  # rmtree goes by paths then

    # --- where a path leads

    def under(self, path: Any) -> str | None:
        """Where a path leads in the folder; None where it is not ours to keep."""
        try:
            text = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):
            return None
        if text.startswith((self.top, self.record)):
            return None
        folder = os.path.join(text, "")
        if any(folder.startswith(p) for p in self.others) and not self._is_own(folder):
            return None
        return self.top + text

    def _is_own(self, folder: str) -> bool:
        """Whether it lies where the script was started or below its file, wherever that is."""
        main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        own = [self.begun, os.path.dirname(os.path.abspath(main)) if main else self.begun]
        own = [os.path.join(p, "") for p in own]
        return any(folder.startswith(p) and not self.temporary.startswith(p) for p in own)

    def seen(self, path: Any) -> Any:
        """The path to read: the one in the folder where there is something, or where what was there
        has been removed.
        """
        if isinstance(path, int):
            return path
        there = self.under(path)
        if there is None or not (there in self.gone or _lexists(there)):
            return path
        return there

    def written(self, path: Any, keep: bool = False) -> Any:
        """The path to write to. keep: with what is there now."""
        there = None if isinstance(path, int) else self.under(path)
        if there is None:
            return path
        folder = os.path.dirname(there)
        if not os.path.isdir(folder) and os.path.isdir(os.path.dirname(os.path.abspath(path))):
            _makedirs(folder)  # the real one is there, so this one is
        if keep and there not in self.gone and not _lexists(there) and _lexists(path):
            shutil.copyfile(path, there)
        self.gone.discard(there)
        self.warn("files were not written: what the script wrote was there for it alone")
        return there

    # --- functions

    def _open(self, original: Any) -> Any:
        @functools.wraps(original)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(mode, str) and any(c in mode for c in "wax+"):
                if "x" in mode and os.path.exists(file):
                    raise FileExistsError(17, "File exists", file)
                file = self.written(file, keep="a" in mode or "r" in mode)
            else:
                self._note(file)
                file = self.seen(file)
            return original(file, mode, *args, **kwargs)

        return opened

    def _note(self, path: Any) -> None:
        if isinstance(path, (str, os.PathLike)):
            text = os.path.abspath(os.fsdecode(path))
            if text.startswith(os.path.join(self.begun, "")):
                self.read.add(text)

    def _reading(self, original: Any) -> Any:
        @functools.wraps(original)
        def read(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(path if _is_below(kwargs) else self.seen(path), *args, **kwargs)

        return read

    def _listing(self, original: Any, name: Callable[[Any], str]) -> Any:
        """What both folders hold. name: of one thing in them."""

        @functools.wraps(original)
        def listed(path: Any = ".") -> Any:
            there = None if isinstance(path, int) else self.under(path)
            if there is None or not (there in self.gone or _lexists(there)):
                return original(path)
            found = {name(one): one for one in original(there)}
            if there not in self.gone and _lexists(path):
                for one in original(path):
                    found.setdefault(name(one), one)
            return [one for n, one in found.items() if os.path.join(there, n) not in self.gone]

        return listed

    def _scanning(self, listing: Any) -> Any:
        @functools.wraps(listing)
        def scanned(path: Any = ".") -> Any:
            found = listing(path)
            return found if hasattr(found, "close") else _Entries(found)

        return scanned

    def _removing(self, original: Any) -> Any:
        @functools.wraps(original)
        def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
            there = None if _is_below(kwargs) else self.under(path)
            if there is None:
                return original(path, *args, **kwargs)
            os.lstat(path)  # raises where it is not there
            if _lexists(there):
                original(there)
            self.gone.add(there)

        return remove

    def _making(self, original: Any) -> Any:
        @functools.wraps(original)
        def make(path: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_below(kwargs) or self.under(path) is None:
                return original(path, *args, **kwargs)
            if os.path.exists(path):
                raise FileExistsError(17, "File exists", path)
            original(self.written(path), *args, **kwargs)

        return make

    def _moving(self, original: Any) -> Any:
        @functools.wraps(original)
        def move(src: Any, dst: Any, **kwargs: Any) -> Any:
            there = None if _is_below(kwargs) else self.under(src)
            if _is_below(kwargs) or there is None and self.under(dst) is None:
                return original(src, dst, **kwargs)
            target = self.written(dst)
            if there is None or not _lexists(there):  # a real one, which stays
                if os.path.isdir(src):
                    shutil.copytree(src, target)
                else:
                    shutil.copyfile(src, target)
            else:
                original(there, target)
            if there is not None:
                self.gone.add(there)

        return move


class _Entries:
    """Entries of folders, as os.scandir returns them."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        pass


def _is_below(kwargs: dict[str, Any]) -> bool:
    """Whether a path begins in an open folder."""
    return any(name.endswith("dir_fd") and fd is not None for name, fd in kwargs.items())


_makedirs = os.makedirs
_lstat = os.lstat


def _lexists(path: Any) -> bool:
    """Whether something is there, in the real file system."""
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


class Saved:
    """torch.save and torch.load of fake tensors."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.tensors: dict[int, Any] = {}  # number -> how to make it again
        self.load = torch.load  # of files that were not written here

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        text = io.BytesIO()
        pickler = pickle.Pickler(text, protocol=2)
        numbers: dict[int, int] = {}

        def persistent_id(value: Any) -> int | None:
            if not isinstance(value, self.torch.Tensor):
                return None
            if id(value) not in numbers:
                numbers[id(value)] = len(self.tensors)
                self.tensors[len(self.tensors)] = self._described(value)
            return numbers[id(value)]

        pickler.persistent_id = persistent_id
        pickler.dump(obj)
        if hasattr(f, "write"):
            f.write(MARK + text.getvalue())
            return
        with open(f, "wb") as file:
            file.write(MARK + text.getvalue())

    def read(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """What was saved here, or what a file holds that was there before."""
        if hasattr(f, "read"):
            at = f.tell()
            head = f.read(len(MARK))
            if head == MARK:
                return self._made(f, map_location)
            f.seek(at)
            return self.load(f, map_location, *args, **kwargs)
        with open(f, "rb") as file:
            if file.read(len(MARK)) == MARK:
                return self._made(file, map_location)
        return self.load(f, map_location, *args, **kwargs)

    def _described(self, tensor: Any) -> Any:
        torch = self.torch
        kept = None
        fake = type(tensor.detach()).__name__ == "FakeTensor"
        if tensor.device.type == "cpu" and not fake and tensor.nbytes <= SMALL:
            kept = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        layout = tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)
        return layout, is_parameter, tensor.requires_grad and tensor.is_leaf, kept

    def _made(self, file: Any, where: Any) -> Any:
        unpickler = pickle.Unpickler(file)
        made: dict[int, Any] = {}

        def persistent_load(number: int) -> Any:
            if number not in made:
                made[number] = self._again(self.tensors[number], where)
            return made[number]

        unpickler.persistent_load = persistent_load
        return unpickler.load()

    def _again(self, described: Any, where: Any) -> Any:
        torch = self.torch
        (shape, stride, dtype, device), is_parameter, trained, kept = described
        if callable(where):  # it is given a storage, which a fake tensor has none of
            device = "cpu"
        elif isinstance(where, dict):
            device = where.get(device, device)
        elif where is not None:
            device = where
        if kept is not None:
            tensor = kept.clone().to(device)
        else:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=trained)
        return tensor.requires_grad_(trained) if trained else tensor


def install(rehearsal: Rehearsal) -> None:
    """Before anything is imported that keeps a reference to open."""
    overlay = Overlay(rehearsal.path, rehearsal.recorder.warn)
    rehearsal.read = overlay.read
    overlay.install()
