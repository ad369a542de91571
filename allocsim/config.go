package allocsim

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
)

// Unlimited is the value of a size option that sets no bound.
const Unlimited = event.Bytes(math.MaxInt64)

// Sizes of the allocator, the same in every release.
const (
	minBlock      = 512     // rounding quantum and smallest block
	smallLimit    = 1 << 20 // the largest rounded size that the small pool serves
	smallSegment  = 2 << 20 // segment size, and page of expandable segments, in the small pool
	madeToMeasure = 10 << 20
	roundLarge    = 2 << 20 // segments made to measure are a multiple of this
	largeSegment  = 20 << 20
	divisionSlots = 16
)

// Config holds the settings of PYTORCH_CUDA_ALLOC_CONF that decide where bytes go. The zero value
// is not the default: use [DefaultConfig] or [ParseConf].
type Config struct {
	// blocks of this size and above are not split; Unlimited by default
	MaxSplit            event.Bytes
	MaxNonSplitRounding event.Bytes // slack allowed when a block above MaxSplit is reused
	// roundup_power2_divisions for requests of 1 MiB<<i; 0 is off
	Divisions [divisionSlots]int
	// garbage_collection_threshold, a part of the limit; 0 is off
	GCThreshold    float64
	Expandable     bool
	LargeSegment   event.Bytes // segment size for blocks in (1 MiB, 10 MiB)
	MemoryFraction float64     // per_process_memory_fraction; 1 is no limit
	RejectEarly    bool        // throw_on_cudamalloc_oom
}

// DefaultConfig is PyTorch's behaviour without settings.
func DefaultConfig() Config {
	return Config{MaxSplit: Unlimited, MaxNonSplitRounding: 20 * event.MiB,
		LargeSegment: largeSegment, MemoryFraction: 1}
}

// ParseConf reads a PYTORCH_CUDA_ALLOC_CONF string. Like PyTorch it refuses keys it does not know;
// settings that do not bear on device memory (pinned host memory, locking) are checked for their
// name alone.
func ParseConf(text string) (Config, error) {
	c := DefaultConfig()
	p := confParser{tokens: confTokens(text)}
	for !p.done() {
		key := p.next()
		if key == "," {
			continue
		}
		set, known := confKeys[key]
		if !known {
			return c, fmt.Errorf("allocator setting %q is not known: the keys are %s", key,
				strings.Join(confKeyNames(), ", "))
		}
		if p.next() != ":" {
			return c, fmt.Errorf("allocator setting %q needs a value: write %s:VALUE", key, key)
		}
		if err := set(&c, &p); err != nil {
			return c, fmt.Errorf("allocator setting %s: %w", key, err)
		}
		if !p.done() && p.next() != "," {
			return c, fmt.Errorf("allocator settings %q: expected a comma after the value of %s",
				text, key)
		}
	}
	if c.MaxSplit < c.LargeSegment {
		return c,
			fmt.Errorf("allocator setting max_split_size_mb: %s is below the segment size of %s; PyTorch "+
				"refuses it", c.MaxSplit, c.LargeSegment)
	}
	return c, nil
}

// confKeys maps each key to the function that applies its value.
var confKeys = map[string]func(*Config, *confParser) error{
	"max_split_size_mb": func(c *Config, p *confParser) error {
		err := p.megabytes(&c.MaxSplit, 20)
		if c.MaxSplit == maxRequest {
			c.MaxSplit = Unlimited
		}
		return err
	},
	"max_non_split_rounding_mb": func(c *Config, p *confParser) error {
		return p.megabytes(&c.MaxNonSplitRounding, 20)
	},
	"large_segment_size_mb": func(c *Config, p *confParser) error {
		return p.megabytes(&c.LargeSegment, 11)
	},
	"roundup_power2_divisions": func(c *Config,
		p *confParser) error {
		return p.divisions(&c.Divisions)
	},
	"garbage_collection_threshold": func(c *Config, p *confParser) error {
		return p.fraction(&c.GCThreshold, false)
	},
	"per_process_memory_fraction": func(c *Config, p *confParser) error {
		return p.fraction(&c.MemoryFraction, true)
	},
	"expandable_segments": func(c *Config,
		p *confParser) error {
		return p.boolean(&c.Expandable)
	},
	"throw_on_cudamalloc_oom": func(c *Config,
		p *confParser) error {
		return p.boolean(&c.RejectEarly)
	},
	"release_lock_on_cudamalloc":        ignoredSetting,
	"graph_capture_record_stream_reuse": ignoredSetting,
	"pinned_use_cuda_host_register":     ignoredSetting,
	"pinned_num_register_threads":       ignoredSetting,
	"pinned_use_background_threads":     ignoredSetting,
	"pinned_reserve_segment_size_mb":    ignoredSetting,
	"pinned_free_catch_all":             ignoredSetting,
	"pinned_max_round_threshold_mb":     ignoredSetting,
	"pinned_max_cached_size_mb":         ignoredSetting,
	"backend": func(_ *Config, p *confParser) error {
		if v := p.next(); v != "native" {
			return fmt.Errorf("%q is not modelled: only the native caching allocator is", v)
		}
		return nil
	},
}

func ignoredSetting(_ *Config, p *confParser) error { return p.value() }

func confKeyNames() []string {
	names := make([]string, 0, len(confKeys))
	for name := range confKeys {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// confParser walks over the tokens of a settings string. PyTorch's own grammar: tokens end at , : [
// ] and blanks vanish.
type confParser struct{ tokens []string }

func confTokens(text string) []string {
	var tokens []string
	word := strings.Builder{}
	flush := func() {
		if word.Len() > 0 {
			tokens = append(tokens, word.String())
			word.Reset()
		}
	}
	for _, r := range text {
		switch {
		case strings.ContainsRune(",:[]", r):
			flush()
			tokens = append(tokens, string(r))
		case r == ' ' || r == '\t' || r == '\n' || r == '\r':
		default:
			word.WriteRune(r)
		}
	}
	flush()
	return tokens
}

func (p *confParser) done() bool { return len(p.tokens) == 0 }

// next returns the next token, "" at the end.
func (p *confParser) next() string {
	if p.done() {
		return ""
	}
	token := p.tokens[0]
	p.tokens = p.tokens[1:]
	return token
}

func (p *confParser) value() error {
	if v := p.next(); v == "" || strings.Contains(",:[]", v) {
		return fmt.Errorf("has no value")
	}
	return nil
}

func (p *confParser) whole() (int64, error) {
	token := p.next()
	v, err := strconv.ParseInt(token, 10, 64)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("%q is not a whole number", token)
	}
	return v, nil
}

func (p *confParser) megabytes(into *event.Bytes, least int64) error {
	v, err := p.whole()
	if err != nil {
		return err
	}
	if v < least {
		return fmt.Errorf("%d is too small: at least %d", v, least)
	}
	// more than any card has is as good as no bound, and sums of it must not overflow
	*into = event.Bytes(min(v, maxRequest/int64(event.MiB))) * event.MiB
	return nil
}

func (p *confParser) fraction(into *float64, one bool) error {
	token := p.next()
	v, err := strconv.ParseFloat(token, 64)
	if err != nil || !(v > 0) || v > 1 || (v == 1 && !one) {
		return fmt.Errorf("%q is not a fraction between 0 and 1", token)
	}
	*into = v
	return nil
}

func (p *confParser) boolean(into *bool) error {
	switch token := p.next(); token {
	case "True":
		*into = true
	case "False":
		*into = false
	default:
		return fmt.Errorf("%q is neither True nor False", token)
	}
	return nil
}

// divisions reads a single power of two, or a list such as [256:1,512:2,>:4] whose boundaries are
// in MiB. The first pair also fills all smaller sizes, ">" all larger ones; what is not named stays
// off.
func (p *confParser) divisions(into *[divisionSlots]int) error {
	*into = [divisionSlots]int{}
	if len(p.tokens) == 0 || p.tokens[0] != "[" {
		d, err := p.powerOfTwo()
		if err != nil {
			return err
		}
		for i := range into {
			into[i] = d
		}
		return nil
	}
	p.next()
	last := -1
	for {
		boundary := p.next()
		if p.next() != ":" {
			return fmt.Errorf("write the list as [256:1,512:2,>:4]")
		}
		if err := p.divisionPair(into, boundary, &last); err != nil {
			return err
		}
		switch p.next() {
		case "]":
			return nil
		case ",":
		default:
			return fmt.Errorf("the list is not closed by ]")
		}
	}
}

func (p *confParser) divisionPair(into *[divisionSlots]int, boundary string, last *int) error {
	var d int
	if len(p.tokens) > 0 && p.tokens[0] == "0" {
		p.next()
	} else {
		var err error
		if d, err = p.powerOfTwo(); err != nil {
			return err
		}
	}
	if boundary == ">" {
		for i := *last + 1; i < divisionSlots; i++ {
			into[i] = d
		}
		return nil
	}
	b, err := strconv.ParseUint(boundary, 10, 32)
	if err != nil || bits.OnesCount64(b) != 1 {
		return fmt.Errorf("boundary %q is not a power of two", boundary)
	}
	slot := min(bits.TrailingZeros64(b), divisionSlots-1)
	if *last < 0 {
		for i := range slot {
			into[i] = d
		}
	}
	into[slot], *last = d, slot
	return nil
}

func (p *confParser) powerOfTwo() (int, error) {
	v, err := p.whole()
	if err != nil {
		return 0, err
	}
	if bits.OnesCount64(uint64(v)) != 1 || v > 1<<30 {
		return 0, fmt.Errorf("%d is not a power of two", v)
	}
	return int(v), nil
}
