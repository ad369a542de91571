"""Pretraining of a small LLaMA with the Hugging Face Trainer, gradient accumulation, evaluation and
a checkpoint in between.
"""

# tiny: --hidden_size 32 --num_hidden_layers 2 --vocab_size 128 --block_size 32
# --per_device_train_batch_size 4
import os
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class ModelArguments:
    hidden_size: int = field(default=768)
    num_hidden_layers: int = field(default=10)
    vocab_size: int = field(default=32000)


@dataclass
class DataArguments:
    block_size: int = field(default=512)
    seed_data: int = field(default=5)


class Blocks(Dataset):
    def __init__(self, n, size, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, vocab, (n, size), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "labels": self.ids[i].clone(),
            "attention_mask": torch.ones_like(self.ids[i]),
        }


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print("step %d loss %s" % (state.global_step - 1, logs["loss"]), flush=True)


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    defaults = [
        "--output_dir",
        os.environ.get("FIT_OUT", "llama-out"),
        "--max_steps",
        "20",
        "--gradient_accumulation_steps",
        "2",
        "--learning_rate",
        "3e-4",
        "--warmup_steps",
        "4",
        "--lr_scheduler_type",
        "cosine",
        "--logging_steps",
        "1",
        "--eval_strategy",
        "steps",
        "--eval_steps",
        "10",
        "--save_steps",
        "1000",
        "--report_to",
        "none",
        "--weight_decay",
        "0.1",
        "--disable_tqdm",
        "true",
    ]
    import sys

    given = sys.argv[1:]
    if "--per_device_train_batch_size" not in given:
        defaults += ["--per_device_train_batch_size", "12"]
    model_args, data_args, args = parser.parse_args_into_dataclasses(args=defaults + given)
    set_seed(args.seed)
    h = model_args.hidden_size
    config = LlamaConfig(
        vocab_size=model_args.vocab_size,
        hidden_size=h,
        intermediate_size=h * 8 // 3,
        num_hidden_layers=model_args.num_hidden_layers,
        num_attention_heads=max(2, h // 64),
        num_key_value_heads=max(1, h // 192),
        max_position_embeddings=data_args.block_size,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    train = Blocks(
        args.per_device_train_batch_size * 2 * 20,
        data_args.block_size,
        config.vocab_size,
        data_args.seed_data,
    )
    held = Blocks(16, data_args.block_size, config.vocab_size, data_args.seed_data + 1)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=held,
        data_collator=default_data_collator,
        callbacks=[Print()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
