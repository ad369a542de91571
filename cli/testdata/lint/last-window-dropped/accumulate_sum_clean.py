import math
from array import array

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, get_cosine_schedule_with_warmup

ACCUM = 64
NAME = "google/mt5-small"


class Pairs(torch.utils.data.Dataset):
    def __init__(self, path, tok):
        self.tok = tok
        with open(path, encoding="utf-8") as f:
            self.offsets = array("q", [0])
            for line in f:
                self.offsets.append(self.offsets[-1] + len(line.encode()))
        self.path = path

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, i):
        with open(self.path, "rb") as f:
            f.seek(self.offsets[i])
            src, tgt = f.readline().decode().rstrip("\n").split("\t")
        return src, tgt


def make_collate(tok):
    def collate(rows):
        src, tgt = zip(*rows)
        batch = tok(
            list(src),
            text_target=list(tgt),
            padding=True,
            truncation=True,
            max_length=256,
            return_tensors="pt",
        )
        batch["labels"][batch["labels"] == tok.pad_token_id] = -100
        return batch

    return collate


def main():
    tok = AutoTokenizer.from_pretrained(NAME)
    model = AutoModelForSeq2SeqLM.from_pretrained(NAME).cuda().train()
    loader = DataLoader(
        Pairs("train.tsv", tok),
        batch_size=4,
        shuffle=True,
        collate_fn=make_collate(tok),
        num_workers=2,
    )
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    sched = get_cosine_schedule_with_warmup(opt, 500, math.ceil(len(loader) / ACCUM) * 3)
    window = 0.0
    for epoch in range(3):
        for i, batch in enumerate(loader, 1):
            batch = {k: v.cuda() for k, v in batch.items()}
            out = model(**batch)
            part = out.loss / ACCUM
            part.backward()
            window = window + part.item()
            if i % ACCUM == 0:  # hint: last-window-dropped
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
                print(epoch, i, float(window))
                window = 0.0
    model.save_pretrained("mt5-out")


if __name__ == "__main__":
    main()
