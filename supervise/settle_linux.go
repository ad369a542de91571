package supervise

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Settle releases memory that starting up needed and waiting does not: free heap, and the pages of
// the program file that ran once. The file's pages stay in the page cache; the few that are needed
// again come back by a minor fault. Three processes that live as long as a training are worth it:
// it is more than half of their resident memory.
func Settle() {
	debug.FreeOSMemory()
	dropProgram()
}

// dropProgram lets go of our view of the program's file. Kernels map whole large folios at a fault
// (2 MiB and more since 6.18), so that a process which works for a millisecond four times a second
// would otherwise hold all of it all the time.
func dropProgram() {
	for _, m := range programMappings() {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.length, unix.MADV_DONTNEED)
	}
}

// programMappings are found once: libraries that are loaded later stay where they are.
var programMappings = sync.OnceValue(cleanMappings)

// SettleSoon settles when start-up is over, twice: what the first seconds of work touch is then
// known to be rare too.
func SettleSoon() {
	time.AfterFunc(time.Second, Settle)
	time.AfterFunc(5*time.Second, Settle)
}

type mapping struct{ start, length uintptr }

// cleanMappings finds the parts of our address space that are read-only views of files, without a
// single page of their own: a page that the loader has written to would be lost.
func cleanMappings() []mapping {
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer file.Close()
	var clean []mapping
	var current mapping
	eligible := false
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			current, eligible = parseMapping(fields)
		case len(fields) >= 2 && fields[0] == "Anonymous:" && eligible && fields[1] == "0":
			clean = append(clean, current)
		}
	}
	return clean
}

// parseMapping reads the head of an entry: "start-end perms offset device inode path".
func parseMapping(fields []string) (mapping, bool) {
	from, to, _ := strings.Cut(fields[0], "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	named := len(fields) >= 6 && strings.HasPrefix(fields[5], "/")
	readOnly := !strings.Contains(fields[1], "w") && strings.HasSuffix(fields[1], "p")
	return mapping{uintptr(start), uintptr(end - start)}, err1 == nil && err2 == nil && named &&
		readOnly
}
