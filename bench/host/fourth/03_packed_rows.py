"""Sentences laid end to end in one long row, with the places where each begins: attention goes by
them, sentence by sentence.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(33)
torch.set_num_threads(1)
VOCAB, WIDTH, HEADS = 3000, 128, 4


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, begins):
        q, k, v = self.qkv(self.n1(x)).view(len(x), 3, HEADS, -1).permute(1, 2, 0, 3)
        sentences = []
        for a, b in zip(begins[:-1].tolist(), begins[1:].tolist()):
            one = F.scaled_dot_product_attention(
                q[None, :, a:b], k[None, :, a:b], v[None, :, a:b], is_causal=True
            )
            sentences.append(one[0].transpose(0, 1).reshape(b - a, WIDTH))
        x = x + self.out(torch.cat(sentences))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(512, WIDTH)
        self.blocks = nn.ModuleList(Attend() for _ in range(5))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids, begins):
        sizes = begins[1:] - begins[:-1]
        places = torch.arange(len(ids)) - begins[:-1].repeat_interleave(sizes)
        x = self.words(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, begins)
        return self.head(self.norm(x))


model = Packed()
opt = torch.optim.AdamW(model.parameters(), 8e-4)
for step in range(3):
    sizes = torch.randint(20, 300, (24,))
    begins = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    ids = torch.randint(0, VOCAB, (int(sizes.sum()),))
    target = ids.roll(-1)
    target[begins[1:] - 1] = -100
    loss = F.cross_entropy(model(ids, begins), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g tokens %d" % (step, loss.item(), len(ids)), flush=True)
