"""Follows the script through its steps: which module is being called, forward, backward, optimizer; and ends it in time."""
import torch

from . import recorder as record


class Script:
    """Counts optimizer steps and calls `over` after enough of them."""

    def __init__(self, stage, recorder, steps, over, fail):
        self.stage, self.recorder, self.steps, self.over, self.fail = stage, recorder, steps, over, fail
        self.counts = {}  # optimizer -> steps taken; scripts with several (GANs) end when each has had its share
        self.names = {}  # id of a module -> its name below the outermost one
        self.backwards = 0  # backward passes that are running

    def install(self):
        self._follow_modules()
        self._follow_backward()
        self._follow_optimizers()

    # -- modules -----------------------------------------------------------------------------------------------

    def _follow_modules(self):
        script, stage, call = self, self.stage, torch.nn.Module.__call__

        def follow(module, *args, **kwargs):
            outermost = not stage.modules
            if outermost:
                script.enter_model(module)
            stage.modules.append(script.names.get(id(module)) or type(module).__name__)
            try:
                return call(module, *args, **kwargs)
            finally:
                stage.modules.pop()

        torch.nn.Module.__call__ = follow
        linear = torch.nn.functional.linear

        def follow_linear(*args, **kwargs):
            stage.in_linear = True
            try:
                return linear(*args, **kwargs)
            finally:
                stage.in_linear = False

        torch.nn.functional.linear = follow_linear

    def enter_model(self, module):
        if id(module) not in self.names:
            self.names.clear()
            for name, part in module.named_modules():
                self.names[id(part)] = name or type(module).__name__
        if not self.backwards:  # a recomputed block is called by the backward pass
            self.recorder.mark("forward" if torch.is_grad_enabled() else "eval")

    # -- backward ------------------------------------------------------------------------------------------------

    def _follow_backward(self):
        graph, script, recorder, fail = torch.autograd.graph, self, self.recorder, self.fail
        run = graph._engine_run_backward

        def follow(*args, **kwargs):
            recorder.settle("forward", record.ACTIVATIONS)
            recorder.mark("backward")
            script.backwards += 1
            try:
                return run(*args, **kwargs)
            except RuntimeError as e:
                if "hasPrimaryContext" in str(e):  # card.py could not answer for the driver
                    fail("torch %s cannot run a backward pass for an absent card" % torch.__version__)
                raise
            finally:
                script.backwards -= 1

        for module in (graph, torch.autograd):
            if getattr(module, "_engine_run_backward", None) is run:
                module._engine_run_backward = follow

    # -- optimizer -----------------------------------------------------------------------------------------------

    def _follow_optimizers(self):
        from torch.optim import optimizer as module
        from torch._subclasses.fake_tensor import FakeTensor
        module._foreach_supported_types.append(FakeTensor)
        module.register_optimizer_step_pre_hook(self.before_step)
        module.register_optimizer_step_post_hook(self.after_step)

    def before_step(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for p in group["params"]:
                self.recorder.categorize(p.untyped_storage(), record.WEIGHTS)
                if p.grad is not None and not p.grad.is_sparse:
                    self.recorder.categorize(p.grad.untyped_storage(), record.GRADIENTS)
        self.recorder.mark("optimizer")

    def after_step(self, optimizer, args, kwargs):
        recorder = self.recorder
        recorder.settle("optimizer", record.OPTIMIZER)
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        recorder.mark("optimizer", max(self.counts.values()))
        if min(self.counts.values()) >= self.steps or max(self.counts.values()) >= 3 * self.steps:
            self.over("steps")
