"""FSDP2 over gloo: a decoder with rotary positions, every block sharded, clipped gradients."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
D, HEADS, V = 160, 4, 2000


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)

    def forward(self, x, rot):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = q * rot + q.roll(1, -1) * (1 - rot), k * rot + k.roll(1, -1) * (1 - rot)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn = nn.RMSNorm(D), nn.RMSNorm(D), Attention()
        self.gate, self.up = nn.Linear(D, 4 * D, bias=False), nn.Linear(D, 4 * D, bias=False)
        self.down = nn.Linear(4 * D, D, bias=False)

    def forward(self, x, rot):
        x = x + self.attn(self.n1(x), rot)
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.emb, self.blocks = nn.Embedding(V, D), nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        rot = torch.linspace(0, 1, ids.size(1))[:, None].cos()
        for block in self.blocks:
            x = block(x, rot)
        return self.head(self.norm(x))


mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = Llama()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95))
random = torch.Generator().manual_seed(7 + rank)
for step in range(3):
    ids = torch.randint(0, V, (16, 129), generator=random)
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if rank == 0:
        print("step %d loss %.8g" % (step, loss.item()), flush=True)
dist.destroy_process_group()
