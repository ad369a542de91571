"""Heterogeneous graph transformer over papers, authors and venues, full batch (PyG HGTConv)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.nn import HGTConv, Linear
from torch_geometric.transforms import ToUndirected

seed_everything(12)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if device.type == "cuda":
    N_PAPER, N_AUTHOR, N_VENUE, CITES, WRITES = 40_000, 30_000, 400, 160_000, 90_000
    HIDDEN, HEADS, LAYERS, CLASSES, EPOCHS = 256, 8, 2, 16, 12
else:
    N_PAPER, N_AUTHOR, N_VENUE, CITES, WRITES = 200, 100, 10, 800, 400
    HIDDEN, HEADS, LAYERS, CLASSES, EPOCHS = 16, 2, 2, 4, 10


def make_graph():
    """A planted partition: citations and authorships mostly stay within a field."""
    g = torch.Generator().manual_seed(4)
    field = torch.randint(0, CLASSES, (N_PAPER,), generator=g)
    order = field.argsort()
    bounds = torch.searchsorted(field[order].contiguous(), torch.arange(CLASSES + 1))

    def partner(src_field):
        lo, hi = bounds[src_field], bounds[src_field + 1]
        inside = lo + (torch.rand(len(lo), generator=g) * (hi - lo).clamp(min=1)).long()
        inside = order[inside.clamp(max=N_PAPER - 1)]
        anywhere = torch.randint(0, N_PAPER, (len(lo),), generator=g)
        return torch.where(torch.rand(len(lo), generator=g) < 0.8, inside, anywhere)

    data = HeteroData()
    centre = torch.randn(CLASSES, 128, generator=g)
    data["paper"].x = centre[field] + 3 * torch.randn(N_PAPER, 128, generator=g)
    data["paper"].y = field
    split = torch.rand(N_PAPER, generator=g)
    data["paper"].train_mask, data["paper"].val_mask = split < 0.6, split >= 0.8
    data["author"].x = torch.randn(N_AUTHOR, 64, generator=g)
    data["venue"].num_nodes = N_VENUE

    src = torch.randint(0, N_PAPER, (CITES,), generator=g)
    data["paper", "cites", "paper"].edge_index = torch.stack([src, partner(field[src])])
    who = torch.randint(0, N_AUTHOR, (WRITES,), generator=g)
    data["author", "writes", "paper"].edge_index = torch.stack([who, partner(who % CLASSES)])
    venue = (field * (N_VENUE // CLASSES)) + torch.randint(
        0, N_VENUE // CLASSES, (N_PAPER,), generator=g
    )
    data["paper", "in", "venue"].edge_index = torch.stack([torch.arange(N_PAPER), venue])
    return ToUndirected(merge=False)(data)


class HGT(nn.Module):
    def __init__(self, metadata):
        super().__init__()
        self.enter = nn.ModuleDict({"paper": Linear(128, HIDDEN), "author": Linear(64, HIDDEN)})
        self.venue = nn.Embedding(N_VENUE, HIDDEN)
        self.convs = nn.ModuleList(HGTConv(HIDDEN, HIDDEN, metadata, HEADS) for _ in range(LAYERS))
        self.norms = nn.ModuleList(
            nn.ModuleDict({kind: nn.LayerNorm(HIDDEN) for kind in metadata[0]})
            for _ in range(LAYERS)
        )
        self.classify = nn.Sequential(nn.Dropout(0.2), nn.Linear(HIDDEN, CLASSES))
        self.author_vote = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict, edge_index_dict):
        h = {kind: F.gelu(lin(x_dict[kind])) for kind, lin in self.enter.items()}
        h["venue"] = self.venue.weight
        for conv, norm in zip(self.convs, self.norms, strict=True):
            out = conv(h, edge_index_dict)
            h = {kind: norm[kind](F.dropout(x, 0.2, self.training)) for kind, x in out.items()}
        return self.classify(h["paper"]), self.author_vote(h["author"])


data = make_graph()
print(data.num_nodes, "nodes", data.num_edges, "edges")
model = HGT(data.metadata()).to(device)
data = data.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=EPOCHS + 1)

writes = data["author", "writes", "paper"].edge_index
train_mask = data["paper"].train_mask
kept = writes[:, train_mask[writes[1]]]

for epoch in range(EPOCHS):
    model.train()
    optimizer.zero_grad()
    paper, author = model(data.x_dict, data.edge_index_dict)
    label = data["paper"].y
    loss = F.cross_entropy(paper[train_mask], label[train_mask], label_smoothing=0.05)
    # authors should predict the field of the papers they wrote
    aux = F.cross_entropy(author[kept[0]], label[kept[1]])
    loss = loss + 0.3 * aux
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    print(f"step {epoch} loss {loss.item():.6f}", flush=True)
    if epoch % 4 == 3:
        model.eval()
        with torch.no_grad():
            paper, _ = model(data.x_dict, data.edge_index_dict)
        val = data["paper"].val_mask
        hit = (paper[val].argmax(-1) == label[val]).float().mean()
        print(f"  val accuracy {hit.item():.4f}")
