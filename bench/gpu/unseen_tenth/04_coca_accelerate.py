"""CoCa: contrastive captioner, one image encoder, a split text decoder, two losses (accelerate)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

SMALL = not torch.cuda.is_available()


class H:
    image, patch, width = (32, 8, 48) if SMALL else (224, 16, 512)
    vit_layers, uni_layers, multi_layers = (2, 1, 1) if SMALL else (10, 4, 4)
    heads, queries = (4, 8) if SMALL else (8, 64)
    vocab, text_len = (128, 12) if SMALL else (8192, 64)
    batch, steps = (4, 8) if SMALL else (96, 12)
    caption_weight = 2.0


class Captions(Dataset):
    """Colour gradients described by tokens that encode their direction and colours."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(100 + i)
        colour = torch.rand(2, 3, generator=g)
        ramp = torch.linspace(0, 1, H.image)
        across = bool(torch.rand(1, generator=g) < 0.5)
        ramp = ramp.view(1, 1, -1) if across else ramp.view(1, -1, 1)
        image = colour[0].view(3, 1, 1) * ramp + colour[1].view(3, 1, 1) * (1 - ramp)
        image = image.expand(3, H.image, H.image) + 0.05 * torch.randn(
            3, H.image, H.image, generator=g
        )
        words = torch.cat([colour.flatten() * 30, torch.tensor([31.0 + across])]).long() + 2
        reps = -(-H.text_len // len(words))
        text = words.repeat(reps)[: H.text_len].clone()
        text[0] = 1
        return image, text


class Attend(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, context, causal=False):
        q = self.q(x)
        k, v = self.kv(context).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads, cross=False, causal=False):
        super().__init__()
        self.causal = causal
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attend(width, heads)
        self.cross = Attend(width, heads) if cross else None
        self.n3 = nn.LayerNorm(width) if cross else None
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, context=None):
        y = self.n1(x)
        x = x + self.attn(y, y, self.causal)
        if self.cross is not None:
            x = x + self.cross(self.n3(x), context)
        return x + self.ff(self.n2(x))


class CoCa(nn.Module):
    def __init__(self):
        super().__init__()
        w = H.width
        self.patchify = nn.Conv2d(3, w, H.patch, H.patch)
        self.pos = nn.Parameter(0.02 * torch.randn((H.image // H.patch) ** 2, w))
        self.vit = nn.ModuleList(Block(w, H.heads) for _ in range(H.vit_layers))
        self.vit_norm = nn.LayerNorm(w)
        self.queries = nn.Parameter(0.02 * torch.randn(H.queries + 1, w))
        self.pool = Attend(w, H.heads)
        self.tokens = nn.Embedding(H.vocab, w)
        self.text_pos = nn.Parameter(0.02 * torch.randn(H.text_len + 1, w))
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, w))
        self.uni = nn.ModuleList(Block(w, H.heads, causal=True) for _ in range(H.uni_layers))
        self.multi = nn.ModuleList(
            Block(w, H.heads, cross=True, causal=True) for _ in range(H.multi_layers)
        )
        self.text_norm, self.final = nn.LayerNorm(w), nn.LayerNorm(w)
        self.to_logits = nn.Linear(w, H.vocab, bias=False)
        self.log_temp = nn.Parameter(torch.tensor(2.6))

    def forward(self, image, text):
        x = self.patchify(image).flatten(2).transpose(1, 2) + self.pos
        for blk in self.vit:
            x = blk(x)
        x = self.vit_norm(x)
        pooled = self.pool(self.queries.expand(len(x), -1, -1), x)
        img_vec, context = pooled[:, 0], pooled[:, 1:]

        t = torch.cat([self.tokens(text), self.cls.expand(len(text), -1, -1)], 1)
        t = t + self.text_pos[: t.shape[1]]
        for blk in self.uni:
            t = blk(t)
        txt_vec, t = self.text_norm(t[:, -1]), t[:, :-1]
        for blk in self.multi:
            t = blk(t, context)
        return img_vec, txt_vec, self.to_logits(self.final(t)), self.log_temp.exp()


def coca_loss(img, txt, logits, scale, text):
    img, txt = F.normalize(img.float(), dim=-1), F.normalize(txt.float(), dim=-1)
    sim = scale * img @ txt.t()
    labels = torch.arange(len(sim), device=sim.device)
    contrast = 0.5 * (F.cross_entropy(sim, labels) + F.cross_entropy(sim.t(), labels))
    caption = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), text[:, 1:].flatten())
    return contrast, caption


def main():
    set_seed(8)
    acc = Accelerator(mixed_precision="no" if SMALL else "bf16", cpu=SMALL)
    loader = DataLoader(Captions(H.batch * H.steps), batch_size=H.batch, shuffle=True)
    model = CoCa()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 5e-4, total_steps=H.steps + 1)
    model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
    for step, (image, text) in enumerate(loader):
        contrast, caption = coca_loss(*model(image, text), text)
        loss = contrast + H.caption_weight * caption
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        acc.print(
            f"step {step} loss {loss.item():.6f} "
            f"(contrast {contrast.item():.4f} caption {caption.item():.4f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
