"""Learned sparse retrieval (SPLADE) with the Hugging Face Trainer: max-pooled MLM logits."""

import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

CUDA = torch.cuda.is_available()
set_seed(17)

VOCAB, DIM, LAYERS, HEADS = (16000, 512, 6, 8) if CUDA else (300, 32, 2, 2)
QUERY_LEN, DOC_LEN = (24, 192) if CUDA else (8, 24)
BATCH, STEPS = (36, 12) if CUDA else (4, 8)
LAMBDA_Q, LAMBDA_D = 3e-4, 1e-4


class Triples(Dataset):
    """A query shares most of its terms with its positive document, few with the negative one."""

    def __init__(self, n, offset=0):
        self.n, self.offset = n, offset

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.offset + i)
        low = int(torch.randint(DOC_LEN // 2, DOC_LEN, (1,), generator=g))
        pos = torch.randint(2, VOCAB, (low,), generator=g)
        neg = torch.randint(2, VOCAB, (DOC_LEN - 8,), generator=g)
        m = int(torch.randint(4, QUERY_LEN, (1,), generator=g))
        query = pos[torch.randint(0, low, (m,), generator=g)].clone()
        neg[:2] = query[:2]
        return {"query": query, "pos": pos, "neg": neg}


def pad(rows):
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def collate(items):
    query = pad([x["query"] for x in items])
    docs = pad([x["pos"] for x in items] + [x["neg"] for x in items])
    return {"query": query, "docs": docs}


class Splade(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = DistilBertForMaskedLM(config)

    def represent(self, tokens):
        logits = self.encoder(**tokens).logits
        weights = torch.log1p(F.relu(logits)) * tokens["attention_mask"].unsqueeze(-1)
        return weights.amax(dim=1)

    def forward(self, query, docs, return_loss=True):
        q, d = self.represent(query), self.represent(docs)
        scores = q.float() @ d.float().t()
        target = torch.arange(len(q), device=q.device)
        rank = F.cross_entropy(scores, target)
        return {"loss": rank, "q": q, "d": d, "scores": scores}


def flops(reps):
    return reps.float().abs().mean(0).pow(2).sum()


class SpladeTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        # the sparsity weight grows quadratically over the run
        ramp = min(1.0, (self.state.global_step + 1) / STEPS) ** 2
        loss = out["loss"] + ramp * (LAMBDA_Q * flops(out["q"]) + LAMBDA_D * flops(out["d"]))
        if return_outputs:
            return loss, {"scores": out["scores"]}
        return loss


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.6f}", flush=True)


def recall_at_one(model, data, device):
    model.eval()
    with torch.no_grad():
        batch = collate([data[i] for i in range(len(data))])
        query = {k: v.to(device) for k, v in batch["query"].items()}
        docs = {k: v.to(device) for k, v in batch["docs"].items()}
        scores = model(query, docs)["scores"]
    return (scores.argmax(1).cpu() == torch.arange(len(data))).float().mean().item()


config = DistilBertConfig(
    vocab_size=VOCAB,
    dim=DIM,
    hidden_dim=4 * DIM,
    n_layers=LAYERS,
    n_heads=HEADS,
    max_position_embeddings=DOC_LEN,
    pad_token_id=0,
)
model = Splade(config)

with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        output_dir=out,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=2e-4,
        warmup_steps=2,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        fp16=CUDA,
        use_cpu=not CUDA,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=17,
    )
    trainer = SpladeTrainer(
        model=model,
        args=args,
        train_dataset=Triples(BATCH * STEPS),
        data_collator=collate,
        callbacks=[PrintLoss()],
    )
    trainer.train()

held = Triples(16, offset=10**6)
print(f"recall@1 {recall_at_one(model, held, trainer.args.device):.3f}")
