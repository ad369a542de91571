package attack

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// seed is a good file and the commands that read it.
type seed struct {
	name     string
	data     []byte
	commands []command
}

var (
	snapshotCommands = []command{
		{"snapshot FILE", "0"},
		{"snapshot FILE --json --alloc-limit 64MiB", "0"},
		{"replay FILE", "05"},
		{"replay FILE --what-if --alloc-limit 100MiB --json", "05"},
		{"replay FILE --alloc-conf expandable_segments:True --gpu 1GiB", "05"},
		{"snapshot FILE --html DIR/p.html --pprof DIR/p.pb.gz --perfetto DIR/p.json", "0"},
		{"explain FILE", "04"},
	}
	logCommands    = []command{{"explain FILE", "04"}, {"explain FILE --json", "04"}}
	configCommands = []command{{"plan FILE --batch 2", "03"},
		{"plan FILE --batch 2 --gpu 24GiB --fit --json", "03"}}
)

// seeds are real files of every kind that memroom reads.
func seeds(t testing.TB) []seed {
	mlp, oom := sample(t, "cli", "testdata", "mlp.pickle.gz"), sample(t, "cli", "testdata",
		"oom.pickle.gz")
	plain := gunzip(t, mlp)
	log := sample(t, "cli", "testdata", "train.log")
	return []seed{
		{"mlp.pickle", plain, snapshotCommands},
		{"oom.pickle", gunzip(t, oom), snapshotCommands},
		{"tiny.pickle", tiny(), snapshotCommands},
		{"mlp.pickle.gz", mlp, snapshotCommands},
		{"mlp.pickle.xz", xzOf(plain), snapshotCommands},
		{"mlp.pickle.zst", zst(plain), snapshotCommands},
		{"tensorflow.bfcdump", sample(t, "cli", "testdata", "tensorflow.bfcdump"),
			[]command{{"snapshot FILE", "0"}, {"snapshot FILE --json", "0"}}},
		{"train.log", log, logCommands},
		{"train.log.gz", gz(log), logCommands},
		{"train.log.xz", xzOf(log), logCommands},
		{"config.json", sample(t, "cli", "testdata", "config.json"), configCommands},
		{"model.safetensors", safetensors(), configCommands},
	}
}

// tiny is a snapshot of a few hundred bytes, in which a change is likely to hit a number.
func tiny() []byte {
	const mib = 1 << 20
	at := int64(0x7f00_0000_0000)
	events := list{event("segment_map", at, 20*mib), event("alloc", at, 3*mib),
		event("alloc", at+3*mib, 5*mib), event("free_requested", at, 3*mib),
		event("free_completed", at, 3*mib), event("segment_unmap", at, 20*mib),
		event("oom", 0, 40*mib)}
	return snapshot(list{segment(at, 20*mib, 1, block(at, 3*mib, "inactive"),
		block(at+3*mib, 5*mib, "active_allocated"), block(at+8*mib, 12*mib, "inactive"))}, events,
		dict{{"max_split_size", 20 * mib}, {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:20"},
			{"expandable_segments", 1}, {"roundup_power2_divisions", dict{{"1", 4}, {"2", 8}}}})
}

func safetensors() []byte {
	header := `{"model.embed_tokens.weight":{"dtype":"F32","shape":[1000,64],"data_offsets":[0,4]},` +
		`"model.layers.0.self_attn.q_proj.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,4]},` +
		`"model.layers.0.self_attn.k_proj.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,4]},` +
		`"model.layers.0.mlp.gate_proj.weight":{"dtype":"F32","shape":[128,64],"data_offsets":[0,4]}}`
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
}

// TestDamagedFiles cuts and changes good files of every kind and hands them to every command that
// reads them.
func TestDamagedFiles(t *testing.T) {
	for _, s := range seeds(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			g, r := newTarget(t), seeded(s.name)
			for i := range times(12, 600) {
				data := damage(r, s.data)
				for range r.IntN(3) {
					data = damage(r, data)
				}
				g.throw(t, "damaged "+kindOf(s.name), s.name, data, s.commands[i%len(s.commands)],
					600<<20)
			}
		})
	}
}

func kindOf(name string) string {
	switch {
	case strings.Contains(name, "pickle"):
		return "snapshots"
	case strings.Contains(name, "log"):
		return "logs"
	case strings.Contains(name, "bfc"):
		return "TensorFlow dumps"
	}
	return "model descriptions"
}

// crafted is a small file that is made to do harm, with the commands that meet it.
type crafted struct {
	name     string
	data     []byte
	commands []command
	budget   int64 // bytes resident
}

// TestCraftedFiles hands over files that were made to loop, overflow, nest or swell.
func TestCraftedFiles(t *testing.T) {
	g := newTarget(t)
	var turn int // every file meets some commands, and every command some files
	for _, c := range craftedFiles(t) {
		budget := c.budget
		if budget == 0 {
			budget = 512 << 20
		}
		most := 2
		if long() {
			most = len(c.commands)
		}
		for i := range min(most, len(c.commands)) {
			command := c.commands[(turn+i)%len(c.commands)]
			g.throw(t, "crafted files", c.name, c.data, command, budget)
		}
		turn += most
	}
}

func craftedFiles(t testing.TB) (all []crafted) {
	add := func(name string, data []byte, commands []command, budget int64) {
		all = append(all, crafted{name, data, commands, budget})
	}
	for name, data := range craftedSnapshots() {
		add(name, data, snapshotCommands, 0)
	}
	for name, pack := range map[string]func(io.Reader) []byte{"gz": gzAll, "zst": zstAll} {
		for inside, data := range bombs() {
			// Each command unpacks all of it: between them the two packings meet every one.
			commands := snapshotCommands[:2:2]
			if name == "zst" {
				commands = snapshotCommands[2:4:4]
			}
			if long() {
				commands = snapshotCommands[:4:4]
			}
			if inside == "text" {
				commands = logCommands
			}
			// The limit lets 64 MiB through, of which a model of the allocator
			// may need the twentyfold.
			add(fmt.Sprintf("bomb-%s.%s", inside, name), pack(again("\x80\x02}(X\x0d\x00\x00\x00"+
				"device_traces](](", data, times(80, 300)<<20/len(data))), commands, 1536<<20)
		}
		add("nested."+name, pack(bytes.NewReader(pack(again("\x80\x02](", make([]byte, 1<<20),
			80)))),
			append(snapshotCommands[:1:1], logCommands...), 0)
	}
	nest := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for name, config := range map[string]string{
		"nested.json": nest,
		"layers.json": `{"model_type":"llama","hidden_size":64,"num_hidden_layers":2000000000,` +
			`"num_attention_heads":4,"vocab_size":100,"intermediate_size":64}`,
		"huge.json": `{"model_type":"gpt2","n_embd":9e18,"n_layer":9e18,"n_head":1,` +
			`"vocab_size":9e18}`,
		"negative.json": `{"model_type":"bert","hidden_size":-64,"num_hidden_layers":-2,` +
			`"num_attention_heads":0,"vocab_size":-1}`,
		"text.json": `{"model_type":"` + strings.Repeat("a\u001b[31m", 100_000) + `"}`,
		"fractions.json": `{"model_type":"llama","hidden_size":0.5,"num_hidden_layers":1e-9,` +
			`"num_attention_heads":1e308}`,
	} {
		add(name, []byte(config), configCommands, 0)
	}
	lying := binary.LittleEndian.AppendUint64(nil, 90<<20)
	add("lying.safetensors", append(lying, `{"a":{"shape":[1]}}`...), configCommands, 0)
	add("long-line.log", bytes.Repeat([]byte("CUDA out of memory "), 2<<20), logCommands, 0)
	add("escapes.log", []byte("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB "+
		"\x1b]0;owned\x07\x1b[2J (GPU 0; 10.00 GiB total capacity)\n  File \"\x1b[31mx.py\", line 1\n"),
		logCommands, 0)
	slices.SortFunc(all, func(a, b crafted) int { return cmp.Compare(a.name, b.name) })
	return all
}

// bombs are the contents of bombs, which cost much and pack well.
func bombs() map[string][]byte {
	all := map[string][]byte{
		"zeroes": make([]byte, 1<<20),
		"text":   bytes.Repeat([]byte("CUDA out of memory. Tried to allocate 1.00 GiB\n"), 20_000),
		"lists":  bytes.Repeat([]byte("]"), 1<<20),
		"dicts":  bytes.Repeat([]byte("}(K\x01K\x02u"), 1<<17),
		"events": bytes.Repeat(appendPickle(nil, event("alloc", 1<<40, 512)), 5000),
	}
	// Allocations at ever new addresses, none freed, in twenty bytes each: keys are named, not
	// written.
	live := []byte("}(X\x06\x00\x00\x00actionq\x00X\x05\x00\x00\x00allocq\x01" +
		"X\x04\x00\x00\x00addrq\x02K\x01X\x04\x00\x00\x00sizeq\x03K\x01u")
	for i := range uint64(200_000) {
		live = append(live, "}(h\x00h\x01h\x02\x8a\x05"...)
		live = append(live, binary.LittleEndian.AppendUint64(nil, i<<21)[:5]...)
		live = append(live, "h\x03M\x00\x02u"...)
	}
	all["live"] = live
	return all
}

// craftedSnapshots are snapshots that no allocator wrote.
func craftedSnapshots() map[string][]byte {
	const mib = 1 << 20
	at := int64(0x7f00_0000_0000)
	repeat := func(n int, f func(i int64) any) (l list) {
		for i := range n {
			l = append(l, f(int64(i)))
		}
		return l
	}
	n := 1000
	free := func(size int64) list { return list{event("segment_unmap", at, size)} }
	files := map[string][]byte{
		"zero-sizes": snapshot(list{segment(at, 20*mib, 1, block(at, 20*mib, "inactive"))},
			append(free(0), event("segment_map", at, 0), event("segment_unmap", at+mib, 0),
				event("alloc", at, 0), event("alloc", at, 21*mib), event("free_completed", at, 0)),
			nil),
		"split-oversize": snapshot(list{segment(at, 60*mib, 0, block(at, 30*mib, "inactive"),
			block(at+30*mib, 30*mib, "active_allocated"))},
			list{event("alloc", at+100*mib, 40*mib), event("free_requested", at+100*mib, 40*mib)},
			dict{{"max_split_size", 20 * mib}, {"PYTORCH_CUDA_ALLOC_CONF",
				"max_split_size_mb:20"}}),
		"negative": snapshot(list{segment(at, -1, 0, block(at, -512, "inactive"))},
			list{event("alloc", -1, -1), event("segment_alloc", -512, -1<<63)}, nil),
		"overflow": snapshot(nil, repeat(n, func(i int64) any {
			return event("segment_alloc", i<<50, 1<<50)
		}), nil),
		"overlap": snapshot(nil, repeat(n, func(i int64) any {
			return event([]string{"segment_map", "segment_free", "alloc", "segment_unmap"}[i%4],
				at+i%7*mib, 20*mib+i%3*512)
		}), nil),
		"streams": snapshot(nil, repeat(n, func(i int64) any {
			return append(event("alloc", at+i*mib, mib), kv{"stream", i})
		}), nil),
		"mixed": snapshot(list{segment(at, 1<<50, 1, block(at, 1<<50, "active_allocated"))},
			repeat(n, func(i int64) any {
				return event([]string{"free_requested", "free_completed", "oom", "snapshot",
					"nonsense"}[i%5], at+i%3*512, i%9*mib)
			}), nil),
		"settings": snapshot(nil, list{event("segment_alloc", at, 20*mib),
			event("alloc", at, 5*mib),
			event("oom", 0, 1<<49)}, dict{{"max_split_size", 1}, {"garbage_collection_threshold",
			[]byte("G\x7f\xf8\x00\x00\x00\x00\x00\x00")}, {"PYTORCH_CUDA_ALLOC_CONF",
			"large_segment_size_mb:8796093022207,max_non_split_rounding_mb:8796093022207"},
			{"roundup_power2_divisions", dict{{"1", -3}, {"2", int64(1) << 60}}}}),
		"itself": append([]byte("\x80\x02]q\x00(h\x00h\x00e}q\x01(X\x08\x00\x00\x00segmentsh\x00"+
			"X\x0d\x00\x00\x00device_tracesh\x00u"), '.'),
		"calls":   []byte("\x80\x02cposix\nsystem\nX\x04\x00\x00\x00idedR."),
		"names":   snapshot(nil, list{event("alloc", at, 5*mib, kv{"frames", names()})}, nil),
		"devices": pickled(dict{{"segments", repeat(n, manyDevices)}, {"device_traces", list{}}}),
	}
	for name, data := range squares() {
		files[name] = data
	}
	return files
}

func manyDevices(i int64) any {
	s := segment(i<<30, 2<<20, 0, block(i<<30, 2<<20, "active_allocated"))
	s[0].value = i*1000 - 3
	return s
}

// names have escapes, quotes, markup and half characters in them, and one is very long.
func names() (frames list) {
	for _, name := range []string{"\x1b]0;owned\x07\x1b[2J", "<script>alert(1)</script>",
		"a\nb\rc\td\x00e", "\xff\xfe\x80", "\u202egnp.exe", strings.Repeat("x", 1<<20),
		"</script><img src=x onerror=alert(1)>"} {
		frames = append(frames, dict{{"name", name}, {"filename", name + ".py"}, {"line", -1}})
	}
	return frames
}

// squares are files whose naive reading costs the square of their length.
func squares() map[string][]byte {
	const mib = 1 << 20
	at := int64(0x7f00_0000_0000)
	n := int64(times(3000, 60_000))
	var pending, growth, releases, private, free, pages list
	for i := range n {
		here := at + i*2*mib
		pending = append(pending, event("segment_alloc", here, 2*mib), event("alloc", here, 512),
			event("free_requested", here, 512))
		growth = append(growth, event("segment_alloc", here, 2*mib), event("alloc", at-512, 512))
		releases = append(releases, event("segment_free", at, 2*mib), event("alloc", at+512, 512),
			event("free_completed", at+512, 512))
		private = append(private, event("alloc", here, 512,
			kv{"pool_id", append(appendPickle(appendPickle(nil, 1), i), 0x86)}))
		free = append(free, event("segment_alloc", here, 2*mib), event("alloc", here, 512),
			event("alloc", here+1024, 512), event("free_completed", here, 512))
		pages = append(pages, event("segment_map", at+i*64*mib, 20*mib),
			event("alloc", at+i*64*mib, 19*mib))
	}
	for i := range n {
		pending = append(pending, event("free_completed", at+(n-i-1)*2*mib, 512))
	}
	files := map[string][]byte{}
	for name, events := range map[string]list{"pending": pending, "growth": growth,
		"releases": releases, "private": private, "free": free, "pages": pages} {
		files[fmt.Sprint("square-", name)] = snapshot(nil, events, nil)
	}
	return files
}
