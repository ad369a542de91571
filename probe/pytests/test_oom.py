"""Which wall an exception is about."""

import unittest

from _memroom_probe import oom


def error(module, name, text, base=RuntimeError):
    """An exception as a library raises it, without the library."""
    return type(name, (base,), {"__module__": module})(text)


class Walls(unittest.TestCase):
    def test_walls(self):
        for expected, exception in (
            (
                "gpu",
                error(
                    "torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"
                ),
            ),
            (
                "gpu",
                error(
                    "cupy.cuda.memory",
                    "OutOfMemoryError",
                    "Out of memory allocating 8,192 bytes",
                    MemoryError,
                ),
            ),
            ("mps", error("torch", "OutOfMemoryError", "MPS backend out of memory")),
            (
                "host",
                error(
                    "ray.exceptions",
                    "OutOfMemoryError",
                    "1 worker(s) were killed due to the node running low on memory.",
                ),
            ),
            (
                "host",
                error(
                    "tensorflow",
                    "ResourceExhaustedError",
                    "OOM when allocating tensor on /device:CPU:0 by allocator cpu",
                ),
            ),
            ("host", MemoryError()),
            ("shm", RuntimeError("DataLoader worker (pid 3) is killed by signal: Bus error.")),
            ("", OSError(28, "No space left on device", "/data/checkpoint.pt")),
            ("", ValueError("shapes do not match")),
        ):
            with self.subTest(exception=repr(exception)):
                self.assertEqual(oom.wall(exception), expected)

    def test_the_first_of_a_chain(self):
        try:
            try:
                raise MemoryError("first")
            except MemoryError:
                raise KeyError("second")  # noqa: B904  # the context is what is tested
        except KeyError as second:
            self.assertEqual(oom.describe(second)["where"], "host")


if __name__ == "__main__":
    unittest.main()
