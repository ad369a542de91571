"""Reference-free preference tuning (SimPO) of a LoRA adapter on a Qwen3-style model."""

import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM, get_cosine_schedule_with_warmup

CUDA = torch.cuda.is_available()


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pairs", type=int, default=6 if CUDA else 2, help="pairs per micro batch")
    ap.add_argument("--grad-accum", type=int, default=2)
    ap.add_argument("--max-prompt", type=int, default=192 if CUDA else 6)
    ap.add_argument("--max-answer", type=int, default=384 if CUDA else 8)
    ap.add_argument("--vocab", type=int, default=32000 if CUDA else 120)
    ap.add_argument("--hidden", type=int, default=768 if CUDA else 32)
    ap.add_argument("--layers", type=int, default=8 if CUDA else 2)
    ap.add_argument("--updates", type=int, default=6 if CUDA else 2)
    ap.add_argument("--beta", type=float, default=2.0)
    ap.add_argument("--gamma", type=float, default=1.0)
    ap.add_argument("--sft-weight", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=1e-4)
    return ap.parse_args()


def preference_data(a):
    g = torch.Generator().manual_seed(2405)
    rows = []
    for _ in range(a.pairs * a.grad_accum * a.updates):
        n = torch.randint(a.max_prompt // 2, a.max_prompt, (1,), generator=g).item()
        prompt = torch.randint(3, a.vocab, (n,), generator=g)
        answers = []
        for low, high in ((3, a.vocab // 2), (a.vocab // 2, a.vocab)):
            m = torch.randint(a.max_answer // 2, a.max_answer, (1,), generator=g).item()
            answers.append(torch.randint(low, high, (m,), generator=g))
        rows.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
    return rows


class PairCollator:
    """All chosen sequences first, then all rejected ones, right padded."""

    def __init__(self, pad_id=0):
        self.pad_id = pad_id

    def __call__(self, rows):
        seqs, masks = [], []
        for key in ("chosen", "rejected"):
            for r in rows:
                seqs.append(torch.cat([r["prompt"], r[key]]))
                masks.append(torch.cat([torch.zeros_like(r["prompt"]), torch.ones_like(r[key])]))
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad(seqs, batch_first=True, padding_value=self.pad_id)
        answer = pad(masks, batch_first=True).bool()
        return {"input_ids": ids, "attention_mask": (ids != self.pad_id).long(), "answer": answer}


def average_logps(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    logp = F.log_softmax(logits[:, :-1].float(), dim=-1)
    token = logp.gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    keep = batch["answer"][:, 1:].float()
    return (token * keep).sum(1) / keep.sum(1)


def simpo_loss(chosen, rejected, a):
    margin = a.beta * (chosen - rejected) - a.gamma
    loss = -F.logsigmoid(margin).mean() - a.sft_weight * chosen.mean()
    return loss, (chosen > rejected).float().mean()


def build(a):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=a.vocab,
        hidden_size=a.hidden,
        num_hidden_layers=a.layers,
        intermediate_size=3 * a.hidden,
        num_attention_heads=a.hidden // 16 if not CUDA else 12,
        num_key_value_heads=2 if not CUDA else 4,
        head_dim=16 if not CUDA else 64,
        max_position_embeddings=1024,
        use_cache=False,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    base = Qwen3ForCausalLM(config)
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        target_modules=[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
    )
    model = get_peft_model(base, lora)
    model.print_trainable_parameters()
    return model


def main():
    a = parse()
    device = "cuda" if CUDA else "cpu"
    model = build(a).to(device)
    model.train()
    weights = [p for p in model.parameters() if p.requires_grad]
    optim = torch.optim.AdamW(weights, lr=a.lr, weight_decay=0.0)
    sched = get_cosine_schedule_with_warmup(optim, 1, a.updates)
    loader = DataLoader(preference_data(a), batch_size=a.pairs, collate_fn=PairCollator())

    for i, batch in enumerate(loader):
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast(device, dtype=torch.bfloat16, enabled=CUDA):
            chosen, rejected = average_logps(model, batch).chunk(2)
        loss, acc = simpo_loss(chosen, rejected, a)
        (loss / a.grad_accum).backward()
        if (i + 1) % a.grad_accum == 0:
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optim.step()
            sched.step()
            optim.zero_grad()
        print(f"micro {i} loss {loss.item():.8f} acc {acc.item():.3f}", flush=True)

    with tempfile.TemporaryDirectory() as out:
        model.save_pretrained(out)
        print("adapter files:", sorted(os.listdir(out)))


if __name__ == "__main__":
    main()
