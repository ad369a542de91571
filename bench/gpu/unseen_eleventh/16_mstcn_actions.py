"""Temporal action segmentation (MS-TCN) on videos of different lengths, padded and masked."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"

batch_size = 16 if large else 3
lengths = (4000, 6001) if large else (60, 121)
width = 192 if large else 16
stages, layers = (4, 10) if large else (2, 4)
feature_dim = 256 if large else 32
actions = 12


class Dilated(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, mask):
        y = self.drop(self.mix(F.relu(self.conv(x))))
        return (x + y) * mask


class Stage(nn.Module):
    def __init__(self, cin):
        super().__init__()
        self.enter = nn.Conv1d(cin, width, 1)
        self.layers = nn.ModuleList(Dilated(2**i) for i in range(layers))
        self.leave = nn.Conv1d(width, actions, 1)

    def forward(self, x, mask):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.leave(x) * mask


class MSTCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(
            Stage(feature_dim if i == 0 else actions) for i in range(stages)
        )

    def forward(self, x, mask):
        outputs = []
        for stage in self.stages:
            logits = stage(x, mask)
            outputs.append(logits)
            x = logits.softmax(1) * mask
        return outputs


def videos(n):
    g = torch.Generator().manual_seed(14)
    looks = torch.randn(actions, feature_dim, generator=g)
    result = []
    for _ in range(n):
        length = int(torch.randint(*lengths, (1,), generator=g))
        cuts = torch.randint(0, length, (14,), generator=g).sort().values
        segment = torch.bucketize(torch.arange(length), cuts)
        labels = torch.randint(0, actions, (15,), generator=g)[segment]
        feats = looks[labels] + 2.0 * torch.randn(length, feature_dim, generator=g)
        result.append((feats, labels))
    return result


def collate(items):
    feats = pad_sequence([f for f, _ in items], batch_first=True).transpose(1, 2)
    labels = pad_sequence([y for _, y in items], batch_first=True, padding_value=-100)
    return feats, labels, (labels >= 0).unsqueeze(1).float()


def smoothness(logits, mask):
    logp = F.log_softmax(logits, dim=1)
    jump = (logp[:, :, 1:] - logp[:, :, :-1].detach()).square().clamp(max=16)
    return (jump * mask[:, :, 1:]).mean()


def train():
    torch.manual_seed(67)
    model = MSTCN().to(device)
    optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
    loader = DataLoader(videos(batch_size * 5), batch_size, shuffle=True, collate_fn=collate)
    step = 0
    for epoch in range(2):
        right = seen = 0
        for feats, labels, mask in loader:
            feats, labels, mask = feats.to(device), labels.to(device), mask.to(device)
            outputs = model(feats, mask)
            loss = 0.0
            for logits in outputs:
                loss = loss + F.cross_entropy(logits, labels, ignore_index=-100)
                loss = loss + 0.15 * smoothness(logits, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (outputs[-1].argmax(1) == labels).sum().item()
            seen += int(mask.sum())
            print(f"epoch {epoch} step {step} frames {feats.shape[2]} loss {loss.item():.6f}")
            step += 1
        print(f"epoch {epoch} accuracy {right / seen:.4f}")


if __name__ == "__main__":
    train()
