"""A reference policy that builds a graph, in a class that trains another."""

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM


class Preferences:
    def __init__(self, name):
        self.policy = AutoModelForCausalLM.from_pretrained(name).cuda()
        self.ref_model = AutoModelForCausalLM.from_pretrained(name).cuda()
        self.ref_model.eval()
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), 1e-6)

    def train(self, loader):
        for ids in loader:
            ids = ids.cuda()
            wanted = self.policy(ids).logits
            before = self.ref_model(ids).logits  # expect: frozen-model-with-grad
            loss = F.kl_div(wanted.log_softmax(-1), before.softmax(-1), reduction="batchmean")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
