"""One sentence after another, and the next word of one: no batch holds a graph."""

import torch


def tagged(model, vocabulary, sentences):
    model.eval()
    for sentence in sentences:
        ids = torch.tensor([vocabulary[w] for w in sentence]).unsqueeze(0).cuda()
        tags = model(ids).argmax(-1)  # hint: eval-without-no-grad
        print(tags.tolist())


def indexed(model, dataset, index):
    model.eval()
    for i in range(len(dataset)):
        vector = model(dataset[i].unsqueeze(0))  # hint: eval-without-no-grad
        index.add(i, vector.squeeze(0).tolist())


def continued(model, tokenizer, prompt, longest):
    model.cuda().eval()
    ids = torch.tensor(tokenizer.encode(prompt)).unsqueeze(dim=0).cuda()
    while ids.shape[1] < longest:
        shown = ids
        if ids.shape[1] > 512:
            shown = ids[:, -512:]
        best = model(shown)[0, -1].argmax()  # hint: eval-without-no-grad
        ids = torch.cat([ids, best.view(1, 1)], dim=1)
    return ids
