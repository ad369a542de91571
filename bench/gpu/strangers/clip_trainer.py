"""CLIP from a config with the Trainer: the model computes the contrastive loss over the whole batch
itself.
"""

# tiny: --batch 4 --hidden 32 --layers 1 --image 32
import argparse
import os

import torch
from transformers import CLIPConfig, CLIPModel, Trainer, TrainingArguments


class Pairs(torch.utils.data.Dataset):
    def __init__(self, n, image, vocab=1000):
        self.n, self.image, self.vocab = n, image, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(
            3, self.vocab, (int(torch.randint(8, 33, (1,), generator=g)),), generator=g
        )
        return {
            "pixel_values": torch.randn(3, self.image, self.image, generator=g),
            "input_ids": torch.cat([ids, torch.tensor([self.vocab - 1])]),
        }


def collate_fn(examples):
    pixel_values = torch.stack([e["pixel_values"] for e in examples])
    longest = max(len(e["input_ids"]) for e in examples)
    input_ids = torch.stack(
        [
            torch.nn.functional.pad(e["input_ids"], (0, longest - len(e["input_ids"])), value=1)
            for e in examples
        ]
    )
    return {
        "pixel_values": pixel_values,
        "input_ids": input_ids,
        "attention_mask": (input_ids != 1).long(),
        "return_loss": True,
    }


class LossPrinter(Trainer):
    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            print(
                (
                    f"step {self.state.global_step - 1} loss {logs['loss']:.6f} grad_norm "
                    f"{logs['grad_norm']:.4f}"
                ),
                flush=True,
            )
        super().log(logs, *args, **kwargs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=512)
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--image", type=int, default=224)
    a = ap.parse_args()
    torch.manual_seed(0)
    heads = max(2, a.hidden // 64)
    text = dict(
        vocab_size=1000,
        hidden_size=a.hidden,
        intermediate_size=4 * a.hidden,
        num_hidden_layers=a.layers,
        num_attention_heads=heads,
        max_position_embeddings=40,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=999,
    )
    vision = dict(
        hidden_size=a.hidden,
        intermediate_size=4 * a.hidden,
        num_hidden_layers=a.layers,
        num_attention_heads=heads,
        image_size=a.image,
        patch_size=16,
    )
    model = CLIPModel(
        CLIPConfig(text_config=text, vision_config=vision, projection_dim=a.hidden // 2)
    )
    args = TrainingArguments(
        output_dir=os.environ.get("FIT_OUT", "clip-out"),
        per_device_train_batch_size=a.batch,
        per_device_eval_batch_size=a.batch,
        max_steps=20,
        learning_rate=5e-5,
        warmup_steps=0,
        weight_decay=0.1,
        logging_steps=1,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=10,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    LossPrinter(
        model=model,
        args=args,
        train_dataset=Pairs(20 * a.batch, a.image),
        eval_dataset=Pairs(a.batch, a.image),
        data_collator=collate_fn,
    ).train()


if __name__ == "__main__":
    main()
