"""HuBERT pretraining: masked prediction of cluster ids from raw audio, accelerate."""

import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import HubertConfig, HubertModel, get_polynomial_decay_schedule_with_warmup

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
SHORT, LONG = (2000, 4000) if SMALL else (48000, 80000)
CLIPS, STEPS, UNITS = (2, 8, 12) if SMALL else (12, 11, 500)


class Audio(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(110)
        self.length = torch.randint(SHORT, LONG + 1, (n,), generator=g).tolist()
        self.pitch = torch.randint(80, 400, (n,), generator=g).tolist()

    def __len__(self):
        return len(self.length)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        t = torch.arange(self.length[i]) / 16000
        wave = torch.sin(6.2832 * self.pitch[i] * t * (1 + 0.1 * torch.sin(9 * t)))
        wave = wave + 0.2 * torch.randn(len(t), generator=g)
        return (wave - wave.mean()) / wave.std(), self.pitch[i]


def collate(items):
    n = max(len(w) for w, _ in items)
    x, mask = torch.zeros(len(items), n), torch.zeros(len(items), n, dtype=torch.long)
    for i, (w, _) in enumerate(items):
        x[i, : len(w)] = w
        mask[i, : len(w)] = 1
    return x, mask, torch.tensor([p for _, p in items])


class UnitPredictor(nn.Module):
    def __init__(self):
        super().__init__()
        h = 48 if SMALL else 768
        self.hubert = HubertModel(
            HubertConfig(
                hidden_size=h,
                num_hidden_layers=2 if SMALL else 12,
                num_attention_heads=4 if SMALL else 12,
                intermediate_size=64 if SMALL else 3072,
                conv_dim=(16,) * 7 if SMALL else (512,) * 7,
                num_conv_pos_embedding_groups=4 if SMALL else 16,
                feat_extract_norm="layer",
                do_stable_layer_norm=True,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                feat_proj_dropout=0.0,
                layerdrop=0.0,
            )
        )
        self.project = nn.Linear(h, 16 if SMALL else 256)
        self.codes = nn.Parameter(torch.randn(UNITS, 16 if SMALL else 256))

    def forward(self, wave, attention_mask, span_mask):
        h = self.hubert(
            wave, attention_mask=attention_mask, mask_time_indices=span_mask
        ).last_hidden_state
        z = F.normalize(self.project(h), dim=-1)
        return z @ F.normalize(self.codes, dim=-1).t() / 0.1


def span_mask(lengths, frames, g, prob=0.08, span=3 if SMALL else 10):
    mask = torch.zeros(len(lengths), frames, dtype=torch.bool)
    for row, n in enumerate(lengths):
        starts = (torch.rand(n, generator=g) < prob).nonzero().flatten().tolist() or [0]
        for s in starts:
            mask[row, s : min(n, s + span)] = True
    return mask


def main():
    torch.manual_seed(11)
    accelerator = Accelerator()
    model = UnitPredictor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = get_polynomial_decay_schedule_with_warmup(optimizer, 4, 60)
    loader = DataLoader(Audio(CLIPS * STEPS), batch_size=CLIPS, collate_fn=collate, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    frame_count = accelerator.unwrap_model(model).hubert._get_feat_extract_output_lengths
    g = torch.Generator().manual_seed(1)
    model.train()
    for step, (wave, keep, pitch) in enumerate(loader):
        lengths = [int(frame_count(int(n))) for n in keep.sum(1)]
        frames = int(frame_count(wave.size(1)))
        spans = span_mask(lengths, frames, g).to(accelerator.device)
        t = torch.arange(frames, device=wave.device)
        units = (pitch[:, None] + t // 3) % UNITS  # what k-means would have given
        logits = model(wave, keep, spans)
        valid = t[None] < torch.tensor(lengths, device=wave.device)[:, None]
        ce = F.cross_entropy(logits.flatten(0, 1), units.flatten(), reduction="none").view_as(units)
        hidden, seen = spans & valid, ~spans & valid
        loss = (ce * hidden).sum() / hidden.sum()
        loss = loss + 0.1 * (ce * seen).sum() / seen.sum().clamp(min=1)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
