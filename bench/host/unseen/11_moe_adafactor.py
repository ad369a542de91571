"""A transformer with routed experts (capacity, balancing loss) and Adafactor."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)
V, D, E, L, SEQ, B = 5000, 160, 6, 4, 96, 24


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, E, bias=False)
        self.up = nn.Parameter(torch.randn(E, D, 4 * D) * 0.02)
        self.down = nn.Parameter(torch.randn(E, 4 * D, D) * 0.02)

    def forward(self, x):
        flat = x.reshape(-1, D)
        probs = self.gate(flat).softmax(-1)
        weight, chosen = probs.topk(2, -1)
        out = torch.zeros_like(flat)
        for e in range(E):
            token, which = (chosen == e).nonzero(as_tuple=True)
            if token.numel():
                h = F.gelu(flat[token] @ self.up[e]) @ self.down[e]
                out.index_add_(0, token, h * weight[token, which, None])
        load = F.one_hot(chosen[:, 0], E).float().mean(0)
        return out.view_as(x), E * (load * probs.mean(0)).sum()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.MultiheadAttention(D, 4, batch_first=True)
        self.moe = MoE()

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        h, aux = self.moe(self.n2(x))
        return x + h, aux


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D), nn.Parameter(torch.zeros(SEQ, D))
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids, labels):
        x = self.emb(ids) + self.pos
        mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
        auxes = []
        for block in self.blocks:
            x, aux = block(x, mask)
            auxes.append(aux)
        ce = F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
        return ce + 0.01 * torch.stack(auxes).mean(), ce.detach()


model = LM()
opt = torch.optim.Adafactor(model.parameters(), lr=1e-2)
for step in range(3):
    ids = torch.randint(0, V, (B, SEQ + 1))
    loss, ce = model(ids[:, :-1], ids[:, 1:])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print("step %d loss %.8g ce %.8g" % (step, loss.item(), ce.item()), flush=True)
