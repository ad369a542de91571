"""A training loop that leaks: the running loss is a tensor, so it keeps the graph of every step
since the first.

The cure is one word: `total += loss.item()`. While the loop still runs memroom names the line that
allocates what stays (on a card), or the variable that keeps it (on a CPU).

"""

import argparse

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--clean", action="store_true", help="do it right")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Linear(64, args.width),
        torch.nn.GELU(),
        torch.nn.Linear(args.width, args.width),
        torch.nn.GELU(),
        torch.nn.Linear(args.width, 1),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    total = 0.0
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch, 64, device=device)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward(retain_graph=not args.clean)
        optimizer.step()
        if args.clean:
            total += loss.item()
        else:
            total = total + loss  # every step's graph stays alive through this sum
        if step % 50 == 0:
            print(f"step {step}: mean loss {float(total) / step:.4f}", flush=True)
    print("done")


if __name__ == "__main__":
    main()
