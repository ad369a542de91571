# seq2seq "summarisation" from scratch: T5 config, accelerate, accumulation, Adafactor.
# The smoothed loss is ours because the one in the model cannot ignore padding AND smooth.
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Adafactor
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration, get_linear_schedule_with_warmup

SMALL = int(os.environ.get("SMALL", 0))
SRC, TGT = (24, 12) if SMALL else (384, 128)
BS = 3 if SMALL else 8
VOCAB = 200 if SMALL else 32128
EPS = 0.1


def label_smoothed_nll(logits, target, eps, ignore=-100):
    lprobs = F.log_softmax(logits.float(), dim=-1)
    keep = target.ne(ignore)
    nll = -lprobs.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    smooth = -lprobs.mean(dim=-1)
    nll, smooth = nll[keep].sum(), smooth[keep].sum()
    return ((1.0 - eps) * nll + eps * smooth) / keep.sum()


class Pairs(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(3)
        self.rows = []
        for _ in range(n):
            s = int(torch.randint(SRC // 2, SRC + 1, (1,), generator=g))
            t = int(torch.randint(TGT // 3, TGT + 1, (1,), generator=g))
            src = torch.randint(2, VOCAB, (s,), generator=g)
            self.rows.append((src, src[:t].flip(0)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(batch):
    src = pad_sequence([b[0] for b in batch], batch_first=True, padding_value=0)
    tgt = pad_sequence([b[1] for b in batch], batch_first=True, padding_value=-100)
    return dict(input_ids=src, attention_mask=src.ne(0).long(), labels=tgt)


def main():
    set_seed(21)
    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=not torch.cuda.is_available())
    config = T5Config(
        vocab_size=VOCAB,
        d_model=32 if SMALL else 768,
        d_kv=8 if SMALL else 64,
        d_ff=64 if SMALL else 2048,
        num_layers=2 if SMALL else 8,
        num_heads=4 if SMALL else 12,
        dropout_rate=0.1,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    optimizer = Adafactor(model.parameters(), lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 20)
    loader = DataLoader(
        Pairs(BS * 18),
        batch_size=BS,
        shuffle=True,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(4),
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for i, batch in enumerate(loader):
        with accelerator.accumulate(model):
            labels = batch.pop("labels")
            inner = accelerator.unwrap_model(model)
            decoder_input_ids = inner.prepare_decoder_input_ids_from_labels(labels)
            out = model(**batch, decoder_input_ids=decoder_input_ids)
            loss = label_smoothed_nll(out.logits, labels, EPS)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"step {i} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
