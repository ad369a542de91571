package fit

import (
	"strings"
	"testing"
)

// TestLinesOfJAX: advice names the line of the script and what to write there.
func TestLinesOfJAX(t *testing.T) {
	const plain = `import jax, jax.numpy as jnp

def block(layer, x):
    return jnp.tanh(x @ layer["w"])  # jit(block

def loss_of(params, x, y):
    for layer in params:
        x = block(layer, x)
    return jnp.mean((x - y) ** 2)

@jax.jit
def step(params, moments, x, y):
    grads = jax.grad(loss_of)(params, x, y)
    return (jax.tree.map(lambda p, g: p - g, params, grads), moments)
`
	const flax = `class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(12):
            x = Block(
                8)(x)
            x = Block(64)(x, True)
        return x

def train_step(
    state: TrainState, batch: dict[str, int], rng=None
):
    def loss_fn(params):
        return state.apply_fn(params, batch["x"]).mean()
    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    new_state = state.apply_gradients(grads=grads)
    return new_state, loss

fast = jax.jit(
    train_step)
p_step = jax.jit(train_step)
`
	const scan = `def forward(params, x):
    x, _ = jax.lax.scan(layer, x, params)
    return x

def loss(params, x):
    return forward(params, x).sum()

def update(params, opt_state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, opt_state = opt.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, value

update = jax.jit(update, static_argnames=("n",))
`
	cases := map[string]struct {
		source string
		want   []string
	}{
		"plain": {plain, []string{
			"train.py:11: jax.jit(step, donate_argnums=(0, 1)), so that the new params, moments",
			"train.py:8: x = jax.checkpoint(block)(layer, x), so that only"}},
		"flax": {flax, []string{
			"train.py:21: jax.jit(train_step, donate_argnums=(0,)), so that the new state take",
			"train.py:7: nn.remat(Block)(...)(x), so that only"}},
		"scan": {scan, []string{
			"train.py:13: jax.jit(update, donate_argnums=(0, 1)), so that the new params, opt_state",
			"train.py:2: scan(jax.checkpoint(layer), ...), so that only"}},
		"already": {strings.NewReplacer("block(layer, x)\n", "jax.checkpoint(block)(layer, x)\n",
			"@jax.jit", "@partial(jax.jit, donate_argnums=(0, 1))").Replace(plain), nil},
		"nothing":    {"print(1)", nil},
		"unfinished": {"@jax.jit\ndef step(a, b\n    return (a", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := jaxLines("train.py", c.source)
			if len(got) != len(c.want) {
				t.Fatalf("%q", got)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("%q, not %q", got[i], want)
				}
			}
		})
	}
	if got := InScript("", "train.py", []byte(plain)); got != "" {
		t.Errorf("%q where something is within reach", got)
	}
	if got := InScript("help", "a/train.py", []byte(plain)); !strings.HasPrefix(got,
		"help. In this script: train.py:11: ") {
		t.Error(got)
	}
}

// TestPlacesInScripts: one rule of reading a script each, by the lines that are named.
func TestPlacesInScripts(t *testing.T) {
	const grad = "g = jax.grad(loss)(p)\n"
	for name, c := range map[string]struct {
		source string
		want   []string
	}{
		"a decorator on the first line": {"@jax.jit\ndef step(params):\n    return params\n",
			[]string{"s.py:1: jax.jit(step, donate_argnums=(0,))"}},
		"two decorators": {"@timed\n@jax.jit\ndef step(params):\n    return params\n",
			[]string{"s.py:1: jax.jit(step"}},
		"its own return": {"@jax.jit\ndef step(params):\n    return params\ndef other(x):\n" +
			"    return x\n", []string{"s.py:1: jax.jit(step, donate_argnums=(0,))"}},
		"a blank line in it": {"@jax.jit\ndef step(a, params):\n    y = 1\n\n    return params\n",
			[]string{"s.py:1: jax.jit(step, donate_argnums=(1,))"}},
		"the last return counts": {"@jax.jit\ndef step(a, b):\n    if a:\n        return a\n" +
			"    return b\n", []string{"s.py:1: jax.jit(step, donate_argnums=(1,))"}},
		"brackets over lines": {"@jax.jit\ndef step(a: dict[\n        str, int], params=None):\n" +
			"    return new_params\nz = 1\ndef f(q):\n    return q\n",
			[]string{"s.py:1: jax.jit(step, donate_argnums=(1,)), so that the new params"}},
		"the parameter that is updated": {"@jax.jit\ndef step(state, params, x):\n" +
			"    return optax.apply_updates(params, u)\n",
			[]string{"s.py:1: jax.jit(step, donate_argnums=(1,))"}},
		"new behind the name": {"@jax.jit\ndef step(x, state):\n    return x + 1, state_new\n",
			[]string{"s.py:1: jax.jit(step, donate_argnums=(1,))"}},
		"in order, each once": {"@jax.jit\ndef step(a, b):\n    return (b, a, new_b)\n",
			[]string{"s.py:1: jax.jit(step, donate_argnums=(0, 1)), so that the new a, b take"}},
		"a result of its own": {"@jax.jit\ndef step(params, x):\n    return loss(params, x)\n", nil},
		"not compiled":        {"def step(params):\n    return params\n", nil},
		"by another name":     {"def step(params):\n    return params\nrun = jax.jit(steps)\n", nil},
		"donated in the next line": {"def step(params):\n    return params\nrun = jax.jit(step,\n" +
			"    donate_argnums=0)\n", nil},
		"donated by name": {"@partial(jax.jit, donate_argnames=('params',))\ndef step(params):\n" +
			"    return params\n", nil},
		"in a comment": {"# run = jax.jit(step)\ndef step(params):\n    return params\n", nil},

		"a call in a loop": {grad + "def loss(p, x):\n    for w in p:\n        x = block(w, x)\n" +
			"    return x\n", []string{"s.py:4: x = jax.checkpoint(block)(w, x)"}},
		"after blank lines": {grad + "def loss(p, x):\n    for w in p:\n\n        x = block(w, x)\n",
			[]string{"s.py:5: x = jax.checkpoint(block)"}},
		"without a loop": {grad + "def loss(p, x):\n    x = head(p, x)\n    return x\n", nil},
		"behind a loop": {grad + "def loss(p, x):\n    for w in p:\n        x = jnp.tanh(x)\n" +
			"    x = head(p, x)\n", nil},
		"in the second loop": {grad + "def loss(p, x):\n    for w in p:\n        y = f(w)\n" +
			"    y = x\n    for w in p:\n        x = g(x)\n",
			[]string{"s.py:7: x = jax.checkpoint(g)(x)"}},
		"other results": {grad + "def loss(p, x):\n    for w in p:\n        y = block(w, x)\n", nil},
		"a library's":   {grad + "def loss(p, x):\n    for w in p:\n        x = nn.relu(x)\n", nil},
		"a layer": {grad + "class M:\n  def __call__(self, x):\n    for i in n:\n" +
			"      x = B(4)(x)\n", []string{"s.py:5: nn.remat(B)(...)(x)"}},
		"a layer of something else": {grad + "class M:\n  def __call__(self, x):\n    for i in n:\n" +
			"      y = B(4)(x)\n", nil},
		"a scan": {grad + "def loss(p, x):\n    return lax.scan(body, x, p)\n",
			[]string{"s.py:3: scan(jax.checkpoint(body), ...)"}},
		"a function that it calls": {grad + "def net(p, x):\n    for w in p:\n        x = f(w, x)\n" +
			"def loss(p, x):\n    return net(p, x)\n", []string{"s.py:4: x = jax.checkpoint(f)"}},
		"one that it does not call": {grad + "def net(p, x):\n    for w in p:\n" +
			"        x = f(w, x)\ny = net(1, 2)\ndef loss(p, x):\n    return x\n", nil},
		"nothing is differentiated": {"def loss(p, x):\n    for w in p:\n        x = f(w, x)\n", nil},
		"repeated already": {grad + "def loss(p, x):\n    for w in p:\n        x = remat(f)(x)\n" +
			"        x = g(x)\n", nil},
	} {
		got := jaxLines("s.py", c.source)
		ok := len(got) == len(c.want)
		for i := 0; ok && i < len(got); i++ {
			ok = strings.HasPrefix(got[i], c.want[i])
		}
		if !ok {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	one := "@jax.jit\ndef step(params):\n    return params\n"
	if got := InScript("help", "s.py", []byte("print(1)")); got != "help" {
		t.Errorf("nothing found: %q", got)
	}
	if got := InScript("help", "d/s.py", []byte(one)); !strings.HasPrefix(got,
		"help. In this script: s.py:1: jax.jit") || strings.Contains(got, ";") {
		t.Errorf("one place: %q", got)
	}
}

// TestPiecesOutsideBrackets: what is split at commas, and where that ends.
func TestPiecesOutsideBrackets(t *testing.T) {
	for text, want := range map[string]string{
		"a, b": "a| b", "a": "a", "": "", "f(a, b), c": "f(a, b)| c", "a) , b": "a", "a], b": "a",
		"{1: 2, 3: 4}, b": "{1: 2, 3: 4}| b", "(a, [b, c]), d)": "(a, [b, c])| d", "a,": "a|",
	} {
		if got := strings.Join(outside(text), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
