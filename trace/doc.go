// Package trace reads what others wrote about memory into the words of package event: PyTorch's allocator snapshots,
// framework logs, out-of-memory messages, TensorFlow's dumps. Every reader is meant for files from strangers: it names
// no code, bounds its memory and says where a file is broken.
package trace
