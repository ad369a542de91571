"""A small model, and what a script computes itself of its results, which needs most memory."""

import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from card import ASKED, Card, run_on


def net(i, o, width=16):
    return nn.Sequential(nn.Linear(i, width), nn.Tanh(), nn.Linear(width, o))


def steps(model, loss_of, count=4):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(count):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def simulated():
    """A network says how fast a field spreads in each region; the field is then let spread."""
    model, places = net(2, 1), torch.rand(12 * 12, 2)
    begin, wanted = torch.rand(48, 48), torch.rand(48, 48)

    def loss():
        speed = torch.sigmoid(model(places)).view(12, 12)
        speed = speed.repeat_interleave(4, 0).repeat_interleave(4, 1)
        field = begin
        for _ in range(12):
            around = field.roll(1, 0) + field.roll(-1, 0) + field.roll(1, 1) + field.roll(-1, 1)
            field = field + 0.2 * speed * torch.tanh(around - 4 * field)
        return (field - wanted).square().mean()

    return steps(model, loss)


def rendered():
    """Colours along rays by a network, and what is seen of them."""
    model, points = net(3, 4, 8), torch.rand(40, 64, 3)

    def loss():
        seen = model(points)
        dense = F.softplus(seen[..., :1]).expand(-1, -1, 24)
        alpha = 1 - torch.exp(-dense * torch.linspace(0.1, 2, 24))
        through = torch.cumprod(1.001 - alpha, 1)
        weight = alpha * through * torch.sigmoid(through) * torch.tanh(alpha)
        light = (weight.exp() - 1).sin().square()
        return (light.mean(-1, keepdim=True) * seen[..., 1:].sigmoid()).sum(1).square().mean()

    return steps(model, loss)


def compared():
    """Every sample with every other one, by a chain of functions."""
    model, x = net(6, 12), torch.randn(96, 6)

    def loss():
        z = F.normalize(model(x), dim=1)
        near = z @ z.t()
        for scale in (1.0, 2.0, 3.0, 4.0, 5.0):
            near = torch.tanh(scale * near) * torch.sigmoid(near)
        return near.logsumexp(1).mean()

    return steps(model, loss)


def usual():
    """The model is what needs the memory."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.GELU()) for _ in range(8)))
    x = torch.randn(256, 48)
    return steps(model, lambda: F.mse_loss(model(x), x))


class Between(unittest.TestCase):
    def pair(self, loop, share):
        plenty = Card()
        whole, _ = run_on(loop, plenty)
        limit = int(share * plenty.most)
        with self.assertRaises(torch.cuda.OutOfMemoryError):
            run_on(loop, Card(limit))
        got, told = run_on(loop, Card(limit), ASKED)
        self.assertFalse(torch._C._autograd._top_saved_tensors_default_hooks(True))
        return whole, got, told

    def test_it_waits_in_host_memory(self):
        for loop in (simulated, rendered, compared):
            with self.subTest(loop=loop.__name__):
                whole, got, told = self.pair(loop, 0.65)
                self.assertEqual(got, whole, told.text())
                self.assertIn("between the calls of modules", told.text())

    def test_only_what_has_no_room_waits(self):
        """And the model, which did not run out, is left as it is."""
        plenty, most = Card(), []
        whole, _ = run_on(compared, plenty)
        for share in (0.5, 0.8):
            card = Card(int(share * plenty.most))
            got, told = run_on(compared, card, ASKED)
            self.assertEqual(got, whole, told.text())
            self.assertIn("the whole batch fits as it is", told.text())
            most.append(card.most)
        self.assertGreater(most[1], 1.2 * most[0])

    def test_not_where_the_model_explains_it(self):
        whole, got, told = self.pair(usual, 0.65)
        self.assertEqual(len(got), len(whole), told.text())
        self.assertNotIn("between the calls of modules", told.text())

    def test_it_stops_where_all_of_it_fits(self):
        """It was not what ran out: after the first step it stays on the card."""
        whole, _ = run_on(compared, Card())
        got, told = run_on(compared, Card(1 << 40), ASKED)
        self.assertEqual(got, whole, told.text())
        self.assertNotIn("between the calls of modules", told.text())

    def test_transforms_find_no_hooks(self):
        """They refuse to run where hooks are."""

        def loop():
            model, x = net(6, 1), torch.randn(32, 6)

            def loss():
                slopes = torch.func.vmap(torch.func.grad(lambda v: v.square().sum()))(x)
                return (model(x + slopes) ** 2).mean()

            return steps(model, loss)

        whole, _ = run_on(loop, Card())
        got, told = run_on(loop, Card(1 << 40), ASKED)
        self.assertEqual(got, whole, told.text())


if __name__ == "__main__":
    unittest.main()
