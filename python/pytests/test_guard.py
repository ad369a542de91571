"""memroom.estimate, memroom.rehearse and the pytest plugin, on real PyTorch and a real pytest. One
process: pytest runs pytest inside itself.
"""

import os
import re
import signal
import subprocess
import sys
import time

import memroom
import pytest
import torch
import torch._dynamo  # here: pytester forgets what its runs import, and torch registers once

pytest_plugins = ["pytester"]


class Net(torch.nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.first = torch.nn.Linear(width, 2048)
        self.last = torch.nn.Linear(2048, 10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def train(model, batch=64, width=512):
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(batch, width).to("cuda")
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_estimates_agree():
    """Every way to hand the same training over has the same answer, and nothing here changes."""
    model = Net()
    model(torch.randn(3, 512)).sum().backward()  # the process has run a backward pass
    model.zero_grad()
    state, before = torch.get_rng_state(), model.first.weight.detach().clone()
    modules = set(sys.modules)
    ways = [
        memroom.estimate(model, torch.zeros(64, 512), "AdamW"),
        memroom.estimate(model, (64, 512), torch.optim.AdamW),
        memroom.estimate(model, {"x": (64, 512)}, lambda ps: torch.optim.AdamW(ps)),
        memroom.estimate(lambda: train(model)),
    ]
    with torch.device("meta"):
        empty = Net()
    ways.append(memroom.estimate(empty, [(64, 512)], "AdamW"))
    loader = torch.utils.data.DataLoader([torch.zeros(512) for _ in range(64)], batch_size=64)
    ways.append(memroom.estimate(model, loader, torch.optim.AdamW(model.parameters())))
    ways.append(memroom.estimate(model, iter([torch.zeros(64, 512)]), "AdamW"))
    with memroom.rehearse() as r:
        train(model)
        inside = True
    assert "inside" not in locals()
    ways.append(r)
    assert {(e.allocated, e.reserved, e.device) for e in ways} == {
        (ways[0].allocated, ways[0].reserved, ways[0].device)
    }
    e = ways[0]
    assert e.allocated >= 4 * sum(p.numel() * 4 for p in model.parameters())
    assert e.low <= e.device <= e.high and e.fits and e.categories["weights"]
    assert "test_guard.py:" in e.lines[0].line
    assert set(e.phases) == {"forward", "backward", "optimizer"} and e.curve
    assert "By line" in str(e) and "<svg" in e._repr_html_()
    assert model.first.weight.device.type == "cpu" and type(model.first.weight).__name__ == (
        "Parameter"
    )
    assert torch.equal(before, model.first.weight)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.cuda.is_initialized()
    new = {m for m in set(sys.modules) - modules if not m.startswith(("memroom", "_memroom"))}
    assert not {m for m in new if m.startswith("torch._subclasses")}


def test_skips_one_line_bodies():
    ran = []
    with memroom.rehearse() as r:
        train(Net())
        ran.append(1)  # noqa: E701, E702
    assert not ran and r.peak > 0 and sys.gettrace() is None


def test_more_of_a_model_is_more():
    small = memroom.estimate(Net(), (64, 512), "AdamW", gpu="RTX4090")
    large = memroom.estimate(Net(), (65536, 512), "AdamW", gpu="RTX4090")
    assert large.allocated > 3 * small.allocated
    assert not memroom.estimate(Net(), (1 << 22, 512), "AdamW", gpu="RTX4090").fits
    half = memroom.estimate(Net(), (65536, 512), "AdamW", autocast=torch.bfloat16)
    assert half.allocated != large.allocated


@torch.library.custom_op("guardtest::onlycuda", mutates_args=(), device_types="cuda")
def onlycuda(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def impatient():
    raise ValueError("no data-dependent sizes, please: CUDA_HOME")


def broken():
    """What a mistake in a file of memroom's does."""
    exec(compile("{}['a']", os.path.join(os.path.dirname(memroom.__file__), "x.py"), "exec"))


@pytest.mark.parametrize(
    "code, says",
    [
        (lambda: 1 / 0, r"^the code raised ZeroDivisionError at .*test_guard.py:\d+: division"),
        (impatient, r"^the code raised ValueError at .*test_guard.py:\d+: no data"),
        (broken, r"^the rehearsal broke, and not the code.*KeyError at .*test_guard.py"),
        (lambda: os._exit(4), "ended with code 4"),
        (lambda: os.abort(), "SIGABRT"),
        (lambda: sys.exit(1), "put nothing on a GPU"),
        (lambda: onlycuda(torch.zeros(3, device="cuda")), "register_fake"),
        (lambda: torch.nn.LazyLinear(8).cuda(), "no fake counterpart"),
    ],
)
def test_errors_name_the_way_out(code, says):
    with pytest.raises(memroom.RehearsalError, match=says):
        memroom.estimate(code)


class Masked(torch.nn.Module):
    """Keeps a sparse tensor, as a model of speech does its heads."""

    def __init__(self, used=False):
        super().__init__()
        self.layer, self.used = torch.nn.Linear(512, 512), used
        self.register_buffer("mask", torch.eye(512).to_sparse(), persistent=False)

    def forward(self, x):
        x = self.layer(x)
        return torch.sparse.mm(self.mask, x) if self.used else x


def test_sparse_buffers_move_and_are_not_computed_with():
    plain = memroom.estimate(torch.nn.Linear(512, 512), (512, 512), "SGD")
    masked = memroom.estimate(Masked(), (512, 512), "SGD")
    assert masked.categories["weights"] - plain.categories["weights"] == 512 * (2 * 8 + 4)
    with pytest.raises(memroom.RehearsalError, match="^sparse tensors can be moved"):
        memroom.estimate(Masked(used=True), (512, 512), "SGD")


def logits(upcast, kept):
    """A model that may widen its logits, before a loss that widens them itself."""
    weight = torch.zeros(8192, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    out = torch.zeros(4096, 64, dtype=torch.bfloat16, device="cuda") @ weight.t()
    out = out.float() if upcast else out
    target = torch.zeros(4096, dtype=torch.int64, device="cuda")
    loss = (lambda x: torch.nn.functional.cross_entropy(x.float(), target))(out)
    if not kept:
        del out
    loss.backward()


def test_an_upcast_counts_where_its_result_is_kept():
    def saved(kept):
        return (
            memroom.estimate(lambda: logits(True, kept)).allocated
            - memroom.estimate(lambda: logits(False, kept)).allocated
        )

    assert (saved(False), saved(True)) == (0, 2 * 4096 * 8192)


def test_a_model_needs_a_sample():
    with pytest.raises(TypeError, match="needs a sample"):
        memroom.estimate(Net())


class Routed(torch.nn.Module):
    """Experts that get the rows which a router chooses for them."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(64, 2048)
        self.expert = torch.nn.Linear(64, 64)

    def forward(self, x):
        chosen = self.router(x).argmax(-1) < 1024
        return self.expert(x[chosen.nonzero()[:, 0]])


@pytest.mark.parametrize("rows", [512, 8192])
def test_shapes_that_a_router_chooses_are_said_to_be_guessed(rows):
    warnings = memroom.estimate(Routed(), (rows, 64)).warnings
    assert any("shapes depend on values" in one for one in warnings) == (rows == 8192), warnings


def test_a_model_that_was_compiled_before():
    before = memroom.estimate(torch.compile(Net()), (64, 512), "AdamW")
    assert before.allocated == memroom.estimate(lambda: train(torch.compile(Net()))).allocated


def test_a_loop_ends_where_a_known_value_decides():
    """As beam search does: better answers may come (nobody knows), but the length is reached."""
    passes = []

    def work():
        x = torch.randn(4, 512, device="cuda")
        for length in range(9):
            hopeful = (torch.nn.functional.linear(x, x) > 0).any()
            short = torch.full((), length < 2, dtype=torch.bool, device="cuda")
            passes.append(torch.zeros(64 << 20, dtype=torch.uint8, device="cuda"))
            if not (hopeful & short) and (hopeful | ~short):
                return
        raise AssertionError("it went on")

    assert memroom.estimate(work).allocated // (64 << 20) == 3


def test_without_the_probe(monkeypatch):
    """A package that was copied without it has no child that ends wordlessly."""
    monkeypatch.setitem(sys.modules, "_memroom_probe.rehearse.inside", None)
    with pytest.raises(memroom.RehearsalError, match="install the wheel"):
        memroom.estimate(Net(), (64, 512))


def test_a_child_that_hangs_or_leaves_children():
    def hangs():
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os.execvp("sleep", ["sleep", "600"])

    with pytest.raises(memroom.RehearsalError, match="not done after"):
        memroom.estimate(hangs, timeout=3)


def marked(path):
    """Leaves this process's number: open would write for the rehearsal alone."""
    mark = os.open(path + ".part", os.O_CREAT | os.O_WRONLY)
    os.write(mark, b"%d" % os.getpid())
    os.rename(path + ".part", path)


def test_a_child_that_leaves_one_in_another_session(tmp_path):
    mark = os.path.join(tmp_path, "mark")

    def leaves():
        if os.fork() == 0:
            os.setsid()
            marked(mark)
            time.sleep(600)
        while not os.path.exists(mark):
            time.sleep(0.01)

    with pytest.raises(memroom.RehearsalError, match="put nothing on a GPU"):
        memroom.estimate(leaves)
    with open(mark) as file:
        os.kill(int(file.read()), signal.SIGKILL)  # it was there all the time


KILLED = """
import os, sys, time
import memroom
def waits():
    os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY))
    time.sleep(600)
memroom.estimate(waits)
"""


def test_nothing_is_left_of_a_killed_caller(tmp_path):
    """Neither the child nor its folder."""
    mark, temporary = tmp_path / "mark", tmp_path / "temporary"
    temporary.mkdir()
    environ = dict(os.environ, TMPDIR=str(temporary))
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(mark)], env=environ)
    while not mark.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    (left,) = temporary.iterdir()
    killed.kill()
    killed.wait()
    while left.exists():  # until the command has seen it
        time.sleep(0.01)


TESTS = """
import os, sys, threading, time, unittest
import pytest, torch

class Net(torch.nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.first = torch.nn.Linear(width, 2048)
        self.last = torch.nn.Linear(2048, 10)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

def train(width=512, batch=64):
    model = Net(width).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(batch, width, device="cuda")).sum().backward()
        optimizer.step(); optimizer.zero_grad()

def test_plain():
    assert not torch.cuda.is_available()

@pytest.mark.limit_device_memory("2GiB", gpu="RTX4090")
def test_fits():
    train()

@pytest.mark.limit_device_memory("600MiB", gpu="RTX4090")
def test_above():
    train(batch=65536)

@pytest.mark.limit_device_memory("24GiBx")
def test_mistaken():
    train()

@pytest.mark.parametrize("width", [256, 512])
@pytest.mark.device_memory_as_recorded(tolerance="1%")
def test_recorded(width):
    train(width, int(os.environ.get("BATCH", 64)))

@pytest.fixture(scope="session")
def model():
    return Net()

def test_uses(model):
    model(torch.zeros(2, 512)).sum().backward()

def test_asks(memroom_rehearsal, tmp_path, model):
    model.to("cuda")
    assert memroom_rehearsal.allocated >= 4 * 2048 * 522
    assert memroom_rehearsal.fits("1GiB") and not memroom_rehearsal.fits(1)
    print("asked")

class TestCase(unittest.TestCase):
    def setUp(self):
        self.width = 128
    @pytest.mark.limit_device_memory("2GiB")
    def test_method(self):
        train(self.width)
    @pytest.mark.limit_device_memory("2GiB")
    def test_sizes(self):
        train()
        for size in (1, 2):
            with self.subTest(size=size):
                self.assertNotEqual(size, 2)

@pytest.mark.limit_device_memory("1KiB")
@pytest.mark.xfail(reason="known")
def test_expected_above():
    train()

@pytest.mark.limit_device_memory("1KiB")
@pytest.mark.xfail(strict=True, reason="known")
def test_strictly_expected_above():
    train()

@pytest.mark.limit_device_memory("2GiB")
@pytest.mark.xfail(strict=True, reason="was above once")
def test_no_longer_above():
    train()

@pytest.mark.limit_device_memory("2GiB", gqu="RTX4090")
def test_misspelt():
    train()

@pytest.mark.limit_device_memory("2GiB")
def test_learns():
    loss = Net().cuda()(torch.rand(4, 512, device="cuda")).sum()
    assert loss.item() < 0

@pytest.mark.limit_device_memory("2GiB")
@pytest.mark.parametrize("how", "exit _exit abort kill fork thread raise print".split())
def test_bad(how):
    if how == "exit": sys.exit(2)
    if how == "_exit": os._exit(2)
    if how == "abort": os.abort()
    if how == "kill": os.killpg(0, 9)
    if how == "fork" and os.fork() == 0: time.sleep(600)
    if how == "thread": threading.Thread(target=time.sleep, args=(600,)).start()
    if how == "raise": raise KeyError("x")
    os.write(1, b"printed" * 10000)
    train()

@pytest.mark.limit_device_memory("2GiB")
@pytest.mark.skipif("CUSTOM" not in os.environ, reason="asked for by name")
def test_custom():
    torch.ops.guardtest.onlycuda(torch.zeros(3, device="cuda"))

@pytest.mark.limit_device_memory("2GiB")
def test_hangs():
    time.sleep(600 if "HANG" in os.environ else 0)
    train()

def test_after():
    assert not torch.cuda.is_available()
"""


def run(pytester, *args):
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)


SUBTESTS = "test_memory.py::TestCase::test_sizes"


def test_plugin(pytester, monkeypatch):
    pytester.makepyfile(test_memory=TESTS)
    result = run(pytester, "--memroom-record", "--memroom-report", "--deselect", SUBTESTS)
    result.assert_outcomes(passed=12, failed=10, skipped=1, xfailed=2)
    out = result.stdout.str()
    assert "not ['gqu']" in out and "[XPASS(strict)] was above once" in out
    assert "test_learns" in out and "an assertion about it belongs into a test" in out
    assert re.search(r"SIGABRT before .*\n.*test_memory.py\", line \d+ in test_bad", out)
    assert "needs 2.189GiB of device memory, more than the limit of 600MiB" in out
    assert "test_memory.py:10" in out and "SIGABRT" in out and "KeyError: 'x'" in out
    assert (
        "'24GiBx' is not a size" in out
        and "SystemExit: 2" in out
        and "ended with code 2" in out
        and "SIGKILL" in out
    )
    assert out.index("= device memory =") < out.rindex("test_fits")
    recorded = sorted(p.name for p in pytester.path.rglob("*.json"))
    assert recorded == ["test_recorded[256].json", "test_recorded[512].json"]

    result = run(pytester, "-k", "recorded")
    result.assert_outcomes(passed=2)
    monkeypatch.setenv("BATCH", "4096")
    result = run(pytester, "-k", "recorded")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["the test allocates * more than the *", "by category:", "by line:", "*test_memory.py:*"]
    )

    monkeypatch.setenv("HANG", "1")
    result = run(pytester, "-k", "hangs or after", "--memroom-timeout", "2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*was not done after 2 seconds*"])

    monkeypatch.setenv("CUSTOM", "1")
    result = run(pytester, "-k", "custom")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_memory.py:*register one with torch.library.register_fake"])


def test_plugin_hears_subtests(pytester):
    pytester.makepyfile(test_memory=TESTS)
    result = run(pytester, "-vv", SUBTESTS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*AssertionError: 2 == 2", "contains 1 failed subtest"])


def test_plugin_in_several_processes(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(test_memory=TESTS)
    result = run(pytester, "-n", "2", "--memroom-record", "--memroom-report", "-k", "fits or rec")
    result.assert_outcomes(passed=3)
    assert "test_memory.py::test_fits" in result.stdout.str()


TRAINERS = """
import pytest, torch
import lightning, transformers

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512)
    def training_step(self, batch, index):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

@pytest.mark.limit_device_memory("2GiB")
def test_lightning(tmp_path):
    assert torch.cuda.is_available()
    data = torch.utils.data.DataLoader(torch.zeros(64, 512), batch_size=16)
    trainer = lightning.Trainer(max_epochs=1, default_root_dir=tmp_path, accelerator="gpu",
        devices=1, enable_progress_bar=False)
    trainer.fit(Module(), data)

@pytest.mark.limit_device_memory("2GiB")
def test_trainer(tmp_path):
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=100)
    model = transformers.GPT2LMHeadModel(config)
    row = {"input_ids": torch.ones(16, dtype=torch.int64), "labels": torch.ones(16).long()}
    arguments = transformers.TrainingArguments(output_dir=tmp_path, max_steps=2, report_to=[])
    transformers.Trainer(model, arguments, train_dataset=[row] * 64).train()
"""


def test_plugin_with_trainers(pytester):
    pytest.importorskip("lightning")
    pytester.makepyfile(test_trainers=TRAINERS)
    run(pytester, "--memroom-report").assert_outcomes(passed=2)
