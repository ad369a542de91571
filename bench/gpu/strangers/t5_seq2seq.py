# HF Seq2SeqTrainer on T5 with padded labels, gradient accumulation of 2 and Adafactor.
# tiny: --d-model 24 --layers 2 --batch 4 --source 20 --target 12 --vocab 60 --cpu --steps 3
import argparse
import tempfile

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--d-model", type=int, default=512)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--source", type=int, default=384)
parser.add_argument("--target", type=int, default=128)
parser.add_argument("--vocab", type=int, default=32128)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
set_seed(1)
g = torch.Generator().manual_seed(8)
rows = []
for i in range(2 * args.batch * args.steps):
    source = torch.randint(2, args.vocab, (args.source,), generator=g)
    mask = torch.ones_like(source)
    mask[args.source - (i * 7) % (args.source // 3) :] = 0
    labels = torch.randint(2, args.vocab, (args.target,), generator=g)
    labels[args.target // 2 + (i * 5) % (args.target // 2) :] = -100
    rows.append(
        {"input_ids": source.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}
    )


class Printer(TrainerCallback):
    def on_log(self, a, state, control, logs=None, **kw):
        if "loss" in logs:
            print("step %d loss %.9g" % (state.global_step - 1, logs["loss"]), flush=True)


model = T5ForConditionalGeneration(
    T5Config(
        vocab_size=args.vocab,
        d_model=args.d_model,
        d_kv=args.d_model // 4,
        d_ff=2 * args.d_model,
        num_layers=args.layers,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
)
with tempfile.TemporaryDirectory() as out:
    settings = Seq2SeqTrainingArguments(
        out,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=2,
        max_steps=args.steps,
        learning_rate=1e-4,
        optim="adafactor",
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=args.cpu,
    )
    Seq2SeqTrainer(model=model, args=settings, train_dataset=rows, callbacks=[Printer()]).train()
