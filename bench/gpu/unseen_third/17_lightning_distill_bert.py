"""TinyBERT-like distillation in Lightning: frozen teacher, hidden states and logits, bf16."""

import os

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

SMALL = os.environ.get("SMALL") == "1"
SEQ, BS, VOCAB = (16, 2, 100) if SMALL else (256, 32, 30522)


class Sentences(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(55)
        self.ids = torch.randint(1, VOCAB, (n, SEQ), generator=g)
        self.len = torch.randint(SEQ // 2, SEQ + 1, (n,), generator=g)
        self.y = torch.randint(0, 3, (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        mask = (torch.arange(SEQ) < self.len[i]).long()
        return {"input_ids": self.ids[i] * mask, "attention_mask": mask, "labels": self.y[i]}


def bert(layers, width, heads):
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCAB,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=width * 4,
            num_labels=3,
        )
    )


class Distill(pl.LightningModule):
    def __init__(self, temperature=2.0):
        super().__init__()
        self.teacher = bert(4, 48, 4) if SMALL else bert(24, 1024, 16)
        self.student = bert(2, 32, 4) if SMALL else bert(6, 768, 12)
        self.teacher.requires_grad_(False)
        t, s = self.teacher.config.hidden_size, self.student.config.hidden_size
        self.fit_dense = nn.ModuleList(
            nn.Linear(s, t) for _ in range(self.student.config.num_hidden_layers + 1)
        )
        self.T = temperature
        self.count = 0

    def training_step(self, batch, _):
        labels = batch.pop("labels")
        self.teacher.eval()
        with torch.no_grad():
            t = self.teacher(**batch, output_hidden_states=True)
        s = self.student(**batch, output_hidden_states=True)
        every = (len(t.hidden_states) - 1) // (len(s.hidden_states) - 1)
        mask = batch["attention_mask"].unsqueeze(-1)
        hidden = 0.0
        for k, dense in enumerate(self.fit_dense):
            diff = (dense(s.hidden_states[k]) - t.hidden_states[k * every]).float() * mask
            hidden = hidden + diff.pow(2).sum() / (mask.sum() * diff.size(-1))
        soft = F.kl_div(
            F.log_softmax(s.logits.float() / self.T, -1),
            F.softmax(t.logits.float() / self.T, -1),
            reduction="batchmean",
        )
        loss = hidden + soft * self.T**2 + F.cross_entropy(s.logits.float(), labels)
        print(f"step {self.count} loss {loss.item():.9f}", flush=True)
        self.count += 1
        return loss

    def configure_optimizers(self):
        params = [*self.student.parameters(), *self.fit_dense.parameters()]
        opt = torch.optim.AdamW(params, lr=5e-5)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 4))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        max_steps=8,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        precision="bf16-mixed",
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Distill(), DataLoader(Sentences(BS * 16), batch_size=BS, shuffle=True))
