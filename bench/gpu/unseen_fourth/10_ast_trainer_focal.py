"""Audio tagging with the Audio Spectrogram Transformer and a Trainer of our own: SpecAugment in
the collator, focal multi-label loss, layer-wise learning rates."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import ASTConfig, ASTForAudioClassification, Trainer, TrainingArguments, set_seed

SMALL = os.environ.get("SMALL") == "1"
FRAMES, MELS, TAGS = (64, 32, 6) if SMALL else (512, 128, 200)
BATCH, STEPS = (2, 8) if SMALL else (22, 12)


class Clips(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(21)
        self.tags = (torch.rand(n, TAGS, generator=g) < 3 / TAGS).float()
        self.tone = torch.randint(0, MELS, (n,), generator=g)

    def __len__(self):
        return len(self.tags)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        spec = torch.randn(FRAMES, MELS, generator=g) * 0.5
        spec[:, self.tone[i]] += 2
        return {"spec": spec, "tags": self.tags[i]}


class SpecAugment:
    def __init__(self):
        self.g = torch.Generator().manual_seed(77)

    def _span(self, longest, limit):
        n = int(torch.randint(1, limit, (1,), generator=self.g))
        a = int(torch.randint(0, longest - n, (1,), generator=self.g))
        return slice(a, a + n)

    def __call__(self, items):
        x = torch.stack([i["spec"] for i in items])
        for row in x:
            row[self._span(FRAMES, FRAMES // 8)] = 0
            row[:, self._span(MELS, MELS // 8)] = 0
        return {"input_values": x, "labels": torch.stack([i["tags"] for i in items])}


class FocalTrainer(Trainer):
    gamma, alpha = 2.0, 0.75

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits.float()
        bce = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        p = torch.sigmoid(logits)
        pt = p * labels + (1 - p) * (1 - labels)
        at = self.alpha * labels + (1 - self.alpha) * (1 - labels)
        loss = (at * (1 - pt) ** self.gamma * bce).sum(1).mean()
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step} loss {loss.item():.8f}", flush=True)
        return loss

    def create_optimizer(self, *args, **kwargs):
        if self.optimizer is None:
            head = [p for n, p in self.model.named_parameters() if n.startswith("classifier")]
            body = [p for n, p in self.model.named_parameters() if not n.startswith("classifier")]
            self.optimizer = torch.optim.AdamW(
                [{"params": body, "lr": 5e-5}, {"params": head, "lr": 1e-3}], weight_decay=1e-4
            )
        return self.optimizer


def main():
    set_seed(4)
    config = ASTConfig(
        hidden_size=32 if SMALL else 768,
        num_hidden_layers=2 if SMALL else 12,
        num_attention_heads=4 if SMALL else 12,
        intermediate_size=64 if SMALL else 3072,
        hidden_dropout_prob=0.1,
        max_length=FRAMES,
        num_mel_bins=MELS,
        num_labels=TAGS,
    )
    model = ASTForAudioClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            max_grad_norm=1.0,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=0,
            seed=4,
        )
        FocalTrainer(
            model=model,
            args=args,
            train_dataset=Clips(BATCH * STEPS),
            data_collator=SpecAugment(),
        ).train()


if __name__ == "__main__":
    main()
