"""What the other files of a project show about a finding.

A rule sees one file. A list that grows there may be emptied by the trainer in another, and a
function that evaluates with gradients may be called under no_grad. The other files are read
when a finding asks, never before: those that were given with this one, and those beside it.
"""

import ast
import os
import re
import sys
from typing import Any, Dict, Iterator, List, Optional, Set

from . import networks, source
from .findings import Finding
from .names import FUNCTIONS, File, key, method, own, targets, walk

LARGEST = 300_000  # bytes of a file that is looked into
MOST = 4000  # files
HELD = 256 << 20  # bytes of texts that are kept; what comes after is read again when asked for

# Rules about something that stays until somebody empties it.
_KEEPS = frozenset(
    "module-keeps-tensors graph-kept-in-list graph-kept-here hook-keeps-tensors "
    "outputs-never-cleared outputs-kept-on-card hidden-state-not-detached".split()
)
# Rules about a second copy of a network's weights.
_COPIES = frozenset("checkpoint-kept checkpoint-without-map-location model-copies-kept".split())
_QUIET = re.compile(r"no_grad|inference_mode|set_grad_enabled")
_PUTS = ("append", "extend", "add", "update", "insert", "appendleft", "setdefault")


class Project:
    def __init__(self, paths: List[str]) -> None:
        self.given = [p for p in paths if p.endswith(".py")][:MOST]
        self._texts: Dict[str, str] = {}
        self._held = 0
        self._beside: Dict[str, List[str]] = {}

    def others(self, path: str) -> Iterator[str]:
        """The texts of the files that import this one, by its own name or its package's, and of
        those that it imports. Scripts that only lie in the same folder are no witnesses.
        """
        here = os.path.abspath(path)
        seen = {here}
        own_text = self._text(here)
        for p in self.given + self._neighbours(path):
            whole = os.path.abspath(p)
            if whole in seen:
                continue
            seen.add(whole)
            text = self._text(whole)
            if _imports(text, _stem(here)) or _imports(text, os.path.basename(_folder(here))):
                yield text
            elif _imports(own_text, _stem(whole)):
                yield text

    def given_texts(self) -> Iterator[str]:
        return (self._text(os.path.abspath(p)) for p in self.given)

    def _neighbours(self, path: str) -> List[str]:
        folder = _folder(os.path.abspath(path))
        if folder not in self._beside:
            try:
                names = sorted(os.listdir(folder))[:MOST]
            except OSError:
                names = []
            self._beside[folder] = [os.path.join(folder, n) for n in names if n.endswith(".py")]
        return self._beside[folder]

    def _text(self, path: str) -> str:
        text = self._texts.get(path)
        if text is None:
            text = _read(path)
            size = sys.getsizeof(text)
            if self._held + size <= HELD:
                self._texts[path] = text
                self._held += size
        return text


def _read(path: str) -> str:
    try:
        # a pipe that is called x.py would never end
        if os.path.isfile(path) and os.path.getsize(path) <= LARGEST:
            with open(path, encoding="utf-8", errors="replace") as f:
                return f.read()
    except OSError:
        pass
    return ""


def _folder(path: str) -> str:
    return os.path.dirname(path)


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def contradicted(project: Project, path: str, tree: ast.AST, finding: Finding) -> bool:
    """Does another file take away what the finding rests on?"""
    if _called_by_nobody(project, path, tree, finding.line):
        return True
    if finding.rule in _KEEPS:
        attribute = _attribute_at(tree, finding.line)
        if attribute is not None and _emptied(project, path, attribute):
            return True
        return _detached_by_keeper(project, path, tree, finding.line)
    if finding.rule == "eval-without-no-grad":
        function = _function_at(tree, finding.line)
        return (
            _gradients_off(project, path)
            or (function is not None and _called_quietly(project, path, tree, function))
            or _quiet_itself(project, path, tree, finding.line)
        )
    if finding.rule in _COPIES:
        within = _function_at(tree, finding.line) or tree
        if finding.rule == "model-copies-kept":
            named = {
                n.id for n in walk(within) if isinstance(n, ast.Name) and n.lineno == finding.line
            }
        else:
            named = _restored(within)
        return _of_small_networks(project, path, tree, named)
    return False


_MOVES = ("to", "cuda", "cpu", "half", "float", "train", "eval")
_NO_NETWORK = re.compile(r"optim|sched|scaler|adam|sgd|ema", re.I)


def _restored(within: ast.AST) -> Set[str]:
    """net of net.load_state_dict(saved["net"])"""
    return {
        key(n.func.value) or ""
        for n in walk(within)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == "load_state_dict"
    }


def _of_small_networks(project: Project, path: str, tree: ast.AST, named: Set[str]) -> bool:
    """Are all networks of these names small, by their layers?"""
    made = _classes_of_variables(tree)
    wanted = {made[n] for n in named if n in made and not _NO_NETWORK.search(made[n])}
    here = {c.name for c in walk(tree) if isinstance(c, ast.ClassDef)}
    if not wanted or wanted & here:
        # A script that holds its network itself is often an excerpt, and stands for a larger one.
        return False
    classes: Dict[str, ast.ClassDef] = {}
    for text in project.others(path):
        if any("class " + name in text for name in wanted - set(classes)):
            try:
                found = [c for c in walk(source.parse(text)) if isinstance(c, ast.ClassDef)]
            except (SyntaxError, ValueError, RecursionError):
                continue
            classes.update((c.name, c) for c in found if c.name not in classes)
    return all(networks.is_small(name, classes) for name in wanted)


def _classes_of_variables(tree: ast.AST) -> Dict[str, str]:
    """net -> Net of net = Net(width=64).to(device)"""
    made: Dict[str, str] = {}
    for s in walk(tree):
        value = s.value if isinstance(s, ast.Assign) else None
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr not in _MOVES:
                break
            value = value.func.value
        if isinstance(value, ast.Call) and method(value)[:1].isupper():
            made.update((key(t) or "", method(value)) for t in targets(s))
    return made


def _attribute_at(tree: ast.AST, line: int) -> Optional[str]:
    """losses of self.losses.append(x), self.losses += [x], self.losses[k] = x"""
    for n in walk(tree):
        if getattr(n, "lineno", None) != line:
            continue
        holder: Any = None
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _PUTS:
            holder = n.func.value
        elif isinstance(n, ast.AugAssign):
            holder = n.target
        elif isinstance(n, ast.Assign):
            holder = n.targets[0]
        while isinstance(holder, ast.Subscript):
            holder = holder.value
        if isinstance(holder, ast.Attribute):
            return holder.attr
    return None


def _emptied(project: Project, path: str, attribute: str) -> bool:
    name = re.escape(attribute)
    empties = re.compile(
        r"\w[\w\])]*\.%s(\s*=\s*(\[\s*\]|\{\s*\}|None|list\(\)|dict\(\)|torch\.)|\.clear\(\)|"
        r"\.popleft\(|\.pop\(|\[:\]\s*=)|\bdel\s+[\w.]+\.%s\b" % (name, name)
    )
    return any(attribute in text and empties.search(text) for text in project.others(path))


def _detached_by_keeper(project: Project, path: str, tree: ast.AST, line: int) -> bool:
    """self.losses.add(loss), where self.losses = Holder(...) and another file's Holder.add() keeps
    loss.detach()
    """
    made = _classes_of_variables(tree)
    for n in walk(tree):
        if not isinstance(n, ast.Call) or n.lineno != line or not isinstance(n.func, ast.Attribute):
            continue
        name = made.get(key(n.func.value) or "")
        if name is None:
            continue
        for text in project.others(path):
            if "class " + name not in text:
                continue
            try:
                classes = [c for c in walk(source.parse(text)) if isinstance(c, ast.ClassDef)]
            except (SyntaxError, ValueError, RecursionError):
                continue
            methods = [
                f
                for c in classes
                if c.name == name
                for f in c.body
                if isinstance(f, FUNCTIONS) and f.name == n.func.attr
            ]
            if methods:
                return _cuts_what_it_gets(methods[0])
    return False


_CUTS = frozenset("detach item tolist numpy data".split())


def _cuts_what_it_gets(function: Any) -> bool:
    """def add(self, value): self.kept.append(value.detach().cpu())"""
    given = {a.arg for a in function.args.args[1:]}
    cut = {
        n.value.id
        for n in walk(function)
        if isinstance(n, ast.Attribute) and n.attr in _CUTS and isinstance(n.value, ast.Name)
    } | {
        a.id
        for n in walk(function)
        if isinstance(n, ast.Call) and method(n) in ("float", "int")
        for a in n.args
        if isinstance(a, ast.Name)
    }
    return bool(given & cut)


def _function_at(tree: ast.AST, line: int) -> Optional[Any]:
    around = [
        n
        for n in walk(tree)
        if isinstance(n, FUNCTIONS) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    return max(around, key=lambda n: n.lineno) if around else None


def _called_by_nobody(project: Project, path: str, tree: Any, line: int) -> bool:
    """def old_validation(...), which neither the script around it nor a file that imports this one
    names. A file of functions that nobody imports is a library: its users are elsewhere.
    """
    around = [
        n
        for n in walk(tree)
        if isinstance(n, FUNCTIONS) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    wanted = {f.name for f in around if not _called_from_outside(tree, f)}
    unnamed = wanted - _named_in(tree, around)
    if not unnamed:
        return False
    # Who imports this file uses some of it; a package of the same name brings other names.
    defined = {s.name for s in tree.body if isinstance(s, FUNCTIONS + (ast.ClassDef,))}
    importers = [
        t
        for t in project.others(path)
        if _imports(t, _stem(path)) and any(_names([t], d) for d in defined)
    ]
    if not importers and not _is_script(tree):
        return False
    return any(not _names(importers, name) for name in unnamed)


def _called_from_outside(tree: ast.AST, function: Any) -> bool:
    """What a framework calls: methods of a class with a base, __call__, functions with a decorator"""
    if function.decorator_list or function.name.startswith("__"):
        return True
    classes = [c for c in walk(tree) if isinstance(c, ast.ClassDef) and function in c.body]
    return any(c.bases or c.keywords for c in classes)


def _named_in(tree: ast.AST, functions: List[Any]) -> Set[str]:
    """Names that the file uses outside of the functions that bear them, written as text too"""
    inside = {f.name: set(walk(f)) for f in functions}
    found: Set[str] = set()
    for n in walk(tree):
        name = getattr(n, "id", "") or getattr(n, "attr", "")
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            name = n.value
        if name in inside and n not in inside[name]:
            found.add(name)
    return found


def _names(texts: List[str], name: str) -> bool:
    used = re.compile(r"(?<!def )\b%s\b|import \*" % re.escape(name))
    return any(used.search(text) for text in texts)


def _is_script(tree: Any) -> bool:
    """if __name__ == "__main__": a whole program, which calls what it needs"""
    return any(
        isinstance(n, ast.Name) and n.id == "__name__"
        for s in tree.body
        if isinstance(s, ast.If)
        for n in walk(s.test)
    )


def _imports(text: str, stem: str) -> bool:
    """from .stem import x, from package import stem, import package.stem as s"""
    return stem in text and bool(
        re.search(r"^\s*(from|import)\s.*\b%s\b" % re.escape(stem), text, re.M)
    )


def _gradients_off(project: Project, path: str) -> bool:
    """torch.set_grad_enabled(False) in the script that imports this file"""
    stem = _stem(path)
    off = re.compile(r"^\s*torch\.(autograd\.)?set_grad_enabled\(False\)\s*$", re.M)
    return any(
        "set_grad_enabled" in text and off.search(text) and _imports(text, stem)
        for text in project.others(path)
    )


def _quiet_itself(project: Project, path: str, tree: ast.AST, line: int) -> bool:
    """model.decode(z), where a file that is given here has @torch.no_grad() above def decode"""
    called = {
        n.func.attr
        for n in walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.lineno == line
    } - {"forward", "to", "cuda", "cpu", "detach"}
    above = [
        re.compile(r"@torch\.(no_grad|inference_mode)\(\)\s*\n\s*def %s\(" % re.escape(name))
        for name in sorted(called)
    ]
    return bool(above) and any(a.search(text) for text in project.given_texts() for a in above)


def _called_quietly(project: Project, path: str, tree: ast.AST, function: Any) -> bool:
    """Is the function called under no_grad in another file, by its name or by that of a method that
    hands on to it? Where others call it without, the one who asks decides.
    """
    stem = _stem(path)
    names = {function.name} | {
        f.name
        for f in walk(tree)
        if isinstance(f, FUNCTIONS)
        and f.name not in _ANY_CLASS
        and any(isinstance(n, ast.Call) and key(n.func) == "self." + function.name for n in walk(f))
    }
    called = re.compile(r"\b(%s)\(" % "|".join(map(re.escape, sorted(names))))
    for text in project.others(path):
        if not _QUIET.search(text) or not called.search(text):
            continue
        if not any("." + name + "(" in text for name in names) and not _imports(text, stem):
            continue
        try:
            file = File(source.parse(text))
        except (SyntaxError, ValueError, RecursionError):
            continue
        for s in file.statements:
            if isinstance(s, FUNCTIONS + (ast.ClassDef,)) or not file.places[s].no_grad:
                continue
            for n in own(s):
                if isinstance(n, ast.Call) and (key(n.func) or "").split(".")[-1] in names:
                    return True
    return False


# Names that methods of many classes have: a call by one of them says nothing about this class.
_ANY_CLASS = frozenset("__init__ forward __call__ run main train fit step update".split())
