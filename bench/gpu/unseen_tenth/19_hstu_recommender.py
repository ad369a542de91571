"""Sequential recommender (HSTU): pointwise attention, time buckets, sampled softmax, buckets."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(55)
gpu = torch.cuda.is_available()
device = torch.device("cuda" if gpu else "cpu")

ITEMS = 50_000 if gpu else 200
DIM, HEADS, LAYERS = (256, 4, 6) if gpu else (16, 2, 2)
MAX_LEN, BATCH, STEPS = (512, 64, 12) if gpu else (24, 3, 8)
NEGATIVES, TIME_BUCKETS, TEMPERATURE = (512 if gpu else 16), 128, 0.05


class RelativeBias(nn.Module):
    """Learned bias from the distance in positions and the log of the distance in time."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(0.02 * torch.randn(2 * MAX_LEN - 1))
        self.time = nn.Parameter(0.02 * torch.randn(TIME_BUCKETS + 1))

    def forward(self, stamps):
        n = stamps.shape[1]
        at = torch.arange(n, device=stamps.device)
        pos = self.position[at[:, None] - at[None] + MAX_LEN - 1]
        gap = (stamps[:, :, None] - stamps[:, None, :]).abs().clamp(min=1).float()
        bucket = (gap.log() / 0.301).long().clamp(0, TIME_BUCKETS)
        return pos[None] + self.time[bucket]


class HSTULayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_in, self.norm_attn = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.uvqk = nn.Linear(DIM, 4 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM)
        self.bias = RelativeBias()
        self.drop = nn.Dropout(0.2)

    def forward(self, x, stamps, allowed):
        b, n, _ = x.shape
        u, v, q, k = F.silu(self.uvqk(self.norm_in(x))).chunk(4, dim=-1)
        v, q, k = (t.view(b, n, HEADS, -1).transpose(1, 2) for t in (v, q, k))
        scores = q @ k.transpose(-1, -2) + self.bias(stamps).unsqueeze(1)
        # pointwise SiLU in place of a softmax, normalised by the length
        weights = F.silu(scores) / n * allowed
        y = (weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, n, -1)
        return x + self.out(self.drop(u * self.norm_attn(y)))


class HSTU(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.actions = nn.Embedding(4, DIM)
        self.layers = nn.ModuleList(HSTULayer() for _ in range(LAYERS))
        nn.init.normal_(self.items.weight, std=0.02)

    def forward(self, items, actions, stamps):
        n = items.shape[1]
        x = self.items(items) * DIM**0.5 + self.actions(actions)
        causal = torch.ones(n, n, dtype=torch.bool, device=items.device).tril()
        allowed = causal & (items != 0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, stamps, allowed)
        return F.normalize(x.float(), dim=-1)


class Sessions:
    """Users wander between clusters of items; batches group users of similar history length."""

    def __init__(self, users, seed):
        self.g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(MAX_LEN // 4, MAX_LEN + 1, (users,), generator=self.g)
        self.lengths = lengths.sort().values
        groups = self.lengths.split(BATCH)
        order = torch.randperm(len(groups), generator=self.g).tolist()
        self.groups = [groups[i] for i in order]

    def history(self, n):
        cluster = torch.randint(0, 20, (n // 16 + 1,), generator=self.g).repeat_interleave(16)[:n]
        width = (ITEMS - 1) // 20
        items = 1 + cluster * width + torch.randint(0, width, (n,), generator=self.g)
        actions = torch.randint(0, 4, (n,), generator=self.g)
        stamps = torch.randint(1, 5000, (n,), generator=self.g).cumsum(0)
        return items, actions, stamps

    def __iter__(self):
        for group in self.groups:
            rows = [self.history(int(n)) for n in group]
            cols = [nn.utils.rnn.pad_sequence(c, batch_first=True) for c in zip(*rows, strict=True)]
            yield [c.to(device) for c in cols]


def sampled_softmax(model, states, items):
    target = items[:, 1:]
    keep = target != 0
    query, positive = states[:, :-1][keep], target[keep]
    negative = torch.randint(1, ITEMS, (NEGATIVES,), device=items.device)
    p = F.normalize(model.items(positive), dim=-1)
    q = F.normalize(model.items(negative), dim=-1)
    pos_score = (query * p).sum(-1, keepdim=True)
    neg_score = query @ q.t()
    neg_score = neg_score.masked_fill(positive[:, None] == negative[None], -1e4)
    logits = torch.cat([pos_score, neg_score], 1) / TEMPERATURE
    return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))


@torch.no_grad()
def hit_rate(model, batch, k=50):
    model.eval()
    items, actions, stamps = batch
    states = model(items[:, :-1], actions[:, :-1], stamps[:, :-1])[:, -1]
    scores = states @ F.normalize(model.items.weight, dim=-1).t()
    top = scores.topk(k, dim=1).indices
    model.train()
    return (top == items[:, -1:]).any(1).float().mean().item()


model = HSTU().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))
last = None
for step, (items, actions, stamps) in enumerate(Sessions(BATCH * STEPS, seed=9)):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        states = model(items, actions, stamps)
    loss = sampled_softmax(model, states, items)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    last = (items, actions, stamps)
    print(f"step {step} loss {loss.item():.6f} length {items.shape[1]}", flush=True)
print(f"hit rate@50 {hit_rate(model, last):.4f}")
