"""when_imported and before_import against real modules in a temporary folder."""

import importlib
import importlib.util
import inspect
import os
import sys
import tempfile
import textwrap
import unittest

from _memroom_probe import faults, imports


class WhenImported(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        sys.path.insert(0, self.folder.name)
        self.addCleanup(sys.path.remove, self.folder.name)
        before = set(sys.modules)
        self.addCleanup(lambda: [sys.modules.pop(name) for name in set(sys.modules) - before])
        self.addCleanup(imports._after.clear)
        self.addCleanup(imports._before.clear)
        importlib.invalidate_caches()

    def module(self, name, body="value = 1\n"):
        path = os.path.join(self.folder.name, *name.split(".")) + ".py"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(textwrap.dedent(body))

    def test_called_once_after_the_module_has_run(self):
        self.module("mr_a")
        seen = []
        imports.when_imported("mr_a", lambda m: seen.append(m.value))
        self.assertEqual(seen, [])
        import mr_a  # noqa: F401  # noqa: F401,F811

        self.assertEqual(seen, [1])

    def test_already_imported(self):
        seen = []
        imports.when_imported("os", seen.append)
        self.assertEqual(seen, [os])

    def test_submodule_without_importing_it(self):
        self.module("mr_pkg.__init__")
        self.module("mr_pkg.inner", "value = 7\n")
        seen = []
        imports.when_imported("mr_pkg.inner", lambda m: seen.append(m.value))
        import mr_pkg

        self.assertEqual(seen, [])
        self.assertNotIn("mr_pkg.inner", sys.modules)
        importlib.import_module("mr_pkg.inner")
        self.assertEqual(seen, [7])
        self.assertEqual(mr_pkg.inner.value, 7)

    def test_reload_calls_again(self):
        self.module("mr_reload")
        seen = []
        imports.when_imported("mr_reload", lambda m: seen.append(m.value))
        import mr_reload

        importlib.reload(mr_reload)
        self.assertEqual(seen, [1, 1])

    def test_module_looks_as_without_us(self):
        self.module("mr_plain")
        import mr_plain

        plain = type(mr_plain.__loader__), mr_plain.__spec__.origin, inspect.getsource(mr_plain)
        del sys.modules["mr_plain"]
        imports.when_imported("mr_plain", lambda m: None)
        mr_plain = importlib.import_module("mr_plain")
        self.assertEqual(
            (type(mr_plain.__loader__), mr_plain.__spec__.origin, inspect.getsource(mr_plain)),
            plain,
        )
        self.assertNotIn("exec_module", vars(mr_plain.__loader__))

    def test_looking_is_not_importing(self):
        self.module("mr_look")
        seen = []
        imports.when_imported("mr_look", lambda m: seen.append(m.value))
        self.assertIsNotNone(importlib.util.find_spec("mr_look"))
        self.assertEqual(seen, [])
        importlib.import_module("mr_look")
        self.assertEqual(seen, [1])

    def test_failing_module_fails_as_before_and_can_be_imported_later(self):
        self.module("mr_bad", "raise KeyError('own fault')\n")
        seen = []
        imports.when_imported("mr_bad", lambda m: seen.append(m.value))
        with self.assertRaisesRegex(KeyError, "own fault"):
            importlib.import_module("mr_bad")
        self.assertNotIn("mr_bad", sys.modules)
        self.module("mr_bad", "value = 12345\n")
        importlib.invalidate_caches()
        importlib.import_module("mr_bad")
        self.assertEqual(seen, [12345])

    def test_missing_module_is_missing(self):
        imports.when_imported("mr_missing", lambda m: None)
        with self.assertRaises(ModuleNotFoundError):
            importlib.import_module("mr_missing")

    def test_our_exception_does_not_reach_the_import(self):
        self.module("mr_fn")
        before = faults.faults.count
        imports.when_imported("mr_fn", lambda m: 1 / 0)
        importlib.import_module("mr_fn")
        self.assertEqual(faults.faults.count, before + 1)

    def test_before_import(self):
        self.module("mr_env", "import os\nvalue = os.environ.get('MR_ENV')\n")
        self.addCleanup(os.environ.pop, "MR_ENV", None)
        self.assertTrue(
            imports.before_import(
                "mr_env", lambda spec: os.environ.update(MR_ENV=os.path.basename(spec.origin))
            )
        )
        self.assertEqual(importlib.import_module("mr_env").value, "mr_env.py")
        self.assertFalse(imports.before_import("mr_env", lambda spec: None))


if __name__ == "__main__":
    unittest.main()
