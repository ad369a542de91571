"""Its own accumulation over uneven texts: sums of token losses, divided by all tokens."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(13)
torch.set_num_threads(1)
VOCAB, WIDTH, PAD = 5000, 144, 0


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(VOCAB, WIDTH, padding_idx=PAD),
            nn.Embedding(256, WIDTH),
        )
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 6, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(4)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.norm(x) @ self.words.weight.T


def texts(n):
    sizes = torch.randint(30, 140, (n,))
    ids = torch.randint(1, VOCAB, (n, int(sizes.max())))
    return ids.masked_fill(torch.arange(ids.shape[1]) >= sizes[:, None], PAD)


model = Decoder()
opt = torch.optim.AdamW(model.parameters(), 6e-4)
for update in range(2):
    tokens, total = 0, 0.0
    for part in range(2):
        ids = texts(14)
        target = ids[:, 1:]
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum"
        )
        loss.backward()
        tokens, total = tokens + int((target != PAD).sum()), total + loss.item()
    for p in model.parameters():
        p.grad /= tokens
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    print("update %d loss %.8g norm %.6g" % (update, total / tokens, norm.item()), flush=True)
