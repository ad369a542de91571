package api

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// socketUser finds the user of the socket that is bound to own and connected to other, in the
// kernel's tables. The kernel walks a table while it is read, and entries that move meanwhile may
// be missed: then it is read again.
func socketUser(own, other netip.AddrPort) (uid int, known bool) {
	for range 4 {
		for _, table := range tables(own, other) {
			data, err := os.ReadFile(table.path)
			if err != nil {
				continue
			}
			if uid, known := ownerOf(data, table.entry); known {
				return uid, true
			}
		}
	}
	return 0, false
}

type table struct {
	path  string
	entry []byte // how a line of the table names the socket
}

// tables are where the socket may stand. A program may use an IPv6 socket for an IPv4 address.
func tables(own, other netip.AddrPort) []table {
	pair := func(a, b netip.Addr) []byte {
		return fmt.Appendf(nil, " %s:%04X %s:%04X ", words(a), own.Port(), words(b), other.Port())
	}
	wide := func(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }
	list := []table{{"/proc/net/tcp6", pair(wide(own.Addr()), wide(other.Addr()))}}
	if own.Addr().Is4() {
		list = append([]table{{"/proc/net/tcp", pair(own.Addr(), other.Addr())}}, list...)
	}
	return list
}

// words is an address as the tables have it: 32 bits at a time, in this machine's order of bytes.
func words(a netip.Addr) string {
	var text strings.Builder
	for part := a.AsSlice(); len(part) > 0; part = part[4:] {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(part))
	}
	return text.String()
}

// ownerOf finds the user of an entry. One that its program has closed already belongs to nobody any
// more, and is shown as root's: it has no inode. One that has not been answered yet is another
// connection than the one asked about.
func ownerOf(data, entry []byte) (uid int, known bool) {
	const state, user, inode = 0, 4, 6 // fields after the addresses
	const synSent = "02"
	for {
		at := bytes.Index(data, entry)
		if at < 0 {
			return 0, false
		}
		data = data[at+len(entry):]
		line, _, _ := bytes.Cut(data, []byte{'\n'})
		fields := strings.Fields(string(line))
		if len(fields) <= inode || fields[inode] == "0" || fields[state] == synSent {
			continue
		}
		if uid, err := strconv.Atoi(fields[user]); err == nil {
			return uid, true
		}
	}
}

// nobodyKnown is the number that stands for users who have none here: in a container every user
// outside of it looks like this one.
func nobodyKnown() int {
	const usual = 65534
	data, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return usual
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
		return n
	}
	return usual
}
