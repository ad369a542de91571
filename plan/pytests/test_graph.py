"""The graph of a Keras step: operations whose inside is not known."""

import unittest
from types import SimpleNamespace

from _memroom_probe.rehearse import graph, recorder

FLOAT = SimpleNamespace(name="float32", size=4)
VARIANT = SimpleNamespace(name="variant", size=0)


def tensor(dtype, *shape):
    form = SimpleNamespace(rank=len(shape), as_list=lambda: list(shape))
    return SimpleNamespace(dtype=dtype, shape=form)


class Functions:
    """A graph that has none of the functions it is asked for: one says so, another raises."""

    def __init__(self, error=None):
        self.error = error

    def _get_function(self, name):
        if self.error is not None:
            raise self.error
        return None


def operation(kind, functions, *outputs):
    return SimpleNamespace(
        type=kind,
        name="layer/%s" % kind,
        graph=functions,
        get_attr=lambda attribute: SimpleNamespace(name=attribute),
        outputs=outputs,
        inputs=(),
    )


class WithoutBody(unittest.TestCase):
    def sizes(self, kind, functions=None):
        outputs = tensor(FLOAT, 2, 3), tensor(VARIANT), tensor(FLOAT, 5)
        op = operation(kind, functions or Functions(), *outputs)
        played = graph.Player(recorder.Recorder()).play(op, [], {}, False)
        return [value and value.size for value in played]

    def test_a_call_takes_its_results(self):
        self.assertEqual(self.sizes("PartitionedCall"), [24, None, 20])
        self.assertEqual(self.sizes("If"), [24, None, 20])

    def test_a_loop_takes_its_results(self):
        self.assertEqual(self.sizes("While"), [24, None, 20])
        self.assertEqual(self.sizes("StatelessWhile"), [24, None, 20])

    def test_a_function_that_cannot_be_had(self):
        unknown = Functions(ValueError("no such function"))
        self.assertEqual(self.sizes("While", unknown), [24, None, 20])


if __name__ == "__main__":
    unittest.main()
