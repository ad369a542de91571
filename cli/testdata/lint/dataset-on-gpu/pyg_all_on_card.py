import os.path as osp

import torch
import torch.nn.functional as F
from torch_geometric.datasets import MoleculeNet
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_mean_pool

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
path = osp.join(osp.dirname(osp.realpath(__file__)), "data", "pcba")


class Gin(torch.nn.Module):
    def __init__(self, node_in, edge_in, hidden, out, layers):
        super().__init__()
        self.node = torch.nn.Linear(node_in, hidden)
        self.edge = torch.nn.Linear(edge_in, hidden)
        self.convs = torch.nn.ModuleList()
        for _ in range(layers):
            mlp = torch.nn.Sequential(
                torch.nn.Linear(hidden, 2 * hidden),
                torch.nn.ReLU(),
                torch.nn.Linear(2 * hidden, hidden),
            )
            self.convs.append(GINEConv(mlp))
        self.head = torch.nn.Linear(hidden, out)

    def forward(self, data):
        x, e = self.node(data.x.float()), self.edge(data.edge_attr.float())
        for conv in self.convs:
            x = x + F.relu(conv(x, data.edge_index, e))
        return self.head(global_mean_pool(x, data.batch))


dataset = MoleculeNet(path, name="PCBA").shuffle()
cut = int(0.9 * len(dataset))
graphs = [dataset[i] for i in range(len(dataset))]
graphs = [g.to(device) for g in graphs]  # expect: dataset-on-gpu
train_loader = DataLoader(graphs[:cut], batch_size=256, shuffle=True)
test_loader = DataLoader(graphs[cut:], batch_size=256)

model = Gin(dataset.num_node_features, dataset.num_edge_features, 300, dataset.num_classes, 5).to(
    device
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def masked_bce(out, y):
    mask = ~torch.isnan(y)
    return F.binary_cross_entropy_with_logits(out[mask], y[mask])


def train():
    model.train()
    total = 0.0
    for data in train_loader:
        optimizer.zero_grad()
        loss = masked_bce(model(data), data.y)
        loss.backward()
        optimizer.step()
        total += float(loss) * data.num_graphs
    return total / cut


@torch.no_grad()
def test():
    model.eval()
    total, count = 0.0, 0
    for data in test_loader:
        total += float(masked_bce(model(data), data.y)) * data.num_graphs
        count += data.num_graphs
    return total / count


for epoch in range(1, 101):
    print(f"{epoch:03d} train {train():.4f} test {test():.4f}")
