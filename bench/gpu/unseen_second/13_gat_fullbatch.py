import os

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

tiny = os.environ.get("TINY") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(12345)

num_nodes = 50 if tiny else 40_000
num_edges = 200 if tiny else 480_000
num_features = 8 if tiny else 256
num_classes = 3 if tiny else 40
hidden, heads = (4, 2) if tiny else (64, 4)


class GAT(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, heads):
        super().__init__()
        self.conv1 = GATConv(in_channels, hidden_channels, heads, dropout=0.3)
        self.lin1 = torch.nn.Linear(in_channels, heads * hidden_channels)
        self.conv2 = GATConv(heads * hidden_channels, hidden_channels, heads, dropout=0.3)
        self.lin2 = torch.nn.Linear(heads * hidden_channels, heads * hidden_channels)
        self.conv3 = GATConv(
            heads * hidden_channels, out_channels, heads=2, concat=False, dropout=0.3
        )
        self.lin3 = torch.nn.Linear(heads * hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.3, training=self.training)
        x = F.elu(self.conv1(x, edge_index) + self.lin1(x))
        x = F.dropout(x, p=0.3, training=self.training)
        x = F.elu(self.conv2(x, edge_index) + self.lin2(x))
        x = F.dropout(x, p=0.3, training=self.training)
        return self.conv3(x, edge_index) + self.lin3(x)


def make_graph():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, num_classes, (num_nodes,), generator=g)
    centers = torch.randn(num_classes, num_features, generator=g)
    x = centers[y] + 2.0 * torch.randn(num_nodes, num_features, generator=g)
    src = torch.randint(0, num_nodes, (num_edges,), generator=g)
    dst = torch.randint(0, num_nodes, (num_edges,), generator=g)
    edge_index = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    order = torch.randperm(num_nodes, generator=g)
    train_mask = torch.zeros(num_nodes, dtype=torch.bool)
    val_mask = torch.zeros(num_nodes, dtype=torch.bool)
    train_mask[order[: num_nodes // 2]] = True
    val_mask[order[num_nodes // 2 : num_nodes * 3 // 4]] = True
    return Data(x=x, edge_index=edge_index, y=y, train_mask=train_mask, val_mask=val_mask)


data = make_graph().to(device)
model = GAT(num_features, hidden, num_classes, heads).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index).argmax(dim=-1)
    return [(pred[m] == data.y[m]).float().mean().item() for m in (data.train_mask, data.val_mask)]


best_val = 0.0
for epoch in range(24):
    loss = train()
    print(f"step {epoch} loss {loss:.9f}", flush=True)
    if epoch % 6 == 5:
        tr, va = test()
        best_val = max(best_val, va)
        print(f"epoch {epoch} train {tr:.4f} val {va:.4f} best {best_val:.4f}")
