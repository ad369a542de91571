"""Terms that are divided by the number of micro-batches where they are made."""


class Distiller:
    def __init__(self, student, teacher, losses, optimizer, accumulation_steps):
        self.student, self.teacher, self.losses = student, teacher, losses
        self.optimizer, self.accumulation_steps = optimizer, accumulation_steps

    def epoch(self, loader):
        for i, (x, y) in enumerate(loader):
            out = self.student(x)
            told = self.losses[0](out, y) / self.accumulation_steps
            like = self.losses[1](out, self.teacher(x).detach()) / self.accumulation_steps
            loss = told + like
            loss.backward()
            if (i + 1) % self.accumulation_steps == 0:  # hint: last-window-dropped
                self.optimizer.step()
                self.optimizer.zero_grad()
