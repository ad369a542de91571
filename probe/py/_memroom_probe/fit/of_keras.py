"""Keras: accumulation in the optimizer with smaller batches, and the precision policy.

Keras' own accumulation averages the gradients of equal micro-batches, so the weights after each effective batch are the
same. Its progress bar and callbacks count micro-batches; nothing is measured, so the number of pieces is what is asked.
"""
import functools


def apply(keras, remedies, say):
    for remedy in remedies:
        params = dict(remedy.get("params") or {})
        if remedy.get("id") == "micro_batch" and (params.get("failed") or params.get("pieces")):
            _accumulate(keras, int(params.get("pieces") or round(4 / params.get("factor", 1.0) ** 2)), say)
        elif remedy.get("id") == "mixed_precision":
            policy = "mixed_float16" if params.get("dtype") == "fp16" else "mixed_bfloat16"
            keras.mixed_precision.set_global_policy(policy)
            say("applied", "Keras with the policy %s" % policy, id="mixed_precision", equivalence="changes")


def _accumulate(keras, pieces, say):
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(self, x=None, y=None, batch_size=None, *args, **kwargs):
        reason = _why_not(keras, self, x, batch_size or 32)
        if reason:
            say("declined", "%s: %s" % (self.name, reason), id="micro_batch")
            return original(self, x, y, batch_size, *args, **kwargs)
        whole = batch_size or 32
        count = next(n for n in range(min(pieces, whole), whole + 1) if whole % n == 0)
        self.optimizer.gradient_accumulation_steps = count
        say("applied", "%s: batches of %d in %d pieces, accumulated by Keras" % (self.name, whole, count), id="micro_batch",
            equivalence="exact", rows=whole, pieces=count)
        return original(self, x, y, whole // count, *args, **kwargs)

    keras.Model.fit = fit


def _why_not(keras, model, x, batch):
    if not hasattr(getattr(model, "optimizer", None), "gradient_accumulation_steps"):
        return "this version of Keras does not accumulate gradients"
    if model.optimizer.gradient_accumulation_steps:
        return "the script accumulates itself"
    if model.optimizer.built:
        return "the optimizer has been used before"
    if any(isinstance(layer, keras.layers.BatchNormalization) and layer.trainable for layer in model._flatten_layers()):
        return "a BatchNormalization layer takes its statistics over the whole batch"
    arrays = x if isinstance(x, (list, tuple)) else list(x.values()) if isinstance(x, dict) else [x]
    if any(not hasattr(a, "shape") or isinstance(a, type(None)) for a in arrays):
        return "the batches come from a dataset or generator; give it a smaller batch and Adam(gradient_accumulation_steps=...)"
    if int(arrays[0].shape[0]) % batch:
        return "the last batch is smaller: accumulation would run over the end of the epoch"
    return None
