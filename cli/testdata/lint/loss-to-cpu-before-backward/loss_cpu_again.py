"""Loss cpu: one mistake, and its right twin beside it."""


def epoch(model, dl, opt):
    for b in dl:
        total = model(b.cuda()).pow(2).mean().to("cpu")  # expect: loss-to-cpu-before-backward
        opt.zero_grad()
        total.backward()
        opt.step()
