"""Knowledge distillation: big frozen encoder -> small student, soft targets + hidden state matching."""  # noqa: E501

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM, get_cosine_schedule_with_warmup

TINY = os.environ.get("TINY") == "1"
torch.manual_seed(5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

VOCAB = 150 if TINY else 12000
SEQ = 16 if TINY else 256
BATCH = 2 if TINY else 24
MASK_ID = 4
TEMPERATURE = 2.0
STEPS = 20


def bert(hidden, layers, heads):
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=hidden * 4,
            max_position_embeddings=512,
        )
    )


class Distiller(nn.Module):
    def __init__(self, teacher, student, t_dim, s_dim):
        super().__init__()
        self.teacher = teacher.eval()
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.student = student
        self.proj = nn.Linear(s_dim, t_dim)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()  # dropout of the teacher stays off
        return self

    def forward(self, ids, labels):
        with torch.no_grad():
            t = self.teacher(input_ids=ids, output_hidden_states=True)
        s = self.student(input_ids=ids, output_hidden_states=True)
        sel = labels != -100
        hard = F.cross_entropy(s.logits[sel], labels[sel])
        soft = (
            F.kl_div(
                F.log_softmax(s.logits / TEMPERATURE, dim=-1),
                F.softmax(t.logits / TEMPERATURE, dim=-1),
                reduction="none",
            )
            .sum(-1)
            .mean()
            * TEMPERATURE**2
        )
        # every k-th layer of the teacher teaches one layer of the student
        k = (len(t.hidden_states) - 1) // (len(s.hidden_states) - 1)
        match = 0.0
        for i, hs in enumerate(s.hidden_states):
            match = match + F.mse_loss(self.proj(hs), t.hidden_states[i * k])
        return 0.5 * hard + 0.5 * soft + 0.1 * match / len(s.hidden_states)


def mlm_batch(gen):
    ids = torch.randint(5, VOCAB, (BATCH, SEQ), generator=gen)
    labels = ids.clone()
    picked = torch.rand(ids.shape, generator=gen) < 0.15
    picked[:, 0] = True
    labels[~picked] = -100
    ids[picked] = MASK_ID
    return ids.to(device), labels.to(device)


def main():
    t_dim, s_dim = (32, 16) if TINY else (1024, 512)
    teacher = bert(t_dim, 4 if TINY else 16, 4 if TINY else 16)
    student = bert(s_dim, 2 if TINY else 4, 2 if TINY else 8)
    model = Distiller(teacher, student, t_dim, s_dim).to(device)
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=3e-4)
    sched = get_cosine_schedule_with_warmup(opt, 4, STEPS)
    gen = torch.Generator().manual_seed(17)
    model.train()
    for step in range(STEPS):
        ids, labels = mlm_batch(gen)
        loss = model(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
