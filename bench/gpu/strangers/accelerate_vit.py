# An accelerate loop in the style of the no_trainer examples: ViT, accelerator.accumulate, metrics
# from logits, evaluation after each epoch, linear schedule. tiny: --hidden 24 --layers 2 --batch 4
# --image 32 --count 16 --cpu
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification, get_scheduler

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=768)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--image", type=int, default=224)
parser.add_argument("--count", type=int, default=640)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()


class Pictures(Dataset):
    def __len__(self):
        return args.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {
            "pixel_values": torch.randn(3, args.image, args.image, generator=g),
            "labels": i % 10,
        }


def main():
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate, cpu=args.cpu)
    set_seed(42)
    config = ViTConfig(
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=12 if args.hidden > 100 else 2,
        intermediate_size=4 * args.hidden,
        image_size=args.image,
        patch_size=16,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = ViTForImageClassification(config)
    train = DataLoader(Pictures(), shuffle=True, batch_size=args.batch, num_workers=0)
    evaluation = DataLoader(Pictures(), batch_size=2 * args.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_scheduler(
        "linear", optimizer, num_warmup_steps=2, num_training_steps=args.epochs * len(train)
    )
    model, optimizer, train, evaluation, schedule = accelerator.prepare(
        model, optimizer, train, evaluation, schedule
    )
    step = 0
    for epoch in range(args.epochs):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            accelerator.print(
                "step %d loss %.9g" % (step, loss.detach().float().item()), flush=True
            )
            step += 1
        model.eval()
        right = 0
        for batch in evaluation:
            with torch.no_grad():
                outputs = model(**batch)
            predictions, references = accelerator.gather_for_metrics(
                (outputs.logits.argmax(dim=-1), batch["labels"])
            )
            right += (predictions == references).sum().item()
        accelerator.print("epoch %d accuracy %.3f" % (epoch, right / args.count))


main()
