"""Texts of uneven length; the loop itself takes the mean over the tokens that count. The first
batch has no padding at all, the later ones have much of it.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(31)
torch.set_num_threads(1)
VOCAB, WIDTH, LENGTH = 2000, 160, 128


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 5, 4 * WIDTH, 0.0, "gelu", batch_first=True)
            for _ in range(5)
        )
        self.head = nn.Linear(WIDTH, 40)

    def forward(self, ids, there):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~there)
        return self.head(x)


def batch(step):
    sizes = torch.full((40,), LENGTH) if step == 0 else torch.randint(9, LENGTH + 1, (40,))
    sizes[0] = LENGTH
    there = torch.arange(LENGTH) < sizes[:, None]
    ids = torch.randint(1, VOCAB, (40, LENGTH)) * there
    return ids, there, ids % 40


model = Tagger()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(4):
    ids, there, tags = batch(step)
    each = F.cross_entropy(model(ids, there).flatten(0, 1), tags.flatten(), reduction="none")
    count = there.flatten().float()
    loss = (each * count).sum() / count.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
