// Package allocsim holds device memory allocators as state machines: requests in, bytes out.
// Nothing here touches a device, a file or a clock.
//
// PyTorch's caching allocator is modelled byte for byte, for every release from 1.10 on: given the
// same requests it makes the same segments, hands out the same addresses and counts the same
// statistics. The rules are those of c10/cuda/CUDACachingAllocator.cpp; [Version] names what
// changed between releases.
//
// # How to use it
//
//	conf, err := allocsim.ParseConf("expandable_segments:True")
//	result, err := allocsim.Run(timeline, allocsim.Options{Config: conf, Limit: 9 * event.GiB})
//
// [Run] sends a whole [event.Timeline] through the allocator and returns peaks, retries and the
// first request that did not fit. [New] returns the allocator itself, to be driven request by
// request: [Allocator.Malloc], [Allocator.Free], [Allocator.EmptyCache], [Allocator.Stats],
// [Allocator.Segments]. [Replay] checks a recorded history against the model, and derives from it
// the timeline that other settings can be tried on.
//
// # How it is built
//
// Blocks live in one slice and refer to each other by index; each (pool, stream) keeps its free
// blocks in an ordered set (freeset.go). Addresses of new segments come from a [Driver]: a model of
// the CUDA driver's habits, or a recording. An Allocator is not safe for use by several goroutines.
package allocsim
