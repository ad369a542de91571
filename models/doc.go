// Package models describes the models that people train: their parameters and their forward pass
// as operations of package tape. Each description follows the Python source of the library line by
// line (transformers 5, torchvision 0.26), because the lifetime of a local variable decides which
// memory can be reused.
//
// Files are grouped by kind: decoder_*, encoder_*, seq2seq_* (encoder-decoders), speech_*,
// vision_*, multimodal_*, conv_* (convolutional networks), and plain.go (PyTorch's own layers).
// Files without such a prefix are shared by all kinds.
//
// Start at [New], which reads a Hugging Face config.json, or [Preset] for models known by name. To
// add a model, write a function that builds a [Model] and list it under its kind in registry.go.
package models
