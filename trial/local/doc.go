// Package local runs trials on this machine: each is a supervised run with a keeper and a monitor
// of its own, in a cgroup whose limit is the trial's reservation. At its limit a trial stands still
// instead of being killed, as long as there is hope for more.
package local
