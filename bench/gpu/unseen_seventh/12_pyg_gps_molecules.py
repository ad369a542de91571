# Molecule-property regression with TransformerConv layers on batches of PyG graphs (10 targets).
import torch
import torch.nn.functional as F
from torch.nn import BatchNorm1d, Embedding, Linear, ModuleList, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import JumpingKnowledge, TransformerConv, global_add_pool, global_mean_pool

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")

N_TRAIN = 1280 if CUDA else 12
N_VALID = 128 if CUDA else 4
BATCH = 256 if CUDA else 4
HIDDEN = 256 if CUDA else 16
LAYERS = 5 if CUDA else 2
HEADS = 4 if CUDA else 2
TARGETS = 10
EPOCHS = 2


def random_molecule(g):
    n = int(torch.randint(40, 90, (1,), generator=g)) if CUDA else 8
    atoms = torch.randint(0, 28, (n,), generator=g)
    parent = (torch.rand(n - 1, generator=g) * torch.arange(1, n)).long()
    child = torch.arange(1, n)
    extra = torch.randint(0, n, (2, 2 * n), generator=g)
    src = torch.cat([parent, child, extra[0], extra[1]])
    dst = torch.cat([child, parent, extra[1], extra[0]])
    bond = torch.randint(0, 5, (src.numel(),), generator=g)
    hist = torch.bincount(atoms, minlength=28).float() / n
    y = torch.stack([hist[k::TARGETS].sum() for k in range(TARGETS)])
    y = 4 * y + 0.5 * torch.randn(TARGETS, generator=g)
    return Data(x=atoms, edge_index=torch.stack([src, dst]), edge_attr=bond, y=y.unsqueeze(0))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.atom = Embedding(28, HIDDEN)
        self.bond = Embedding(5, HIDDEN)
        self.convs = ModuleList()
        self.bns = ModuleList()
        for _ in range(LAYERS):
            self.convs.append(
                TransformerConv(HIDDEN, HIDDEN // HEADS, heads=HEADS, edge_dim=HIDDEN, beta=True)
            )
            self.bns.append(BatchNorm1d(HIDDEN))
        self.jk = JumpingKnowledge("cat")
        self.readout = Sequential(
            Linear(2 * LAYERS * HIDDEN, HIDDEN), ReLU(), Linear(HIDDEN, TARGETS)
        )

    def forward(self, data):
        x = self.atom(data.x)
        e = self.bond(data.edge_attr)
        xs = []
        for conv, bn in zip(self.convs, self.bns):
            x = x + F.relu(bn(conv(x, data.edge_index, e)))
            xs.append(x)
        h = self.jk(xs)
        pooled = [global_mean_pool(h, data.batch), global_add_pool(h, data.batch) / 50.0]
        return self.readout(torch.cat(pooled, dim=-1))


def train(model, loader, optimizer, epoch):
    model.train()
    total = 0.0
    for i, data in enumerate(loader):
        data = data.to(device)
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(data), data.y)
        loss.backward()
        optimizer.step()
        total += loss.item() * data.num_graphs
        print(f"epoch {epoch} batch {i} loss {loss.item():.8f}", flush=True)
    return total / len(loader.dataset)


@torch.no_grad()
def test(model, loader):
    model.eval()
    err = 0.0
    for data in loader:
        data = data.to(device)
        err += (model(data) - data.y).abs().sum().item()
    return err / (len(loader.dataset) * TARGETS)


torch.manual_seed(2024)
rng = torch.Generator().manual_seed(2024)
mols = [random_molecule(rng) for _ in range(N_TRAIN + N_VALID)]
train_loader = DataLoader(mols[:N_TRAIN], batch_size=BATCH, shuffle=True)
valid_loader = DataLoader(mols[N_TRAIN:], batch_size=BATCH)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)

for epoch in range(EPOCHS):
    mean = train(model, train_loader, optimizer, epoch)
    mae = test(model, valid_loader)
    plateau.step(mae)
    print(f"epoch {epoch}: train {mean:.5f} valid mae {mae:.5f}")
