package store

import (
	"slices"

	"golang.org/x/sys/unix"
)

// networkFileSystems, by the magic number that statfs gives: NFS, SMB, CIFS, SMB2, 9p, Lustre,
// GPFS, Ceph, AFS, FUSE.
var networkFileSystems = []int64{0x6969, 0x517b, 0xff534d42, 0xfe534d42, 0x01021997, 0x0bd00bd0,
	0x47504653, 0x00c36400, 0x5346414f, 0x65735546}

func onNetwork(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && slices.Contains(networkFileSystems,
		int64(st.Type)&0xffffffff)
}
