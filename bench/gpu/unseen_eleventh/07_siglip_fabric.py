"""Image-text pairs with the pairwise sigmoid loss (SigLIP), run by Lightning Fabric in bf16."""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
batch_size = 192 if large else 8
size, patch = (224, 16) if large else (32, 8)
dim, depth, heads = (384, 8, 6) if large else (32, 2, 4)
concepts, words = 50, 400
caption = 24


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, dim))
        return x + self.mlp(self.ln2(x))


class AttentionPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.attend = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        return self.attend(self.query.expand(len(x), -1, -1), x, x, need_weights=False)[0][:, 0]


class SigLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.image_pos = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        self.image_layers = nn.Sequential(*[Layer() for _ in range(depth)])
        self.image_pool = AttentionPool()
        self.tokens = nn.Embedding(words, dim)
        self.text_pos = nn.Parameter(torch.randn(1, caption, dim) * 0.02)
        self.text_layers = nn.Sequential(*[Layer() for _ in range(depth // 2)])
        self.text_out = nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.tensor(2.3))
        self.bias = nn.Parameter(torch.tensor(-10.0))

    def forward(self, images, texts):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.image_pos
        x = F.normalize(self.image_pool(self.image_layers(x)).float(), dim=-1)
        t = self.text_layers(self.tokens(texts) + self.text_pos)
        t = F.normalize(self.text_out(t[:, -1]).float(), dim=-1)
        return x @ t.t() * self.scale.exp() + self.bias


class Pairs(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(6)
        self.concept = torch.randint(0, concepts, (n, 2), generator=g)
        self.texture = torch.randn(concepts, 3, size, size // 2, generator=g)
        self.phrases = torch.randint(0, words, (concepts, caption // 2), generator=g)

    def __len__(self):
        return len(self.concept)

    def __getitem__(self, i):
        a, b = self.concept[i]
        image = torch.cat([self.texture[a], self.texture[b]], dim=2)
        return image, torch.cat([self.phrases[a], self.phrases[b]])


def sigmoid_loss(logits):
    signs = 2 * torch.eye(len(logits), device=logits.device) - 1
    return -F.logsigmoid(signs * logits).sum() / len(logits)


def main():
    fabric = L.Fabric(
        accelerator="cuda" if large else "cpu",
        devices=1,
        precision="bf16-mixed" if large else "32-true",
    )
    fabric.seed_everything(23)
    model = SigLIP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95), eps=1e-6)
    model, optimizer = fabric.setup(model, optimizer)
    loader = torch.utils.data.DataLoader(
        Pairs(batch_size * 5), batch_size=batch_size, shuffle=True, drop_last=True
    )
    loader = fabric.setup_dataloaders(loader)
    step = 0
    for _ in range(2):
        for images, texts in loader:
            for group in optimizer.param_groups:
                group["lr"] = 5e-4 * min(1.0, (step + 1) / 4)
            optimizer.zero_grad()
            loss = sigmoid_loss(model(images, texts))
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            fabric.print(f"step {step} loss {loss.item():.6f}")
            step += 1


if __name__ == "__main__":
    main()
