"""Fine-tune a DeBERTa-v2 sentence-pair classifier (NLI) with the Hugging Face Trainer."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
set_seed(42)

if device == "cpu":
    VOCAB, HIDDEN, LAYERS, HEADS, MAX_LEN, BATCH, STEPS = 500, 64, 2, 4, 48, 4, 8
else:
    VOCAB, HIDDEN, LAYERS, HEADS, MAX_LEN, BATCH, STEPS = 16000, 512, 8, 8, 256, 40, 12

PAD, CLS, SEP = 0, 1, 2


class PairDataset(Dataset):
    """Premise and hypothesis; the label says how much of the hypothesis is in the premise."""

    def __init__(self, size, seed):
        self.size = size
        self.seed = seed

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        n = int(torch.randint(MAX_LEN // 3, MAX_LEN // 2, (1,), generator=g))
        m = int(torch.randint(MAX_LEN // 4, MAX_LEN // 2 - 3, (1,), generator=g))
        premise = torch.randint(3, VOCAB, (n,), generator=g)
        label = int(torch.randint(0, 3, (1,), generator=g))
        copied = premise[torch.randint(0, n, (m,), generator=g)]
        noise = torch.randint(3, VOCAB, (m,), generator=g)
        keep = torch.rand(m, generator=g) < (0.0, 0.5, 1.0)[label]
        hypothesis = torch.where(keep, copied, noise)
        ids = [CLS, *premise.tolist(), SEP, *hypothesis.tolist(), SEP]
        types = [0] * (n + 2) + [1] * (m + 1)
        return {"input_ids": ids, "token_type_ids": types, "labels": label}


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    longest = (longest + 7) // 8 * 8
    ids = torch.full((len(features), longest), PAD)
    types = torch.zeros_like(ids)
    mask = torch.zeros_like(ids)
    for row, f in enumerate(features):
        n = len(f["input_ids"])
        ids[row, :n] = torch.tensor(f["input_ids"])
        types[row, :n] = torch.tensor(f["token_type_ids"])
        mask[row, :n] = 1
    labels = torch.tensor([f["labels"] for f in features])
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask, "labels": labels}


class LoggingTrainer(Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        loss = super().training_step(model, inputs, *args, **kwargs)
        print(f"step {self.state.global_step} loss {loss.item():.6f}", flush=True)
        return loss


def accuracy(prediction):
    hits = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(hits.mean())}


def main():
    config = DebertaV2Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=MAX_LEN,
        type_vocab_size=2,
        relative_attention=True,
        position_buckets=MAX_LEN // 2,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        pad_token_id=PAD,
        num_labels=3,
    )
    model = DebertaV2ForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=1e-4,
            lr_scheduler_type="linear",
            warmup_steps=2,
            weight_decay=0.01,
            bf16=device == "cuda",
            use_cpu=device == "cpu",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        trainer = LoggingTrainer(
            model=model,
            args=args,
            train_dataset=PairDataset(BATCH * STEPS, seed=0),
            eval_dataset=PairDataset(BATCH * 2, seed=10**6),
            data_collator=collate,
            compute_metrics=accuracy,
        )
        trainer.train()
        metrics = trainer.evaluate()
        print(f"held-out accuracy {metrics['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
