"""What other files of a project say about a finding."""

import ast
import os
import sys
import tempfile
import unittest
from unittest import mock

from _memroom_probe.lint import project
from _memroom_probe.lint.findings import Finding

KEEPS = "class Model(Base):\n    def training_step(self, x):\n        self.losses.append(x)\n"
EMPTIES = "from model import Model\nmodel = Model()\nmodel.losses = []\n"


class OtherFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def contradicted(self, path):
        finding = Finding("module-keeps-tensors", 3, 0, "")
        return project.contradicted(project.Project([path]), path, ast.parse(KEEPS), finding)

    def test_a_list_that_another_file_empties(self):
        path = self.write("model.py", KEEPS)
        self.assertFalse(self.contradicted(path))
        self.write("unrelated.py", EMPTIES.replace("from model", "from others"))
        self.assertFalse(self.contradicted(path))
        self.write("train.py", EMPTIES)
        self.assertTrue(self.contradicted(path))

    def test_a_function_that_nobody_calls(self):
        """The project has to show who uses the file; what a framework calls is never unused."""
        code = "def old(x):\n    return x\n\n\ndef new(x):\n    return x\n"
        path = self.write("model.py", code)

        def unused(text, *others):
            self.write("model.py", text)
            given = [path, *others]
            finding = Finding("anomaly-mode-on", 2, 0, "")
            return project.contradicted(project.Project(given), path, ast.parse(text), finding)

        self.assertFalse(unused(code))
        self.assertTrue(unused(code + 'if __name__ == "__main__":\n    new(1)\n'))
        self.assertFalse(unused(code + 'if __name__ == "__main__":\n    old(1)\n'))
        other = self.write("train.py", "from model import new\nnew(1)\n")
        self.assertTrue(unused(code, other))
        self.assertFalse(
            unused("@command\n" + code.replace("\n    return", " \n    return", 1), other)
        )
        self.assertFalse(
            unused("class A(B):\n    def old(self): pass\n\n\ndef new(x):\n    return x\n", other)
        )
        self.assertTrue(
            unused("class A:\n    def old(self): pass\n\n\ndef new(x):\n    return x\n", other)
        )
        for text in ("from model import new, old\nold(1)\n", "from model import *\nnew(1)\n"):
            self.write("train.py", text)
            self.assertFalse(unused(code, other), text)

    def test_texts_are_kept_up_to_a_bound(self):
        """What has no room is read again: the answer is the same."""
        path = self.write("model.py", KEEPS)
        self.write("a_large_one.py", "from model import Model\n" + "# \u2014\n" * 4000)
        self.write("train.py", EMPTIES)
        finding = Finding("module-keeps-tensors", 3, 0, "")
        for room in (0, 2000, 64 << 10, 1 << 20):
            around = project.Project([path])
            with mock.patch.object(project, "HELD", room):
                for _ in range(2):
                    self.assertTrue(
                        project.contradicted(around, path, ast.parse(KEEPS), finding), room
                    )
            kept = around._texts
            self.assertLessEqual(sum(sys.getsizeof(t) for t in kept.values()), room)
            self.assertEqual(len(kept), {0: 0, 2000: 2, 64 << 10: 3, 1 << 20: 3}[room], room)

    @unittest.skipIf(sys.platform == "win32", "no pipes with names")
    def test_a_pipe_is_not_read(self):
        """Opening one waits for somebody who writes."""
        path = self.write("model.py", KEEPS)
        os.mkfifo(os.path.join(self.folder, "train.py"))
        self.assertFalse(self.contradicted(path))


if __name__ == "__main__":
    unittest.main()
