"""Pre-train a small OPT decoder with the Hugging Face Trainer (bf16, accumulation, evaluation)."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    OPTConfig,
    OPTForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

CUDA = torch.cuda.is_available()
SEQ = 512 if CUDA else 32
VOCAB = 16384 if CUDA else 200
BATCH = 16 if CUDA else 2
STEPS = 8 if CUDA else 3


class MarkovText(Dataset):
    """Each token is a noisy affine function of the one before it."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        noise = torch.randint(0, 5, (n, SEQ), generator=g)
        ids = torch.empty(n, SEQ, dtype=torch.long)
        ids[:, 0] = torch.randint(4, VOCAB, (n,), generator=g)
        for t in range(1, SEQ):
            ids[:, t] = (ids[:, t - 1] * 31 + 7 + noise[:, t]) % (VOCAB - 4) + 4
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class PrintLosses(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"after step {state.global_step} eval loss {metrics['eval_loss']:.6f}", flush=True)


class LMTrainer(Trainer):
    calls = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        if model.training:
            print(f"micro batch {self.calls} loss {out.loss.item():.6f}", flush=True)
            self.calls += 1
            return out.loss / self.args.gradient_accumulation_steps
        return (out.loss, out) if return_outputs else out.loss


def main():
    set_seed(11)
    config = OPTConfig(
        vocab_size=VOCAB,
        hidden_size=768 if CUDA else 32,
        word_embed_proj_dim=768 if CUDA else 32,
        num_hidden_layers=8 if CUDA else 2,
        num_attention_heads=12 if CUDA else 2,
        ffn_dim=3072 if CUDA else 64,
        max_position_embeddings=SEQ,
        dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    model = OPTForCausalLM(config)
    with tempfile.TemporaryDirectory() as out_dir:
        args = TrainingArguments(
            output_dir=out_dir,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            gradient_accumulation_steps=2,
            max_steps=STEPS,
            learning_rate=4e-4,
            warmup_steps=2,
            lr_scheduler_type="cosine",
            weight_decay=0.05,
            max_grad_norm=1.0,
            bf16=CUDA,
            use_cpu=not CUDA,
            eval_strategy="steps",
            eval_steps=max(2, STEPS // 2),
            prediction_loss_only=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=11,
        )
        trainer = LMTrainer(
            model=model,
            args=args,
            train_dataset=MarkovText(BATCH * 2 * STEPS, 1),
            eval_dataset=MarkovText(BATCH * 2, 2),
            callbacks=[PrintLosses()],
        )
        result = trainer.train()
    print(f"finished, mean train loss {result.training_loss:.6f}")


if __name__ == "__main__":
    main()
