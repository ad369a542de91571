"""Allocator settings: merged with the user's, limited to what the version knows, under the variable
it reads.
"""

import os
import tempfile
import unittest
from importlib.machinery import ModuleSpec
from unittest import mock

from _memroom_probe import settings

EXPAND = ("expandable_segments", "expandable_segments", "True")
SPLIT = ("max_split_size", "max_split_size_mb", "128")


class Merge(unittest.TestCase):
    def test_added_to_the_users(self):
        self.assertEqual(
            settings.merge("max_split_size_mb:64", [EXPAND], (2, 11)),
            ("max_split_size_mb:64,expandable_segments:True", []),
        )
        self.assertEqual(
            settings.merge("", [EXPAND, SPLIT], (2, 11))[0],
            "expandable_segments:True,max_split_size_mb:128",
        )

    def test_users_key_wins(self):
        merged, refused = settings.merge("expandable_segments:False", [EXPAND], (2, 11))
        self.assertEqual(merged, "expandable_segments:False")
        self.assertIn("user", refused[0][1])

    def test_unknown_to_the_version(self):
        merged, refused = settings.merge("max_split_size_mb:64", [EXPAND], (1, 13))
        self.assertEqual(merged, "max_split_size_mb:64")
        self.assertIn("torch 1.13 does not know", refused[0][1])

    def test_keys(self):
        self.assertEqual(
            settings.keys(
                "roundup_power2_divisions:[256:1,>:8], max_split_size_mb : 64,backend:native"
            ),
            {"roundup_power2_divisions", "max_split_size_mb", "backend"},
        )
        self.assertEqual(settings.keys(""), set())


class Small(unittest.TestCase):
    def test_work_spaces_below_a_small_limit(self):
        for limit, users, spared in (
            ("1073741824", {}, True),
            ("4294967296", {}, False),
            ("", {}, False),
            ("1073741824", {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, False),
        ):
            said = []
            environ = {"MEMROOM_GPU_MEM": limit, **users}
            with mock.patch.dict(os.environ, environ, clear=True):
                settings.install([], lambda *words, **fields: said.append(fields["rounds"]))
                set_now = dict(os.environ)
            self.assertEqual("CUBLASLT_WORKSPACE_SIZE" in set_now, spared, (limit, users))
            self.assertEqual(len(said), spared)


class Variable(unittest.TestCase):
    def test_by_version(self):
        for version, hip, environ, want in (
            ((2, 9), False, {"PYTORCH_ALLOC_CONF": "x"}, "PYTORCH_CUDA_ALLOC_CONF"),
            ((2, 9), True, {}, "PYTORCH_HIP_ALLOC_CONF"),
            ((2, 10), False, {}, "PYTORCH_ALLOC_CONF"),
            (
                (2, 11),
                False,
                {"PYTORCH_CUDA_ALLOC_CONF": "x", "PYTORCH_ALLOC_CONF": "y"},
                "PYTORCH_CUDA_ALLOC_CONF",
            ),
            ((2, 11), False, {"PYTORCH_ALLOC_CONF": "y"}, "PYTORCH_ALLOC_CONF"),
        ):
            self.assertEqual(settings.allocator_variable(version, hip, environ), want)


class Version(unittest.TestCase):
    def test_from_version_py(self):
        with tempfile.TemporaryDirectory() as folder:
            spec = ModuleSpec("torch", None, is_package=True)
            spec.submodule_search_locations = [folder]
            with open(os.path.join(folder, "version.py"), "w") as file:
                file.write(
                    "from typing import Optional\n__version__ = '2.3.1+rocm6.0'\nhip: "
                    "Optional[str] = '6.0'\n"
                )
            self.assertEqual(settings.torch_version(spec), ((2, 3), True))


if __name__ == "__main__":
    unittest.main()
