"""A handler that tidies up tries nothing again; one that calls its own function does."""

import torch


def free_cached_memory(model):
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()


class Runner:
    def fit(self, loader):
        for batch in loader:
            try:
                loss = self.model(batch.cuda()).mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                free_cached_memory(self.model)
            except torch.cuda.OutOfMemoryError:
                self.optimizer.zero_grad()
                free_cached_memory(self.model)

    def validate(self, batch):
        try:
            scores = self.model(batch.cuda())
            return scores.argmax(-1)
        except torch.cuda.OutOfMemoryError:  # expect: retry-in-handler
            torch.cuda.empty_cache()
            return self.validate(batch[: len(batch) // 2])
