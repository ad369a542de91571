# Translation toy: Marian-shaped encoder-decoder, label smoothing written out, length buckets.
import os
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianConfig, MarianMTModel

small = os.environ.get("SMALL") == "1"
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(11)
torch.manual_seed(11)

PAD, BOS, EOS = 0, 1, 2
vocab = 120 if small else 20000
batch = 3 if small else 72
max_len = 12 if small else 112
n_steps = 12

config = MarianConfig(
    vocab_size=vocab,
    d_model=32 if small else 512,
    encoder_layers=2 if small else 6,
    decoder_layers=2 if small else 6,
    encoder_attention_heads=4 if small else 8,
    decoder_attention_heads=4 if small else 8,
    encoder_ffn_dim=64 if small else 2048,
    decoder_ffn_dim=64 if small else 2048,
    max_position_embeddings=256,
    pad_token_id=PAD,
    eos_token_id=EOS,
    decoder_start_token_id=BOS,
    dropout=0.1,
    scale_embedding=True,
    forced_eos_token_id=None,
)
model = MarianMTModel(config).to(dev)
model.train()


def pair():
    n = random.randint(max_len // 3, max_len)
    src = [random.randint(3, vocab - 1) for _ in range(n)]
    # "translation": reversed, shifted, sometimes a word is doubled
    tgt = []
    for w in reversed(src):
        tgt.append((w + 17) % (vocab - 3) + 3)
        if w % 11 == 0:
            tgt.append(tgt[-1])
    return torch.tensor(src + [EOS]), torch.tensor(tgt[:max_len] + [EOS])


def batches():
    pairs = sorted((pair() for _ in range(batch * n_steps)), key=lambda p: len(p[0]))
    order = list(range(n_steps))
    random.shuffle(order)
    for i in order:
        src, tgt = zip(*pairs[i * batch : (i + 1) * batch])
        yield (
            pad_sequence(src, batch_first=True, padding_value=PAD),
            pad_sequence(tgt, batch_first=True, padding_value=PAD),
        )


def smoothed_nll(logits, target, eps=0.1):
    lprobs = torch.log_softmax(logits, dim=-1)
    nll = -lprobs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    smooth = -lprobs.sum(-1)
    keep = target.ne(PAD)
    nll, smooth = nll[keep].sum(), smooth[keep].sum()
    eps_i = eps / (logits.size(-1) - 1)
    n = keep.sum()
    return ((1.0 - eps - eps_i) * nll + eps_i * smooth) / n, nll / n


optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
inv_sqrt = lambda s: 5e-4 * min((s + 1) / 6, (6 / (s + 1)) ** 0.5)  # noqa: E731
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, inv_sqrt)

for it, (src, tgt) in enumerate(batches()):
    src, tgt = src.to(dev), tgt.to(dev)
    dec_in = torch.cat([torch.full_like(tgt[:, :1], BOS), tgt[:, :-1]], 1)
    out = model(
        input_ids=src,
        attention_mask=src.ne(PAD).long(),
        decoder_input_ids=dec_in,
        decoder_attention_mask=dec_in.ne(PAD).long(),
        use_cache=False,
    )
    loss, nll = smoothed_nll(out.logits, tgt)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    print(f"step {it} loss {loss.item():.8f} nll {nll.item():.6f}", flush=True)
