import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from t2i.data import CaptionedLatents
from t2i.dit import DiT
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, CLIPTextModel

DEVICE = torch.device("cuda")
TOK = AutoTokenizer.from_pretrained("openai/clip-vit-large-patch14")
TEXT = (
    CLIPTextModel.from_pretrained("openai/clip-vit-large-patch14")
    .to(DEVICE)
    .eval()
    .requires_grad_(False)
)


@functools.lru_cache(maxsize=None)  # expect: cache-keeps-tensors
def embed(caption):
    ids = TOK(caption, padding="max_length", truncation=True, return_tensors="pt").input_ids.to(
        DEVICE
    )
    with torch.no_grad():
        return TEXT(ids).last_hidden_state[0]


def encode(captions):
    return torch.stack([embed(c) for c in captions])


def flow_loss(net, latents, cond):
    noise = torch.randn_like(latents)
    t = torch.rand(latents.size(0), device=DEVICE)
    mixed = (1 - t.view(-1, 1, 1, 1)) * latents + t.view(-1, 1, 1, 1) * noise
    return F.mse_loss(net(mixed, t, cond), noise - latents)


class WarmupCosine(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, opt, warm, total):
        def scale(step):
            if step < warm:
                return step / warm
            return 0.5 * (
                1 + torch.cos(torch.tensor(3.14159 * (step - warm) / (total - warm))).item()
            )

        super().__init__(opt, scale)


def main(total=400_000):
    loader = DataLoader(
        CaptionedLatents("/data/laion_small"),
        batch_size=32,
        shuffle=True,
        num_workers=4,
        drop_last=True,
    )
    net = DiT(depth=16, width=768, cond_width=768).to(DEVICE)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    sched = WarmupCosine(opt, 2000, total)
    step = 0
    while step < total:
        for latents, captions in loader:
            loss = flow_loss(net, latents.to(DEVICE), encode(captions))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            step += 1
            if step % 100 == 0:
                print(step, loss.item(), sched.get_last_lr()[0])
            if step % 20_000 == 0:
                torch.save(net.state_dict(), f"dit_{step}.pt")


if __name__ == "__main__":
    main()
