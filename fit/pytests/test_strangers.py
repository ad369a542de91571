"""Loops as people publish them: flat networks with BatchNorm, recurrent networks whose state is
carried on, updates written by hand, losses over a part of what a network returns.
"""

import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from card import ASKED, Card, run_on
from training import furthest


def flat_with_norms():
    """One Sequential of layers, none of which is a block."""
    body = []
    for _ in range(6):
        body += [nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()]
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        *body,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        x, y = torch.randn(16, 3, 12, 12), torch.randint(0, 4, (16,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
    for norm in model:
        if isinstance(norm, nn.BatchNorm2d):
            yield float(norm.running_mean.sum())
            yield float(norm.num_batches_tracked)


class Written(nn.Module):
    """Layers by name, and a forward written by hand."""

    def __init__(self):
        super().__init__()
        for i in range(6):
            setattr(self, "conv%d" % i, nn.Conv2d(3 if i == 0 else 12, 12, 3, padding=1))
            setattr(self, "norm%d" % i, nn.BatchNorm2d(12))
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(12, 4)

    def forward(self, x):
        x = F.relu(self.norm0(self.conv0(x)))
        x = F.relu(self.norm1(self.conv1(x))) + x
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x))) + x
        x = F.relu(self.norm4(self.conv4(x)))
        x = F.relu(self.norm5(self.conv5(x)))
        return self.out(self.drop(x.mean((2, 3))))


def written_by_hand():
    model = Written()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(6):
        x, y = torch.randn(16, 3, 12, 12), torch.randint(0, 4, (16,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
    yield float(model.norm3.running_var.sum())
    yield float(model.norm3.num_batches_tracked)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(300, 24)
        self.rnn, self.decoder = nn.LSTM(24, 24, 2, dropout=0.2), nn.Linear(24, 300)

    def forward(self, words, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        decoded = self.decoder(self.drop(out)).view(-1, 300)
        return F.log_softmax(decoded, dim=1), hidden


def words_by_lstm():
    """The state is carried on and detached; the update is written by hand."""
    model, criterion = Words(), nn.NLLLoss()
    state = torch.zeros(2, 8, 24), torch.zeros(2, 8, 24)
    model.train()
    for _ in range(6):
        words = torch.randint(0, 300, (15, 8))
        model.zero_grad()
        state = tuple(part.detach() for part in state)
        out, state = model(words, state)
        loss = criterion(out, words.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-1.0)
        yield loss.item()


class Shortened(nn.Module):
    def __init__(self, padding):
        super().__init__()
        self.padding = padding

    def forward(self, x):
        return x[:, :, : -self.padding].contiguous()


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.drop = nn.Embedding(200, 16), nn.Dropout(0.1)
        layers = []
        for i in range(4):
            layers += [
                nn.Conv1d(16, 16, 2, padding=2**i, dilation=2**i),
                Shortened(2**i),
                nn.ReLU(),
            ]
        self.body, self.decoder = nn.Sequential(*layers), nn.Linear(16, 200)

    def forward(self, words):
        y = self.body(self.drop(self.encoder(words)).transpose(1, 2))
        return self.decoder(y.transpose(1, 2)).contiguous()


def loss_over_a_slice():
    """Only what has enough history behind it counts."""
    model = Convolved()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(6):
        words = torch.randint(0, 200, (8, 24))
        out = model(words)
        late, targets = out[:, 10:].contiguous().view(-1, 200), words[:, 10:].contiguous().view(-1)
        loss = F.cross_entropy(late, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Strangers(unittest.TestCase):
    def through(self, loop, share, asked):
        plenty = Card()
        whole, _ = run_on(loop, plenty)
        limit = int(share * plenty.most)
        with self.assertRaises(torch.cuda.OutOfMemoryError):
            run_on(loop, Card(limit))
        got, told = run_on(loop, Card(limit), asked)
        self.assertEqual(len(got), len(whole), told.text())
        self.assertLess(furthest(whole, got), 1e-6, told.text())
        return told

    def test_a_flat_sequential_is_checkpointed_in_runs(self):
        told = self.through(flat_with_norms, 0.7, ASKED[:2])
        self.assertIn("applied", told.kinds("checkpointing"), told.text())

    def test_a_forward_written_by_hand(self):
        self.through(written_by_hand, 0.7, ASKED)

    def test_words_by_a_recurrent_network(self):
        self.through(words_by_lstm, 0.92, ASKED)

    def test_a_loss_over_a_slice(self):
        self.through(loss_over_a_slice, 0.92, ASKED)


if __name__ == "__main__":
    unittest.main()
