"""Yield losses: one mistake, and its right twin beside it."""


def steps(model, opt, loader, crit):
    for x, y in loader:
        opt.zero_grad()
        out = crit(model(x), y)
        out.backward()
        opt.step()
        yield out  # expect: graph-kept-in-list


def main(model, opt, loader, crit):
    curve = list(steps(model, opt, loader, crit))
    print(len(curve))
