// Package family describes models: for each family that people train, its parameters and its
// forward pass as operations of package tape. One file a family; each follows the Python source of
// the library line by line (transformers 5, torchvision 0.26), because the lifetime of a local
// variable decides which memory can be reused.
//
// Start at [New], which reads a Hugging Face config.json, or [Preset] for models known by name. To
// add a family, write a function that builds a [Model] and list it in registry.
package family
