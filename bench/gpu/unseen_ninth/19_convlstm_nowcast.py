"""Precipitation nowcasting with an encoder-forecaster ConvLSTM and scheduled sampling."""

import random

import torch
import torch.nn as nn

SEED = 2718
random.seed(SEED)
torch.manual_seed(SEED)
device = "cuda" if torch.cuda.is_available() else "cpu"

SIDE, T_IN, T_OUT, HIDDEN, BATCH, ACCUM, UPDATES = 64, 10, 10, (64, 64), 10, 2, 8
if device == "cpu":
    SIDE, T_IN, T_OUT, HIDDEN, BATCH, ACCUM, UPDATES = 16, 3, 3, (8, 8), 2, 2, 8


class ConvLSTMCell(nn.Module):
    def __init__(self, cin, hidden, kernel=5):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(cin + hidden, 4 * hidden, kernel, padding=kernel // 2)
        self.norm = nn.GroupNorm(4, 4 * hidden)
        # peephole weights, one per channel
        self.peep = nn.Parameter(torch.zeros(3, hidden, 1, 1))

    def init_state(self, x):
        shape = (x.size(0), self.hidden, x.size(2), x.size(3))
        return x.new_zeros(shape), x.new_zeros(shape)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = self.norm(self.gates(torch.cat([x, h], 1))).chunk(4, 1)
        i = torch.sigmoid(i + self.peep[0] * c)
        f = torch.sigmoid(f + self.peep[1] * c + 1.0)
        c = f * c + i * torch.tanh(g)
        o = torch.sigmoid(o + self.peep[2] * c)
        h = o * torch.tanh(c)
        return h, (h, c)


class Nowcaster(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [1, *HIDDEN]
        pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.encoder = nn.ModuleList(ConvLSTMCell(a, b) for a, b in pairs)
        self.forecaster = nn.ModuleList(ConvLSTMCell(a, b) for a, b in pairs)
        self.readout = nn.Sequential(
            nn.Conv2d(sum(HIDDEN), 32, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(32, 1, 1)
        )

    def step(self, cells, x, states):
        outputs, new = [], []
        for cell, state in zip(cells, states, strict=True):
            x, state = cell(x, state)
            outputs.append(x)
            new.append(state)
        return torch.cat(outputs, 1), new

    def forward(self, past, future=None, teacher_prob=0.0):
        states, x = [], past[:, 0]
        for cell in self.encoder:
            states.append(cell.init_state(x))
            x = states[-1][0]
        for t in range(past.size(1)):
            _, states = self.step(self.encoder, past[:, t], states)
        frame, frames = past[:, -1], []
        for t in range(T_OUT):
            features, states = self.step(self.forecaster, frame, states)
            prediction = torch.sigmoid(self.readout(features))
            frames.append(prediction)
            teach = future is not None and random.random() < teacher_prob
            frame = future[:, t] if teach else prediction
        return torch.stack(frames, 1)


@torch.no_grad()
def radar_sequences(n):
    """Gaussian rain cells that drift and decay."""
    cells = 5
    grid = torch.linspace(0, 1, SIDE, device=device)
    pos = torch.rand(n, cells, 2, device=device)
    vel = 0.03 * torch.randn(n, cells, 2, device=device)
    size = 0.03 + 0.07 * torch.rand(n, cells, 1, 1, device=device)
    rate = 0.5 + torch.rand(n, cells, 1, 1, device=device)
    frames = []
    for t in range(T_IN + T_OUT):
        p = (pos + t * vel) % 1.0
        dy = grid[None, None, :, None] - p[..., 0, None, None]
        dx = grid[None, None, None, :] - p[..., 1, None, None]
        rain = rate * 0.98**t * torch.exp(-(dy**2 + dx**2) / (2 * size**2))
        frames.append(rain.sum(1).clamp(max=1))
    video = torch.stack(frames, 1).unsqueeze(2)
    return video[:, :T_IN], video[:, T_IN:]


def balanced_loss(pred, target):
    # heavier rain counts more, as in the operational scores
    weight = 1 + 4 * (target > 0.2) + 10 * (target > 0.5)
    return (weight * ((pred - target) ** 2 + (pred - target).abs())).mean()


@torch.no_grad()
def critical_success_index(model, threshold=0.3):
    past, future = radar_sequences(BATCH)
    hit, truth = model(past) > threshold, future > threshold
    return ((hit & truth).sum() / (hit | truth).sum().clamp(min=1)).item()


model = Nowcaster().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9)
for update in range(UPDATES):
    teacher_prob = max(0.0, 1 - update / (0.75 * UPDATES))
    total = 0.0
    for _ in range(ACCUM):
        past, future = radar_sequences(BATCH)
        loss = balanced_loss(model(past, future, teacher_prob), future) / ACCUM
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {update} loss {total:.6f}", flush=True)
print(f"critical success index {critical_success_index(model):.4f}")
