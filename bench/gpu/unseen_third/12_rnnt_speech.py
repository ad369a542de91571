"""A transducer (RNN-T): LSTM encoder with frame stacking, label predictor, joiner, and the lattice
loss written with anti-diagonals in plain torch."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BS, FRAMES, LABELS, VOCAB, HID, JOIN = (
    (2, 40, 5, 12, 16, 16) if SMALL else (16, 800, 40, 1000, 640, 320)
)
NEG = -1e30


def transducer_loss(logits, targets, t_len, u_len):
    """logits: (B, T, U + 1, V), blank is 0. Sum over alignments in log space."""
    b, t_max, u_max, _ = logits.shape
    logp = logits.float().log_softmax(-1)
    blank = logp[..., 0]
    index = F.pad(targets, (0, 1)).view(b, 1, u_max, 1).expand(-1, t_max, -1, -1)
    emit = logp.gather(-1, index).squeeze(-1)
    alphas = []
    row = torch.full((b, u_max), NEG, device=logits.device)
    row = torch.where(torch.arange(u_max, device=logits.device) == 0, torch.zeros_like(row), row)
    u = torch.arange(u_max, device=logits.device)
    prev = row
    alphas.append(prev)
    for d in range(1, t_max + u_max - 1):  # d = t + u
        t = d - u
        ok = (t >= 0) & (t < t_max)
        stay_t = (t - 1).clamp(0, t_max - 1)
        stay = prev + blank[:, stay_t, u]
        stay = torch.where((t - 1 >= 0) & (t - 1 < t_max), stay, torch.full_like(stay, NEG))
        move = F.pad(prev[:, :-1] + emit[:, t.clamp(0, t_max - 1)[1:], u[:-1]], (1, 0), value=NEG)
        now = torch.logaddexp(stay, move)
        prev = torch.where(ok, now, torch.full_like(now, NEG))
        alphas.append(prev)
    alphas = torch.stack(alphas)  # (D, B, U)
    rows = torch.arange(b, device=logits.device)
    end = alphas[t_len - 1 + u_len, rows, u_len] + blank[rows, t_len - 1, u_len]
    return -end.mean()


class Transducer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(80 * 4, HID, num_layers=3, batch_first=True, bidirectional=True)
        self.embed = nn.Embedding(VOCAB, HID)
        self.predictor = nn.LSTM(HID, HID, batch_first=True)
        self.enc_proj, self.pred_proj = nn.Linear(2 * HID, JOIN), nn.Linear(HID, JOIN)
        self.out = nn.Linear(JOIN, VOCAB)

    def forward(self, feats, targets):
        b, t, f = feats.shape
        enc, _ = self.encoder(feats.reshape(b, t // 4, f * 4))
        pred, _ = self.predictor(self.embed(F.pad(targets, (1, 0))))
        joint = torch.tanh(self.enc_proj(enc).unsqueeze(2) + self.pred_proj(pred).unsqueeze(1))
        return self.out(joint)


def fake_batch(g):
    t_len = torch.randint(FRAMES // 2, FRAMES + 1, (BS,), generator=g) // 4 * 4
    t_len[0] = FRAMES
    u_len = torch.randint(LABELS // 2, LABELS + 1, (BS,), generator=g)
    u_len[0] = LABELS
    feats = torch.randn(BS, FRAMES, 80, generator=g)
    targets = torch.randint(1, VOCAB, (BS, LABELS), generator=g)
    return (x.to(device) for x in (feats, targets, t_len // 4, u_len))


def main():
    torch.manual_seed(6)
    model = Transducer().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.98))
    g = torch.Generator().manual_seed(60)
    for step in range(12):
        feats, targets, t_len, u_len = fake_batch(g)
        loss = transducer_loss(model(feats, targets), targets, t_len, u_len)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        print(f"step {step} loss {loss.item():.7f}", flush=True)


if __name__ == "__main__":
    main()
