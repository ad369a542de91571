"""The schedule is as long as there are optimizer steps, and steps at every batch."""

from transformers import get_linear_schedule_with_warmup


def train(model, optimizer, loader, epochs, accum_steps=8):
    updates = epochs * len(loader) // accum_steps
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, 500, updates)
    for i, batch in enumerate(loader):
        loss = model(**batch).loss / accum_steps
        loss.backward()
        if (i + 1) % accum_steps == 0:  # hint: last-window-dropped
            optimizer.step()
            optimizer.zero_grad()
        lr_scheduler.step()  # expect: scheduler-each-micro-step
