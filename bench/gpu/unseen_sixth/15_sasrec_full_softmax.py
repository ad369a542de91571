# SASRec sequential recommendation with a full softmax over the catalogue.
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
device = "cuda:0" if CUDA else "cpu"

config = dict(
    n_items=60000 if CUDA else 100,
    n_users=1100 if CUDA else 16,
    maxlen=50 if CUDA else 8,
    hidden_units=128 if CUDA else 16,
    num_blocks=3 if CUDA else 1,
    num_heads=2,
    dropout=0.0,
    batch_size=128 if CUDA else 8,
    lr=1e-3,
    l2_emb=1e-6,
    epochs=1,
    patience=3,
    topk=10,
    seed=2023,
)


def simulate_interactions(cfg):
    """users walk through item neighbourhoods; returns dict user -> list of items (1-based)"""
    rng = np.random.default_rng(cfg["seed"])
    users = {}
    for u in range(cfg["n_users"]):
        n = rng.integers(cfg["maxlen"] // 2 + 3, cfg["maxlen"] * 2)
        walk = rng.integers(1, cfg["n_items"]) + np.cumsum(rng.integers(-3, 8, n))
        users[u] = (walk % cfg["n_items"] + 1).tolist()
    return users


def data_partition(users):
    train, valid, test = {}, {}, {}
    for u, seq in users.items():
        train[u], valid[u], test[u] = seq[:-2], seq[-2], seq[-1]
    return train, valid, test


class TrainSeqs(Dataset):
    def __init__(self, train, maxlen):
        self.users, self.train, self.maxlen = sorted(train), train, maxlen

    def __len__(self):
        return len(self.users)

    def __getitem__(self, i):
        s = self.train[self.users[i]][-(self.maxlen + 1) :]
        seq, pos = np.zeros(self.maxlen, dtype=np.int64), np.zeros(self.maxlen, dtype=np.int64)
        k = len(s) - 1
        seq[-k:], pos[-k:] = s[:-1], s[1:]
        return seq, pos


class PointWiseFeedForward(torch.nn.Module):
    def __init__(self, hidden, p):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.conv2 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        y = self.drop(self.conv2(torch.relu(self.drop(self.conv1(x.transpose(-1, -2))))))
        return y.transpose(-1, -2) + x


class SASRec(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg["hidden_units"]
        self.item_emb = nn.Embedding(cfg["n_items"] + 1, d, padding_idx=0)
        self.pos_emb = nn.Embedding(cfg["maxlen"], d)
        nn.init.normal_(self.item_emb.weight, std=0.02)
        with torch.no_grad():
            self.item_emb.weight[0].zero_()
        self.attn_ln, self.attn, self.ff_ln, self.ff = (nn.ModuleList() for _ in range(4))
        for _ in range(cfg["num_blocks"]):
            self.attn_ln.append(nn.LayerNorm(d, eps=1e-8))
            self.attn.append(
                nn.MultiheadAttention(d, cfg["num_heads"], cfg["dropout"], batch_first=True)
            )
            self.ff_ln.append(nn.LayerNorm(d, eps=1e-8))
            self.ff.append(PointWiseFeedForward(d, cfg["dropout"]))
        self.last_ln = nn.LayerNorm(d, eps=1e-8)
        self.scale = math.sqrt(d)

    def log2feats(self, seqs):
        T = seqs.size(1)
        x = self.item_emb(seqs) * self.scale + self.pos_emb(torch.arange(T, device=seqs.device))
        keep = (seqs != 0).unsqueeze(-1)
        x = x * keep
        causal = ~torch.tril(torch.ones(T, T, dtype=torch.bool, device=seqs.device))
        for ln1, att, ln2, ff in zip(self.attn_ln, self.attn, self.ff_ln, self.ff):
            q = ln1(x)
            a, _ = att(q, x, x, attn_mask=causal, need_weights=False)
            x = ff(ln2(q + a)) * keep
        return self.last_ln(x)

    def forward(self, seqs):
        return self.log2feats(seqs) @ self.item_emb.weight.t()

    @torch.no_grad()
    def predict(self, seqs):
        return self.log2feats(seqs)[:, -1] @ self.item_emb.weight.t()


def evaluate(model, train, target, cfg):
    model.eval()
    ndcg = hit = n = 0
    users = sorted(train)[: 4 * cfg["batch_size"]]
    for i in range(0, len(users), cfg["batch_size"]):
        chunk = users[i : i + cfg["batch_size"]]
        seqs = torch.zeros(len(chunk), cfg["maxlen"], dtype=torch.long)
        for r, u in enumerate(chunk):
            s = train[u][-cfg["maxlen"] :]
            seqs[r, -len(s) :] = torch.tensor(s)
        scores = model.predict(seqs.to(device))
        tgt = torch.tensor([target[u] for u in chunk], device=device)
        rank = (scores > scores.gather(1, tgt[:, None])).sum(1)
        inside = rank < cfg["topk"]
        hit += inside.sum().item()
        ndcg += (inside / torch.log2(rank + 2.0)).sum().item()
        n += len(chunk)
    return ndcg / n, hit / n


torch.manual_seed(config["seed"])
train, valid, test = data_partition(simulate_interactions(config))
loader = DataLoader(
    TrainSeqs(train, config["maxlen"]),
    config["batch_size"],
    shuffle=True,
    drop_last=True,
    generator=torch.Generator().manual_seed(config["seed"]),
)
model = SASRec(config).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], betas=(0.9, 0.98))
ce = nn.CrossEntropyLoss(ignore_index=0)
best, bad = -1.0, 0
tmp = tempfile.mkdtemp()
for epoch in range(config["epochs"]):
    model.train()
    for step, (seq, pos) in enumerate(loader):
        seq, pos = seq.to(device), pos.to(device)
        logits = model(seq)
        loss = ce(logits.view(-1, logits.size(-1)), pos.view(-1))
        loss = loss + config["l2_emb"] * model.item_emb(seq).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.8f} in epoch {epoch} iteration {step}", flush=True)
    v = evaluate(model, train, valid, config)
    print("epoch %d valid NDCG@10 %.4f HR@10 %.4f" % (epoch, *v), flush=True)
    if v[0] > best:
        best, bad = v[0], 0
        torch.save(model.state_dict(), os.path.join(tmp, "best.pth"))
    else:
        bad += 1
    if bad >= config["patience"]:
        break
print("test", evaluate(model, train, test, config))
