"""What other files of a project say about a finding."""

import ast
import os
import sys
import tempfile
import unittest

from _memroom_probe.lint import project

KEEPS = "class Model:\n    def training_step(self, x):\n        self.losses.append(x)\n"
EMPTIES = "from model import Model\nmodel = Model()\nmodel.losses = []\n"


class OtherFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def contradicted(self, path):
        finding = {"rule": "module-keeps-tensors", "line": 3}
        return project.contradicted(project.Project([path]), path, ast.parse(KEEPS), finding)

    def test_a_list_that_another_file_empties(self):
        path = self.write("model.py", KEEPS)
        self.assertFalse(self.contradicted(path))
        self.write("unrelated.py", EMPTIES.replace("from model", "from others"))
        self.assertFalse(self.contradicted(path))
        self.write("train.py", EMPTIES)
        self.assertTrue(self.contradicted(path))

    @unittest.skipIf(sys.platform == "win32", "no pipes with names")
    def test_a_pipe_is_not_read(self):
        """Opening one waits for somebody who writes."""
        path = self.write("model.py", KEEPS)
        os.mkfifo(os.path.join(self.folder, "train.py"))
        self.assertFalse(self.contradicted(path))


if __name__ == "__main__":
    unittest.main()
