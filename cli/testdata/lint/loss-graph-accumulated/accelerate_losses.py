import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained("gpt2")
opt = torch.optim.AdamW(model.parameters())


def train(loader):
    total_loss = 0
    for batch in loader:
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        opt.step()
        opt.zero_grad()
        total_loss += outputs.loss  # expect: loss-graph-accumulated
