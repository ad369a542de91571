"""accelerate over two CPU ranks: sequence classification with its own accumulation."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(3)
config = BertConfig(
    vocab_size=1500,
    hidden_size=128,
    num_hidden_layers=5,
    num_attention_heads=4,
    intermediate_size=512,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=4,
)
model = BertForSequenceClassification(config)
ids = torch.randint(0, 1500, (256, 96))
data = DataLoader(TensorDataset(ids, ids.sum(1) % 4), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for step, (x, y) in enumerate(data):
    with accelerator.accumulate(model):
        loss = model(input_ids=x, labels=y).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    shown = accelerator.gather(loss.detach()[None]).mean().item()
    accelerator.print("step %d loss %.8g" % (step, shown), flush=True)
accelerator.end_training()
