"""Traffic on a road network: gated temporal convolutions and edge-gated message passing (PyG)."""

import math

import torch
import torch.nn as nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, to_undirected

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(37)

batch_size = 48 if large else 4
sensors = 300 if large else 20
hidden = 64 if large else 8
depth = 4 if large else 2
history, horizon = 24, 6


class RoadConv(MessagePassing):
    """Messages along roads, gated by both ends and by the length of the road."""

    def __init__(self, channels):
        super().__init__(aggr="mean", node_dim=-2)
        self.value = nn.Linear(channels, channels)
        self.to_gate = nn.Linear(channels, channels)
        self.from_gate = nn.Linear(channels, channels)
        self.road = nn.Linear(1, channels)

    def forward(self, x, edge_index, length):
        return self.propagate(
            edge_index, v=self.value(x), a=self.to_gate(x), b=self.from_gate(x), length=length
        )

    def message(self, v_j, a_i, b_j, length):
        return torch.sigmoid(a_i + b_j + self.road(length)) * v_j


class GLUConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, 2 * cout, (3, 1), padding=(1, 0))

    def forward(self, x):  # batch, time, node, channel
        return nn.functional.glu(self.conv(x.permute(0, 3, 1, 2)), dim=1).permute(0, 2, 3, 1)


class STBlock(nn.Module):
    def __init__(self, cin):
        super().__init__()
        self.first, self.second = GLUConv(cin, hidden), GLUConv(hidden, hidden)
        self.space = RoadConv(hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x, edge_index, length):
        h = self.first(x)
        h = torch.relu(self.space(h, edge_index, length)) + h
        return self.norm(self.second(h))


class STGCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(STBlock(2 if i == 0 else hidden) for i in range(depth))
        self.head = nn.Linear(hidden * history, horizon)

    def forward(self, x, edge_index, length):
        for block in self.blocks:
            x = block(x, edge_index, length)
        return self.head(x.transpose(1, 2).flatten(2)).transpose(1, 2)


def road_network(g):
    places = torch.rand(sensors, 2, generator=g)
    near = torch.cdist(places, places).topk(5, largest=False).indices[:, 1:]
    edges = torch.stack([near.flatten(), torch.arange(sensors).repeat_interleave(4)])
    edges, _ = add_self_loops(to_undirected(edges), num_nodes=sensors)
    length = (places[edges[0]] - places[edges[1]]).norm(dim=1, keepdim=True)
    return edges, length


def simulate(g, edges, days=4):
    """Rush hours with a phase per sensor, smoothed over the roads."""
    steps = days * 288
    t = torch.arange(steps)[:, None] / 288
    phase = torch.rand(sensors, generator=g)
    flow = torch.sin(2 * math.pi * (t + phase)) + 0.5 * torch.sin(4 * math.pi * (t - phase))
    mixed = torch.zeros_like(flow).index_add_(1, edges[1], flow[:, edges[0]])
    degree = torch.bincount(edges[1], minlength=sensors)
    flow = mixed / degree + 0.1 * torch.randn(steps, sensors, generator=g)
    clock = torch.sin(2 * math.pi * t).expand_as(flow)
    return torch.stack([flow, clock], dim=-1)


def main():
    g = torch.Generator().manual_seed(2)
    edges, length = road_network(g)
    series = simulate(g, edges)
    edges, length = edges.to(device), length.to(device)
    model = STGCN().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)
    for step in range(12):
        start = torch.randint(0, len(series) - history - horizon, (batch_size,), generator=g)
        past = torch.stack([series[s : s + history] for s in start]).to(device)
        future = torch.stack([series[s + history : s + history + horizon, :, 0] for s in start])
        future = future.to(device)
        missing = torch.rand(future.shape, generator=g).to(device) < 0.1
        error = (model(past, edges, length) - future).abs()
        loss = error.masked_fill(missing, 0.0).sum() / (~missing).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.6f}")


main()
