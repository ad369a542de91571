"""Link prediction on a synthetic knowledge graph: R-GCN encoder and DistMult decoder (PyG)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import RGCNConv
from torch_geometric.utils import dropout_edge

torch.manual_seed(8)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if device.type == "cuda":
    num_nodes, num_edges, num_rels, dim, batch, epochs = 40_000, 240_000, 30, 256, 60_000, 10
else:
    num_nodes, num_edges, num_rels, dim, batch, epochs = 300, 2000, 4, 16, 500, 8


def make_graph():
    """Entities have a hidden type; a relation links fixed pairs of types."""
    types = torch.randint(0, 12, (num_nodes,))
    by_type = [torch.nonzero(types == t).view(-1) for t in range(12)]
    pairs = torch.randint(0, 12, (num_rels, 2))
    rel = torch.randint(0, num_rels, (num_edges,))
    head, tail = torch.empty_like(rel), torch.empty_like(rel)
    for r in range(num_rels):
        rows = torch.nonzero(rel == r).view(-1)
        a, b = by_type[pairs[r, 0]], by_type[pairs[r, 1]]
        head[rows] = a[torch.randint(0, len(a), (len(rows),))]
        tail[rows] = b[torch.randint(0, len(b), (len(rows),))]
    return torch.stack([head, tail]), rel


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.entities = nn.Parameter(torch.empty(num_nodes, dim))
        nn.init.xavier_uniform_(self.entities)
        self.conv1 = RGCNConv(dim, dim, 2 * num_rels, num_bases=8)
        self.conv2 = RGCNConv(dim, dim, 2 * num_rels, num_bases=8)

    def forward(self, edge_index, edge_type):
        x = F.relu(self.conv1(self.entities, edge_index, edge_type))
        x = F.dropout(x, 0.2, self.training)
        return self.conv2(x, edge_index, edge_type)


class DistMult(nn.Module):
    def __init__(self):
        super().__init__()
        self.relations = nn.Parameter(torch.empty(num_rels, dim))
        nn.init.xavier_uniform_(self.relations)

    def forward(self, z, edge_index, edge_type):
        return (z[edge_index[0]] * self.relations[edge_type] * z[edge_index[1]]).sum(-1)


def corrupt(edge_index):
    edge_index = edge_index.clone()
    flip = torch.rand(edge_index.size(1), device=device) < 0.5
    random = torch.randint(0, num_nodes, (edge_index.size(1),), device=device)
    edge_index[0] = torch.where(flip, random, edge_index[0])
    edge_index[1] = torch.where(flip, edge_index[1], random)
    return edge_index


edge_index, edge_type = (t.to(device) for t in make_graph())
order = torch.randperm(num_edges, device=device)
held_out, train = order[: num_edges // 20], order[num_edges // 20 :]
train_edges, train_types = edge_index[:, train], edge_type[train]

encoder, decoder = Encoder().to(device), DistMult().to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)


def message_edges(drop):
    """Both directions of the training edges, each direction with its own relation id."""
    kept, mask = dropout_edge(train_edges, p=drop, training=drop > 0)
    types = train_types[mask]
    both = torch.cat([kept, kept.flip(0)], dim=1)
    return both, torch.cat([types, types + num_rels])


@torch.no_grad()
def evaluate():
    encoder.eval()
    z = encoder(*message_edges(0.0))
    positive = decoder(z, edge_index[:, held_out], edge_type[held_out])
    negative = decoder(z, corrupt(edge_index[:, held_out]), edge_type[held_out])
    return (positive > negative).float().mean().item()


for step in range(epochs):
    encoder.train()
    optimizer.zero_grad()
    z = encoder(*message_edges(0.3))
    pick = torch.randint(0, train.numel(), (batch,), device=device)
    pos, rel = train_edges[:, pick], train_types[pick]
    scores = torch.cat([decoder(z, pos, rel), decoder(z, corrupt(pos), rel)])
    labels = torch.cat([torch.ones(batch), torch.zeros(batch)]).to(device)
    loss = F.binary_cross_entropy_with_logits(scores, labels)
    loss = loss + 1e-2 * (z.pow(2).mean() + decoder.relations.pow(2).mean())
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    if (step + 1) % 5 == 0:
        print(f"  held-out ranking accuracy {evaluate():.4f}")
