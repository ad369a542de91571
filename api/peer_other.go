//go:build !linux

package api

import "net/netip"

// socketUser never knows the owner of a connection: only Linux reveals it.
func socketUser(_, _ netip.AddrPort) (uid int, known bool) { return 0, false }

func nobodyKnown() int { return -1 }
