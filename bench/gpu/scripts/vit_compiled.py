# torchvision's ViT compiled, channels last, label smoothing, cosine schedule, an evaluation of the
# compiled model at the end.
# tiny: --width 16 --depth 2 --batch 4 --size 32 --device cpu
import argparse

import torch
import torch.nn as nn
import torchvision

ap = argparse.ArgumentParser()
ap.add_argument("--width", type=int, default=768)
ap.add_argument("--depth", type=int, default=12)
ap.add_argument("--batch", type=int, default=64)
ap.add_argument("--size", type=int, default=224)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(0)
net = torchvision.models.VisionTransformer(
    image_size=a.size,
    patch_size=16,
    num_layers=a.depth,
    num_heads=max(1, a.width // 64),
    hidden_dim=a.width,
    mlp_dim=4 * a.width,
    num_classes=200,
).to(a.device, memory_format=torch.channels_last)
net = torch.compile(net)
opt = torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=0.05)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
rng = torch.Generator().manual_seed(3)
net.train()
for i in range(20):
    x = torch.rand(a.batch, 3, a.size, a.size, generator=rng)
    y = torch.randint(0, 200, (a.batch,), generator=rng)
    x = x.to(a.device, memory_format=torch.channels_last)
    y = y.to(a.device)
    loss = criterion(net(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
net.eval()
with torch.no_grad():
    print("accuracy %.3f" % (net(x).argmax(1) == y).float().mean().item())
