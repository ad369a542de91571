# Image-text contrast with two captions per picture: every caption of a picture is a positive,
# all others in the batch are negatives. Learned temperature, bf16, GroupNorm ResNet + transformer.
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

small = os.environ.get("SMALL") == "1"
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3407)
torch.backends.cudnn.deterministic = True

B = 4 if small else 256
IMG, W = (32, 8) if small else (128, 96)
LAYERS, TDIM, EMB = (1, 32, 16) if small else (8, 512, 512)
VOCAB, LEN, CAPTIONS = 1000, 40, 2


class Bottle(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        m = o // 4
        self.net = nn.Sequential(
            nn.Conv2d(i, m, 1, bias=False),
            nn.GroupNorm(4, m),
            nn.ReLU(),
            nn.Conv2d(m, m, 3, stride, 1, bias=False),
            nn.GroupNorm(4, m),
            nn.ReLU(),
            nn.Conv2d(m, o, 1, bias=False),
            nn.GroupNorm(4, o),
        )
        self.short = nn.Conv2d(i, o, 1, stride, bias=False) if i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.net(x) + self.short(x))


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, W, 7, 2, 3), nn.GroupNorm(4, W), nn.ReLU(), nn.AvgPool2d(2)]
        c = W
        for n, stride in [(2, 1), (3, 2), (3, 2)]:
            for k in range(n):
                o = c * 2 if k == 0 else c
                layers.append(Bottle(c, o, stride if k == 0 else 1))
                c = o
        self.net, self.out = nn.Sequential(*layers), nn.Linear(c, EMB, bias=False)

    def forward(self, x):
        return self.out(self.net(x).mean((2, 3)))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, TDIM), nn.Parameter(torch.zeros(1, LEN, TDIM))
        layer = nn.TransformerEncoderLayer(
            TDIM, 8, TDIM * 4, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(
            layer, LAYERS, norm=nn.LayerNorm(TDIM), enable_nested_tensor=False
        )
        self.out = nn.Linear(TDIM, EMB, bias=False)

    def forward(self, ids):
        pad = ids == 0
        h = self.enc(self.tok(ids) + self.pos, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1)
        return self.out((h * keep).sum(1) / keep.sum(1))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision, self.text = Vision(), Text()
        self.log_t = nn.Parameter(torch.tensor(2.6593))

    def forward(self, img, cap):
        v = F.normalize(self.vision(img).float(), dim=-1)
        t = F.normalize(self.text(cap.flatten(0, 1)).float(), dim=-1)
        return self.log_t.exp().clamp(max=100) * v @ t.t()


def objective(sim):
    n = sim.size(0)
    own = torch.eye(n, device=sim.device).repeat_interleave(CAPTIONS, 1)
    i2t = -(sim.log_softmax(1) * own).sum(1) / CAPTIONS
    t2i = -(sim.log_softmax(0) * own).sum(0)
    return 0.5 * (i2t.mean() + t2i.mean())


def draw(g):
    img = torch.randn(B, 3, IMG, IMG, generator=g)
    cap = torch.randint(1, VOCAB, (B, CAPTIONS, LEN), generator=g)
    n = torch.randint(LEN // 4, LEN + 1, (B, CAPTIONS, 1), generator=g)
    cap[torch.arange(LEN) >= n] = 0
    img[:, 0] += cap[:, 0, :1, None] / VOCAB
    return img.to(dev), cap.to(dev)


model = Pair().to(dev)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
g = torch.Generator().manual_seed(5)
for step in range(12):
    img, cap = draw(g)
    with torch.autocast(dev, dtype=torch.bfloat16):
        sim = model(img, cap)
    loss = objective(sim.float())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    with torch.no_grad():
        model.log_t.clamp_(0, 4.6052)
        top = (sim.argmax(1) // CAPTIONS == torch.arange(B, device=dev)).float().mean().item()
    print(f"step {step} loss {loss.item():.8f} top1 {top:.4f}", flush=True)
