"""RAFT in the manner of torchvision's optical flow reference: a list of predictions, the sequence
loss outside, frozen batch norm, OneCycle a step, clipping.
"""

# tiny: --batch-size 1 --size 128 128 --num-flow-updates 2
import argparse

import torch
from torchvision.models.optical_flow import raft_small


class Flows(torch.utils.data.Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        img1 = (
            torch.nn.functional.interpolate(
                torch.rand(1, 3, 16, 16, generator=g), size=self.size, mode="bilinear"
            )[0]
            * 2
            - 1
        )
        img2 = torch.roll(img1, (3, -2), (-2, -1))
        flow = torch.tensor([-2.0, 3.0])[:, None, None].expand(2, *self.size)
        return img1, img2, flow, torch.rand(self.size, generator=g) > 0.05


def freeze_batch_norm(model):
    for m in model.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.eval()


def sequence_loss(flow_preds, flow_gt, valid_flow_mask, gamma=0.8, max_flow=400):
    flow_norm = torch.sum(flow_gt**2, dim=1).sqrt()
    valid = (valid_flow_mask & (flow_norm < max_flow))[:, None]
    loss = 0
    for i, pred in enumerate(flow_preds):
        loss += gamma ** (len(flow_preds) - i - 1) * ((pred - flow_gt).abs() * valid).mean()
    return loss


def train_one_epoch(model, optimizer, scheduler, train_loader, args, device, step):
    for image1, image2, flow_gt, valid in train_loader:
        optimizer.zero_grad()
        image1, image2, flow_gt, valid = (x.to(device) for x in (image1, image2, flow_gt, valid))
        flow_predictions = model(image1, image2, num_flow_updates=args.num_flow_updates)
        loss = sequence_loss(flow_predictions, flow_gt, valid, args.gamma)
        epe = ((flow_predictions[-1] - flow_gt) ** 2).sum(1).sqrt().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1)
        optimizer.step()
        scheduler.step()
        print(f"step {step} loss {loss.item():.6f} epe {epe.item():.3f}", flush=True)
        step += 1
    return step


def main(args):
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = raft_small(weights=None).to(device)
    loader = torch.utils.data.DataLoader(
        Flows(10 * args.batch_size, args.size),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=5e-5, eps=1e-8)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer=optimizer,
        max_lr=args.lr,
        total_steps=25,
        pct_start=0.05,
        cycle_momentum=False,
        anneal_strategy="linear",
    )
    step = 0
    for epoch in range(2):
        model.train()
        freeze_batch_norm(model)
        step = train_one_epoch(model, optimizer, scheduler, loader, args, device, step)
        model.eval()
        with torch.no_grad():
            a, b, flow, _ = next(iter(loader))
            print(
                "val epe %.3f"
                % ((model(a.to(device), b.to(device), num_flow_updates=4)[-1].cpu() - flow) ** 2)
                .sum(1)
                .sqrt()
                .mean()
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--size", type=int, nargs=2, default=[296, 400])
    parser.add_argument("--num-flow-updates", type=int, default=8)
    parser.add_argument("--gamma", type=float, default=0.8)
    parser.add_argument("--lr", type=float, default=2e-5)
    main(parser.parse_args())
