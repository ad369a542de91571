package fit

import (
	"strings"
	"testing"
)

// TestLinesOfJAX: what helps is told with the line of the script and what to write there.
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
