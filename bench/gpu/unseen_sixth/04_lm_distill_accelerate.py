"""
Knowledge distillation of a decoder LM: a deep OPT-style teacher (frozen) into a shallow student.
loss = alpha * T^2 * KL(teacher || student) + (1 - alpha) * CE + beta * hidden-state MSE
Uses accelerate for device placement / accumulation / mixed precision.
"""

import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import OPTConfig, OPTForCausalLM, get_scheduler

CUDA = torch.cuda.is_available()

HP = dict(
    temperature=2.0,
    alpha=0.7,
    beta=0.1,
    lr=3e-4,
    accum=2,
    batch_size=6 if CUDA else 2,
    block=512 if CUDA else 16,
    vocab=40000 if CUDA else 128,
    hidden=640 if CUDA else 32,
    teacher_layers=16 if CUDA else 3,
    student_layers=4 if CUDA else 1,
    heads=10 if CUDA else 2,
    opt_steps=8 if CUDA else 2,
    seed=99,
)


def opt(layers):
    cfg = OPTConfig(
        vocab_size=HP["vocab"],
        hidden_size=HP["hidden"],
        word_embed_proj_dim=HP["hidden"],
        ffn_dim=4 * HP["hidden"],
        num_hidden_layers=layers,
        num_attention_heads=HP["heads"],
        max_position_embeddings=HP["block"] + 8,
        dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    return OPTForCausalLM(cfg)


def make_corpus(n, seed):
    # noisy arithmetic progressions over the vocabulary
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(0, HP["vocab"], (n, 1), generator=g)
    stride = torch.randint(1, 17, (n, 1), generator=g)
    ids = (start + stride * torch.arange(HP["block"])) % (HP["vocab"] - 4) + 4
    noise = torch.rand(n, HP["block"], generator=g) < 0.05
    return torch.where(noise, torch.randint(4, HP["vocab"], ids.shape, generator=g), ids)


def distill_loss(s_out, t_out, ids):
    T = HP["temperature"]
    s_logits = s_out.logits[:, :-1].float()
    t_logits = t_out.logits[:, :-1].float()
    kl = (
        F.kl_div(
            F.log_softmax(s_logits / T, dim=-1),
            F.log_softmax(t_logits / T, dim=-1),
            log_target=True,
            reduction="none",
        )
        .sum(-1)
        .mean()
        * T
        * T
    )
    ce = F.cross_entropy(s_logits.reshape(-1, s_logits.size(-1)), ids[:, 1:].reshape(-1))
    hid = F.mse_loss(s_out.hidden_states[-1].float(), t_out.hidden_states[-1].float())
    return HP["alpha"] * kl + (1 - HP["alpha"]) * ce + HP["beta"] * hid, kl, ce


def main():
    set_seed(HP["seed"])
    acc = Accelerator(
        gradient_accumulation_steps=HP["accum"], mixed_precision="bf16" if CUDA else "no"
    )
    teacher = opt(HP["teacher_layers"]).eval().requires_grad_(False)
    student = opt(HP["student_layers"])
    # student starts from the teacher's embeddings, and every k-th layer
    student.model.decoder.embed_tokens.load_state_dict(
        teacher.model.decoder.embed_tokens.state_dict()
    )
    k = HP["teacher_layers"] // HP["student_layers"]
    for i, layer in enumerate(student.model.decoder.layers):
        layer.load_state_dict(teacher.model.decoder.layers[i * k].state_dict())

    corpus = make_corpus(HP["batch_size"] * HP["accum"] * HP["opt_steps"], HP["seed"])
    loader = DataLoader(
        TensorDataset(corpus),
        batch_size=HP["batch_size"],
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        drop_last=True,
    )
    optimizer = torch.optim.AdamW(student.parameters(), lr=HP["lr"], weight_decay=0.01)
    sched = get_scheduler(
        "cosine", optimizer, num_warmup_steps=2, num_training_steps=HP["opt_steps"] + 1
    )

    student, optimizer, loader, sched = acc.prepare(student, optimizer, loader, sched)
    teacher.to(acc.device)

    micro = 0
    for (ids,) in loader:
        with acc.accumulate(student):
            with torch.no_grad(), acc.autocast():
                t_out = teacher(input_ids=ids, output_hidden_states=True)
            s_out = student(input_ids=ids, output_hidden_states=True)
            loss, kl, ce = distill_loss(s_out, t_out, ids)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            sched.step()
            optimizer.zero_grad()
        micro += 1
        acc.print(
            f"micro {micro} loss {loss.item():.8f} kl {kl.item():.6f} ce {ce.item():.6f}"
            + (" *" if acc.sync_gradients else ""),
            flush=True,
        )

    with tempfile.TemporaryDirectory() as d:
        acc.save(acc.unwrap_model(student).state_dict(), f"{d}/student.bin")


if __name__ == "__main__":
    main()
