// Package meter takes readings: /proc, cgroup v1 and v2, pressure stalls, /dev/shm. Each source may
// be absent; a reader then returns an error with that reason and the caller goes on without it.
// Mount points are arguments, so that tests read fixture trees. Package supervise uses it; the GPU
// driver is in package nvml below.
//
// In order of reading: [Proc] reads one mount of /proc, [Tree] follows the processes of a run,
// [Cgroup] is one memory cgroup of either version.
package meter
