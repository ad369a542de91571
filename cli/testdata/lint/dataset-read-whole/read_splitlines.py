"""Character language model over a large text file."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    def __init__(self, path, length=512):
        self.length = length
        with open(path, encoding="utf-8") as f:
            self.lines = f.read().splitlines()  # expect: dataset-read-whole

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        raw = self.lines[i].encode("utf-8")[: self.length]
        ids = torch.zeros(self.length, dtype=torch.long)
        ids[: len(raw)] = torch.tensor(list(raw), dtype=torch.long)
        return ids


class ByteTransformer(nn.Module):
    def __init__(self, width=512, layers=8, length=512):
        super().__init__()
        self.tok = nn.Embedding(256, width)
        self.pos = nn.Parameter(torch.zeros(length, width))
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(block, layers)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", torch.triu(torch.full((length, length), float("-inf")), 1))

    def forward(self, ids):
        n = ids.size(1)
        h = self.tok(ids) + self.pos[:n]
        return self.head(self.body(h, mask=self.mask[:n, :n]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("corpus")
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--workers", type=int, default=8)
    args = p.parse_args()
    loader = DataLoader(  # expect: workers-copy-python-list
        Lines(args.corpus), args.batch, shuffle=True, num_workers=args.workers, pin_memory=True
    )
    model = ByteTransformer().cuda()
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    for step, ids in enumerate(loader):
        ids = ids.cuda(non_blocking=True)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0
        )
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
