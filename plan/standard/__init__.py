"""A standard training step of any model that transformers or diffusers can build from its
configuration.

`memroom plan config.json` rehearses it for types that the binary does not describe: the model is
made from the configuration alone, gets inputs of the right form, and trains for a few steps on
fake tensors. In order of reading: main (what is asked), models (the class and the model), inputs
(a batch for it), losses (what is minimised), loop (the steps).
"""
