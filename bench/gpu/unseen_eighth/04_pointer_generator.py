"""Pointer-generator summariser with coverage (BiLSTM encoder, step by step LSTM decoder)."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

on_gpu = torch.cuda.is_available()
hp = SimpleNamespace(
    batch=128 if on_gpu else 3,
    src=300 if on_gpu else 20,
    tgt=50 if on_gpu else 6,
    vocab=16000 if on_gpu else 60,
    oov=40 if on_gpu else 5,
    emb=256 if on_gpu else 16,
    hid=512 if on_gpu else 24,
    steps=9 if on_gpu else 4,
    cov_weight=1.0,
    seed=404,
)
device = torch.device("cuda" if on_gpu else "cpu")


class Attention(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.query = nn.Linear(2 * h, h)
        self.cover = nn.Linear(1, h, bias=False)
        self.v = nn.Linear(h, 1, bias=False)

    def forward(self, state, memory, keys, mask, coverage):
        feats = keys + self.query(torch.cat(state, 1)).unsqueeze(1)
        feats = torch.tanh(feats + self.cover(coverage.unsqueeze(-1)))
        score = self.v(feats).squeeze(-1).masked_fill(~mask, -1e9)
        attn = score.softmax(-1)
        return torch.bmm(attn.unsqueeze(1), memory).squeeze(1), attn


class PointerGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        h = hp.hid
        self.emb = nn.Embedding(hp.vocab, hp.emb, padding_idx=0)
        self.encoder = nn.LSTM(hp.emb, h // 2, batch_first=True, bidirectional=True)
        self.keys = nn.Linear(h, h)
        self.bridge = nn.Linear(h, 2 * h)
        self.inp = nn.Linear(hp.emb + h, hp.emb)
        self.cell = nn.LSTMCell(hp.emb, h)
        self.attn = Attention(h)
        self.p_gen = nn.Linear(3 * h + hp.emb, 1)
        self.out = nn.Sequential(nn.Linear(2 * h, h), nn.Linear(h, hp.vocab))

    def forward(self, src, src_ext, lengths, tgt_in, tgt_ext):
        packed = pack_padded_sequence(
            self.emb(src), lengths, batch_first=True, enforce_sorted=False
        )
        memory, (hn, _) = self.encoder(packed)
        memory, _ = pad_packed_sequence(memory, batch_first=True)
        mask = src != 0
        keys = self.keys(memory)
        state = tuple(torch.tanh(self.bridge(torch.cat([hn[0], hn[1]], 1))).chunk(2, 1))
        context = torch.zeros_like(state[0])
        coverage = torch.zeros(src.shape, device=src.device)
        nll, cov_loss = 0.0, 0.0
        for t in range(tgt_in.shape[1]):
            x = self.inp(torch.cat([self.emb(tgt_in[:, t]), context], 1))
            state = self.cell(x, state)
            context, attn = self.attn(state, memory, keys, mask, coverage)
            p = torch.sigmoid(self.p_gen(torch.cat([context, *state, x], 1)))
            dist = p * self.out(torch.cat([state[0], context], 1)).softmax(-1)
            dist = torch.cat([dist, dist.new_zeros(len(dist), hp.oov)], 1)
            dist = dist.scatter_add(1, src_ext, (1 - p) * attn)
            gold = dist.gather(1, tgt_ext[:, t : t + 1]).squeeze(1)
            valid = (tgt_ext[:, t] != 0).float()
            nll = nll - (torch.log(gold + 1e-10) * valid).sum()
            cov_loss = cov_loss + (torch.minimum(attn, coverage).sum(1) * valid).sum()
            coverage = coverage + attn
        n = (tgt_ext != 0).sum()
        return nll / n, cov_loss / n


def get_batch(g):
    lengths = torch.randint(hp.src // 2, hp.src + 1, (hp.batch,), generator=g)
    lengths[0] = hp.src
    ext = torch.randint(2, hp.vocab + hp.oov, (hp.batch, hp.src), generator=g)
    ext = ext * (torch.arange(hp.src)[None] < lengths[:, None])
    src = torch.where(ext >= hp.vocab, 1, ext)
    pick = torch.rand(hp.batch, hp.tgt, generator=g) * lengths[:, None]
    tgt = ext.gather(1, pick.long().sort(1).values)
    tgt_in = torch.cat([torch.full((hp.batch, 1), 2), tgt[:, :-1]], 1)
    tgt_in = torch.where(tgt_in >= hp.vocab, 1, tgt_in)
    return src.to(device), ext.to(device), lengths, tgt_in.to(device), tgt.to(device)


torch.manual_seed(hp.seed)
net = PointerGenerator().to(device)
optimiser = torch.optim.Adagrad(net.parameters(), lr=0.1, initial_accumulator_value=0.1)
gen = torch.Generator().manual_seed(hp.seed)
for step in range(hp.steps):
    nll, cov = net(*get_batch(gen))
    # coverage is switched on for the second half, as in the paper
    loss = nll + (hp.cov_weight * cov if step >= hp.steps // 2 else 0.0)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    optimiser.step()
    print(f"step {step} loss {loss.item():.6f} coverage {cov.item():.5f}", flush=True)
