"""What a model carries beside its layers is no forward pass."""

import torch


def translate(model, loader):
    model.eval()
    texts = []
    for source, target in loader:
        ids = torch.argmax(model(source.cuda()), -1)  # expect: eval-without-no-grad
        texts += model.target_tokenizer(ids.tolist())
        texts += model.source_tok.decode(source.tolist())
    return texts


class Wrapped:
    """forward() serves training and prediction: no_grad belongs into predict()."""

    def __init__(self, model, loss):
        self.model, self.loss = model, loss

    def forward(self, x):
        return self.model(x)

    def predict(self, x):
        self.model.eval()
        return self.forward(x)

    def train(self, loader, optimizer):
        self.model.train()
        for x, y in loader:
            self.loss(self.forward(x.cuda()), y.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()

    def scores(self, loader):
        return [self.predict(x.cuda()).argmax(1).tolist() for x, _ in loader]
