"""Indices that a part of the batch has no place for."""

import unittest
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.batch import tryout
from _memroom_probe.fit.batch.inputs import Cannot, Inputs
from _memroom_probe.fit.calls import bounds

CARD = torch.device("cuda")
X = torch.zeros(4, 3)


def numbers(*values):
    return torch.tensor(values)


# what: (a function of an index, the least and the largest that is there)
WAYS = {
    "brackets": (lambda i: X[numbers(0, i)], -4, 3),
    "second in brackets": (lambda i: X[:, numbers(i)], -3, 2),
    "behind a mask": (lambda i: X.expand(2, 4, 3)[torch.ones(2, 4).bool(), numbers(i)], -3, 2),
    "put": (lambda i: X.clone().index_put((numbers(i),), torch.ones(3)), -4, 3),
    "assigned": (lambda i: X.clone().__setitem__(numbers(i), 1.0), -4, 3),
    "gather": (lambda i: X.gather(1, numbers(i).expand(4, 1)), 0, 2),
    "scatter": (lambda i: X.scatter(0, numbers(i).expand(1, 3), 1.0), 0, 3),
    "scatter_add": (lambda i: X.clone().scatter_add_(-1, numbers(i).expand(4, 1), X), 0, 2),
    "index_select": (lambda i: X.index_select(0, numbers(i)), 0, 3),
    "index_add": (lambda i: X.index_add(0, numbers(i), torch.ones(1, 3)), 0, 3),
    "embedding": (lambda i: F.embedding(numbers(i), X), 0, 3),
    "bag": (lambda i: F.embedding_bag(numbers(i, 0), X, numbers(0)), 0, 3),
    "take": (lambda i: X.take(numbers(i)), -12, 11),
    "classes": (lambda i: F.cross_entropy(X, numbers(i, 0, -100, 1)), 0, 2),
    "classes of pictures": (
        lambda i: F.cross_entropy(X.view(1, 4, 3, 1), numbers(i, 0, 1).view(1, 3, 1)),
        0,
        3,
    ),
}


class Negatives(nn.Module):
    """Each step of a sequence is compared with steps of all sequences, which an argument names."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x, others):
        y = self.layer(x)
        return (y * y.flatten(0, 1)[others]).sum(-1)


class Bounds(unittest.TestCase):
    def test_every_way_to_name_a_place(self):
        for name, (of, least, most) in WAYS.items():
            with self.subTest(name), bounds.checked(CARD):
                of(least), of(most)
                for outside in (least - 1, most + 1):
                    with self.assertRaisesRegex(IndexError, "is named where there are"):
                        of(outside)

    def test_what_names_nothing(self):
        with bounds.checked(CARD):
            X[numbers().long()]
            F.cross_entropy(X, torch.full((4,), -100))
            X[X > 0]

    def test_a_device_that_says_so_itself(self):
        with bounds.checked(torch.device("cpu")), self.assertRaises(IndexError) as caught:
            X[numbers(9)]
        self.assertNotIn("is named", str(caught.exception))

    def test_a_trial_with_a_part_of_the_batch(self):
        module, others = Negatives(), torch.arange(32).flip(0).view(8, 4)
        given = Inputs((torch.randn(8, 4, 5), others), {})
        with mock.patch.object(bounds, "SAY_SO", ()):
            with self.assertRaisesRegex(Cannot, "part of the batch: IndexError: 31 is named"):
                tryout.try_out(module, module, given)
            found = tryout.try_out(module.layer, module.layer, Inputs((torch.randn(8, 5),), {}))
        self.assertEqual(len(found.outputs), 1)


if __name__ == "__main__":
    unittest.main()
