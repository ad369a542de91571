"""The Trainer with a model of one's own: multi-label tagging of long documents, a tuple of (loss,
logits), class weights, two parameter groups by create_optimizer.
"""

# tiny: --dim 16 --layers 1 --tokens 24 --batch 4
import argparse
import os

import torch
import torch.nn as nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


class Documents(torch.utils.data.Dataset):
    def __init__(self, n, tokens, tags):
        self.n, self.tokens, self.tags = n, tokens, tags

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        mask = torch.arange(self.tokens) < int(
            torch.randint(self.tokens // 2, self.tokens, (1,), generator=g)
        )
        return {
            "tokens": torch.randint(0, 8000, (self.tokens,), generator=g),
            "mask": mask,
            "labels": (torch.rand(self.tags, generator=g) < 0.2).float(),
        }


class Tagger(nn.Module):
    def __init__(self, dim, layers, tags):
        super().__init__()
        self.embed, self.pos = (
            nn.Embedding(8000, dim),
            nn.Parameter(torch.randn(1, 4096, dim) * 0.02),
        )
        layer = nn.TransformerEncoderLayer(
            dim,
            max(2, dim // 64),
            4 * dim,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.queries = nn.Parameter(torch.randn(tags, dim) * 0.02)
        self.out = nn.Linear(dim, 1)
        self.register_buffer("pos_weight", torch.linspace(1, 4, tags))

    def forward(self, tokens, mask, labels=None):
        x = self.encoder(
            self.embed(tokens) + self.pos[:, : tokens.shape[1]], src_key_padding_mask=~mask
        )
        att = (
            (self.queries @ x.transpose(1, 2))
            .masked_fill(~mask[:, None], float("-inf"))
            .softmax(-1)
        )
        logits = self.out(att @ x).squeeze(-1)
        if labels is None:
            return (logits,)
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, labels, pos_weight=self.pos_weight
        )
        return loss, logits


class TaggerTrainer(Trainer):
    def create_optimizer(self, *unused):
        slow, fast = [], []
        for n, p in self.model.named_parameters():
            (fast if n.startswith(("queries", "out")) else slow).append(p)
        self.optimizer = torch.optim.RAdam(
            [{"params": slow}, {"params": fast, "lr": 1e-3}], lr=self.args.learning_rate
        )
        return self.optimizer


class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print("step", state.global_step - 1, "loss", logs["loss"], flush=True)


def metrics(p):
    return {"hits": float(((p.predictions > 0) == (p.label_ids > 0.5)).mean())}


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=512)
    ap.add_argument("--layers", type=int, default=6)
    ap.add_argument("--tokens", type=int, default=1024)
    ap.add_argument("--batch", type=int, default=16)
    a = ap.parse_args()
    set_seed(1)
    args = TrainingArguments(
        output_dir=os.environ.get("FIT_OUT", "tagger-out"),
        per_device_train_batch_size=a.batch // 2,
        gradient_accumulation_steps=2,
        max_steps=20,
        learning_rate=1e-4,
        lr_scheduler_type="polynomial",
        warmup_steps=2,
        logging_steps=1,
        save_strategy="steps",
        save_steps=15,
        eval_strategy="steps",
        eval_steps=10,
        report_to=[],
        disable_tqdm=True,
    )
    TaggerTrainer(
        model=Tagger(a.dim, a.layers, 30),
        args=args,
        train_dataset=Documents(20 * a.batch, a.tokens, 30),
        eval_dataset=Documents(2 * a.batch, a.tokens, 30),
        compute_metrics=metrics,
        callbacks=[Watch()],
    ).train()
