package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"memroom/event"
)

// checkHost looks at what of the host a training job can run out of, other than by its cgroup.
func checkHost() []check {
	return []check{checkMemory(), checkSwap(), checkShm(), checkUlimits(), checkPressure(),
		checkKernelLog()}
}

func checkMemory() check {
	c := check{ID: "memory", Title: "host memory", Status: statusOK}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		c.Status, c.Why = statusMissing, "sysinfo: "+err.Error()
		return c
	}
	total := event.Bytes(uint64(info.Totalram) * uint64(info.Unit))
	c.Value, c.Data = total.String()+" in this machine (the cgroup limit below may be lower)", total
	return c
}

func checkSwap() check {
	c := check{ID: "swap", Title: "swap", Status: statusOK}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		c.Status, c.Why = statusMissing, "sysinfo: "+err.Error()
		return c
	}
	total := event.Bytes(uint64(info.Totalswap) * uint64(info.Unit))
	free := event.Bytes(uint64(info.Freeswap) * uint64(info.Unit))
	c.Value, c.Data = total.String(), total
	switch {
	case total == 0:
		c.Value, c.Why = "none",
			"at the limit the kernel kills at once; for training that is better than swapping"
	case free < total/2:
		c.Status, c.Why, c.Fix = statusWarn,
			(total-free).String()+" of it is in use: steps that use swap are about 100 times slower",
			"find the process that uses the memory (`memroom top`, `ps`)"
	}
	return c
}

func checkShm() check {
	c := check{ID: "shm", Title: "/dev/shm", Status: statusOK}
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil {
		c.Status, c.Why, c.Fix = statusMissing, "statfs /dev/shm: "+err.Error(),
			"DataLoader workers need it: mount a tmpfs there, or use num_workers=0"
		return c
	}
	size, free := event.Bytes(fs.Blocks*uint64(fs.Bsize)), event.Bytes(fs.Bavail*uint64(fs.Bsize))
	c.Value, c.Data = fmt.Sprintf("%s, %s free", size, free),
		map[string]event.Bytes{"total_bytes": size, "free_bytes": free}
	if size <= 64*event.MiB {
		c.Status, c.Why = statusWarn,
			"this is the default of containers; when it is full, DataLoader workers crash (bus error)"
		c.Fix = "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium Memory at " +
			"/dev/shm"
	}
	return c
}

func checkUlimits() check {
	c := check{ID: "ulimits", Title: "ulimits", Status: statusOK}
	var set, short []string
	for _, l := range []struct {
		name, flag string
		resource   int
	}{{"address space", "-v", unix.RLIMIT_AS}, {"data segment", "-d", unix.RLIMIT_DATA},
		{"resident set", "-m", unix.RLIMIT_RSS}} {
		var r unix.Rlimit
		if err := unix.Getrlimit(l.resource, &r); err == nil && r.Cur != unix.RLIM_INFINITY {
			set = append(set, fmt.Sprintf("%s %s", l.name, event.Bytes(r.Cur)))
			short = append(short, "ulimit "+l.flag+" unlimited")
		}
	}
	var locked unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked); err == nil &&
		locked.Cur != unix.RLIM_INFINITY {
		c.Data = map[string]uint64{"memlock_bytes": locked.Cur}
	}
	c.Value = "no limit on memory"
	if len(set) > 0 {
		c.Status, c.Value = statusWarn, strings.Join(set, ", ")
		c.Why, c.Fix = "CUDA reserves far more address space than it uses, and fails with this limit",
			strings.Join(short, "; ")
	}
	return c
}

func checkPressure() check {
	c := check{ID: "psi", Title: "memory pressure", Status: statusOK}
	text, err := os.ReadFile("/proc/pressure/memory")
	if err != nil {
		c.Status, c.Why, c.Fix = statusMissing,
			"no /proc/pressure/memory: this kernel was built or booted without PSI",
			"boot with psi=1; without it memroom judges host pressure by page faults and swap"
		return c
	}
	first, _, _ := strings.Cut(string(text), "\n")
	c.Value = first
	return c
}

func checkKernelLog() check {
	c := check{ID: "kernel_log", Title: "kernel OOM log", Status: statusOK, Value: "readable"}
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
		return c
	}
	c.Status, c.Value = statusMissing, ""
	c.Why = "/dev/kmsg: " + err.Error() +
		": memroom counts kernel kills, but cannot say which process was killed"
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		c.Fix = "sysctl kernel.dmesg_restrict=0, or run as a member of the group that may read it"
	}
	return c
}
