import argparse

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="Qwen/Qwen2.5-0.5B")
    p.add_argument("--data", default="notes.jsonl")
    p.add_argument("--length", type=int, default=1024)
    return p.parse_args()


def main():
    args = parse()
    tok = AutoTokenizer.from_pretrained(args.model)
    if tok.pad_token is None:
        tok.pad_token = tok.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model)

    raw = load_dataset("json", data_files=args.data, split="train").train_test_split(0.1, seed=3)

    def encode(rows):
        return tok(rows["text"], truncation=True, max_length=args.length)

    data = raw.map(encode, batched=True, remove_columns=raw["train"].column_names)

    def compute_metrics(pred):
        ids = np.argmax(pred.predictions, axis=-1)
        labels = pred.label_ids
        shifted, wanted = ids[:, :-1], labels[:, 1:]
        mask = wanted != -100
        return {"token_accuracy": float((shifted[mask] == wanted[mask]).mean())}

    training = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=8,
        learning_rate=2e-5,
        num_train_epochs=2,
        eval_strategy="steps",
        eval_steps=200,
        bf16=True,
        gradient_checkpointing=True,
        logging_steps=10,
        report_to=[],
    )
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
        compute_metrics=compute_metrics,  # expect: trainer-keeps-logits
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
