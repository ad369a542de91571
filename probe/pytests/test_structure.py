"""What the probe's Python imports from outside; layout_python_test.go has the rest."""

import ast
import functools
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "py")

# What the probe may import besides the standard library: the frameworks it hooks, where the user
# has imported them, and what they bring along.
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "transformers", "numpy", "accelerate"}
FRAMEWORKS.add("diffusers")  # `plan` builds its models on fake tensors
FRAMEWORKS.add("triton")  # part of PyTorch's compiler, which a rehearsal drives without a card


def modules():
    """{dotted name: path} of every module below probe/py."""
    found = {}
    for folder, _, files in os.walk(ROOT, followlinks=True):
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                dotted = os.path.relpath(path, ROOT)[:-3].replace(os.sep, ".")
                found[dotted[: -len(".__init__")] if name == "__init__.py" else dotted] = path
    return found


@functools.lru_cache(maxsize=None)
def parsed(path):
    with open(path) as file:
        return ast.parse(file.read())


@functools.lru_cache(maxsize=None)
def imported(name, path, at_load):
    """Dotted names that a module imports, with their lines; at_load: only those that are imported
    when it is.
    """
    found = []
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    for node in walk(parsed(path), at_load):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((alias.name, node.lineno))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1] + ([base] if base else []))
            for alias in node.names:
                found.append((base + "." + alias.name, node.lineno))
    return found


def for_checkers(node):
    """Whether what follows is read by type checkers and never runs."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def walk(tree, at_load):
    """The statements of a module, in order. Where only loading counts, without the insides of
    functions and what is for type checkers alone.
    """
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, ast.FunctionDef) and at_load:
            continue
        alone = at_load and for_checkers(node)
        inside = []
        for name in ("orelse",) if alone else ("body", "handlers", "orelse", "finalbody", "cases"):
            inside += getattr(node, name, None) or []
        waiting += reversed(inside)
    return found[1:]


@unittest.skipIf(os.environ.get("MEMROOM_STRUCTURE") == "0", "another interpreter reads the files")
class Structure(unittest.TestCase):
    def test_what_runs_at_load_is_found(self):
        tree = ast.parse(
            "if TYPE_CHECKING:\n    import a\nelse:\n    import b\nif DEBUG:\n    import c\n"
            "def f():\n    import d\n"
        )

        def names(at_load):
            found = [n for n in walk(tree, at_load) if isinstance(n, ast.Import)]
            return [n.names[0].name for n in found]

        self.assertEqual(names(True), ["b", "c"])
        self.assertEqual(names(False), ["a", "b", "c", "d"])

    @unittest.skipUnless(hasattr(sys, "stdlib_module_names"), "needs Python 3.10 or newer")
    def test_only_the_standard_library_and_hooked_frameworks(self):
        allowed = set(sys.stdlib_module_names) | FRAMEWORKS
        for name, path in modules().items():
            # Calibration and lint run as scripts: their modules find each other by their folder.
            folder = os.path.dirname(path)
            beside = {n[:-3] for n in os.listdir(folder) if n.endswith(".py")}
            beside.add(os.path.basename(folder))
            for target, line in imported(name, path, at_load=False):
                top = target.split(".")[0]
                if top != "_memroom_probe" and top not in beside:
                    where = "%s:%d imports %s" % (path, line, target)
                    self.assertTrue(top in allowed, where)

    def test_frameworks_are_imported_late(self):
        """Nothing outside of fit, rehearse and calibrate imports a framework when it is loaded."""
        for name, path in modules().items():
            if any(part in name for part in (".fit.", ".rehearse", ".calibrate")):
                continue
            for target, line in imported(name, path, at_load=True):
                top = target.split(".")[0]
                self.assertNotIn(top, FRAMEWORKS, "%s:%d imports %s" % (path, line, target))


if __name__ == "__main__":
    unittest.main()
