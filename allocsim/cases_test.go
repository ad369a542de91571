package allocsim_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/testenv"
)

// TestCases runs testdata/cases/*.txt, a small language for the allocator's behaviour. A line is a
// command:
//
//	conf CONF | version 2.13 | limit SIZE | card SIZE OUTSIDE    before the first request
//	alloc NAME SIZE [stream N] [pool N]
//	fail NAME SIZE [stream N]                 a request that must run out of memory
//	free NAME | pending NAME | done NAME      free, or free while another stream uses it, and its completion
//	empty                                     torch.cuda.empty_cache()
//	expect FIGURE VALUE                       reserved, allocated, active, requested, inactive_split, segments, retries, ooms, peak
//	expect A same B | A behind B | A below B  addresses: equal to the one B has or had, directly behind it, lower
//
// What follows # is a comment. Sizes are written as everywhere: 3MiB, 512, 1.5GiB.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			text := testenv.Read(t, f)
			c := &caseRun{options: allocsim.Options{Config: allocsim.DefaultConfig()},
				blocks: map[string]allocsim.Block{},
				addr:   map[string]uint64{}, size: map[string]event.Bytes{}}
			for i, line := range strings.Split(string(text), "\n") {
				line, _, _ = strings.Cut(line, "#")
				if words := strings.Fields(line); len(words) > 0 {
					if err := c.do(words); err != nil {
						t.Fatalf("%s:%d: %s: %v", f, i+1, strings.TrimSpace(line), err)
					}
				}
			}
		})
	}
}

// caseRun is a case being run.
type caseRun struct {
	options allocsim.Options
	a       *allocsim.Allocator
	blocks  map[string]allocsim.Block
	addr    map[string]uint64
	size    map[string]event.Bytes
}

func (c *caseRun) do(words []string) (err error) {
	if c.a == nil {
		if done, err := c.configure(words); done {
			return err
		}
		if c.a, err = allocsim.New(c.options); err != nil {
			return err
		}
	}
	switch words[0] {
	case "alloc", "fail":
		return c.alloc(words)
	case "free":
		return refused(!c.a.Free(c.blocks[words[1]]))
	case "pending":
		return refused(!c.a.FreePending(c.blocks[words[1]]))
	case "done":
		c.a.FreeDone(c.blocks[words[1]])
	case "empty":
		c.a.EmptyCache()
	case "expect":
		return c.expect(words[1:])
	default:
		return fmt.Errorf("unknown command %q", words[0])
	}
	return nil
}

func refused(yes bool) error {
	if yes {
		return fmt.Errorf("the block is not live")
	}
	return nil
}

func (c *caseRun) configure(words []string) (done bool, err error) {
	switch words[0] {
	case "conf":
		c.options.Config, err = allocsim.ParseConf(words[1])
	case "version":
		c.options.Version = words[1]
	case "limit":
		c.options.Limit, err = event.ParseBytes(words[1])
	case "card":
		c.options.DeviceTotal, err = event.ParseBytes(words[1])
		if err == nil {
			c.options.Outside, err = event.ParseBytes(words[2])
		}
	default:
		return false, nil
	}
	return true, err
}

func (c *caseRun) alloc(words []string) error {
	size, err := event.ParseBytes(words[2])
	if err != nil {
		return err
	}
	stream, pool := 0, 0
	for i := 3; i+1 < len(words); i += 2 {
		into := map[string]*int{"stream": &stream, "pool": &pool}[words[i]]
		if into == nil {
			return fmt.Errorf("unknown option %q", words[i])
		}
		if *into, err = strconv.Atoi(words[i+1]); err != nil {
			return err
		}
	}
	b, err := c.a.MallocIn(pool, int64(size), uint64(stream))
	if words[0] == "fail" {
		if err == nil {
			return fmt.Errorf("it fits")
		}
		return nil
	}
	if err != nil {
		return err
	}
	c.blocks[words[1]], c.addr[words[1]], c.size[words[1]] = b, c.a.Addr(b), c.a.Size(b)
	return nil
}

func (c *caseRun) expect(words []string) error {
	if len(words) == 3 {
		a, b := words[0], words[2]
		holds := map[string]bool{"same": c.addr[a] == c.addr[b],
			"behind": c.addr[a] == c.addr[b]+uint64(c.size[b]), "below": c.addr[a] < c.addr[b]}
		if !holds[words[1]] {
			return fmt.Errorf("%s is at %#x, %s at %#x with %d bytes", a, c.addr[a], b, c.addr[b],
				c.size[b])
		}
		return nil
	}
	s := c.a.Stats()
	figures := map[string]int64{"reserved": s.All.ReservedBytes.Current,
		"allocated": s.All.AllocatedBytes.Current, "active": s.All.ActiveBytes.Current,
		"requested":      s.All.RequestedBytes.Current,
		"inactive_split": s.All.InactiveSplitBytes.Current, "segments": s.All.Segment.Current,
		"retries": s.AllocRetries, "ooms": s.OOMs, "peak": s.All.ReservedBytes.Peak,
		"rejections": s.OOMRejections}
	got, ok := figures[words[0]]
	want, err := event.ParseBytes(words[1])
	if !ok || err != nil {
		return fmt.Errorf("unknown figure or value: %v", err)
	}
	if got != int64(want) {
		return fmt.Errorf("it is %d (%s)", got, event.Bytes(got))
	}
	return nil
}
