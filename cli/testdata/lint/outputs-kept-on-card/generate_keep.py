import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").to("cuda")


def decode(loader):
    out = []
    with torch.no_grad():
        for batch in loader:
            res = model(**batch.to("cuda"), output_hidden_states=True)
            out.append(res.hidden_states)  # expect: outputs-kept-on-card
    return out
