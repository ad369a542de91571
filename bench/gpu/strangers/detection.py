# torchvision detection reference style: a list of images and a list of dicts in, a dict of losses
# out. tiny: --batch 2 --size 64 --steps 2 --device cpu --small
import argparse

import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--small", action="store_true")
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(0)
if args.small:
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    )
else:
    model = torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        trainable_backbone_layers=5,
        min_size=args.size,
        max_size=args.size,
    )
model.to(args.device).train()
optimizer = torch.optim.SGD(
    [p for p in model.parameters() if p.requires_grad], lr=1e-4, momentum=0.9, weight_decay=5e-4
)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
g = torch.Generator().manual_seed(2)
for step in range(args.steps):
    images = [
        torch.rand(3, args.size, args.size, generator=g).to(args.device) for _ in range(args.batch)
    ]
    corner = [torch.rand(3, 2, generator=g) * args.size / 2 for _ in range(args.batch)]
    targets = [
        {
            "boxes": torch.cat([c, c + args.size / 4], 1).to(args.device),
            "labels": torch.randint(1, 5, (3,), generator=g).to(args.device),
        }
        for c in corner
    ]
    loss_dict = model(images, targets)
    losses = sum(loss for loss in loss_dict.values())
    optimizer.zero_grad()
    losses.backward()
    optimizer.step()
    scheduler.step()
    print("step %d loss %.9g" % (step, losses.item()), flush=True)
