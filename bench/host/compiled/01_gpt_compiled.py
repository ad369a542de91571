"""A small GPT under torch.compile with inductor on a CPU; says what came before its first step."""

import time

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(18)
torch.set_num_threads(1)
VOCAB, WIDTH, LENGTH = 3000, 160, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 5, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, target):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())


model = torch.compile(GPT())
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(4):
    ids = torch.randint(0, VOCAB, (32, LENGTH + 1))
    loss = model(ids[:, :-1], ids[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
    if step == 0:
        print("processor seconds to the first step: %.1f" % time.process_time(), flush=True)
print("graphs compiled:", torch._dynamo.utils.counters["stats"]["unique_graphs"])
