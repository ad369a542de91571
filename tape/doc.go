// Package tape is a miniature of PyTorch's eager mode that computes no numbers: tensors have a
// shape, strides, a type and a storage with a reference count, operations allocate what the real
// ones allocate and keep what autograd keeps, and a backward pass runs the recorded nodes in
// PyTorch's order. The result is the order of allocations and releases, an [event.Timeline].
//
// Start at [Graph]. A model is a Go function over a Graph that follows its Python original line by
// line: [Graph.Enter] and [Frame.Leave] are a Python function's local variables, [Frame.Set] an
// assignment. Every operation returns a floating tensor, which the next operation that gets it as
// an argument releases, as a temporary of a Python expression is released; Set makes it a variable.
//
// The rules (order of events, what is kept, temporaries) were verified request by request against
// traces of real runs with torch 2.11 on an H200; see the testdata of package plan.
package tape
