"""memroom.Stream among people who wish it ill: another user of the machine, servers that send false
data, stop or stall, and addresses that hold secrets.
"""

import glob
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import memroom
import numpy
from memroom import wire
from memroom.command import find

NOBODY = 65534


def nobody(program, *arguments):
    """Runs Python as another user, who need not be able to read this Python's files; it prints a
    line when it is ready."""
    become = "import json, os, socket, sys\nos.setgroups([]); os.setgid(%d); os.setuid(%d)\n" % (
        NOBODY,
        NOBODY,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", become + program, *arguments], stdout=subprocess.PIPE, cwd="/"
    )
    if process.stdout.readline() != b"ready\n":
        raise AssertionError("the other user's program did not start")
    return process


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.chmod(folder.name, 0o755)
        self.open = os.path.join(folder.name, "tmp")  # a temporary folder as machines have it
        os.mkdir(self.open)
        os.chmod(self.open, 0o1777)
        before = tempfile.tempdir, dict(os.environ)
        tempfile.tempdir = self.open

        def restore():
            tempfile.tempdir = before[0]
            os.environ.clear()
            os.environ.update(before[1])

        self.addCleanup(restore)
        self.data = os.path.join(folder.name, "a.npy")
        numpy.save(self.data, numpy.arange(1000.0))

    def read(self, source=None, **options):
        with memroom.Stream(source or self.data, batch_size=100, **options) as stream:
            return numpy.concatenate([batch["data"] for batch in stream])

    def gone(self, pid):
        """Waits for the end of a process; the limit only ends a test that would hang."""
        for _ in range(300):
            try:
                with open("/proc/%d/stat" % pid) as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return True
            except OSError:
                return True
            time.sleep(0.1)
        return False


@unittest.skipIf(os.geteuid() != 0, "SKIPPED: needs root, to act as a second user")
class SecondUser(Case):
    TAKES = (
        "os.mkdir(sys.argv[1]); os.chmod(sys.argv[1], int(sys.argv[2], 8))\n"
        "print('ready', flush=True)\n"
    )
    # Answers as a server does, with data of its own.
    LIES = (
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1].replace('@', chr(0))); s.listen()\n"
        "if sys.argv[1][0] != '@': os.chmod(sys.argv[1], 0o777)\n"
        "print('ready', flush=True)\n"
        "column = dict(name='data', kind='fixed', dtype='<f8', width=8)\n"
        "while True:\n"
        "    c, _ = s.accept()\n"
        "    c.recv(65536)\n"
        "    answer = dict(columns=[column], rows=1000, batches=1, windows=1, data='', skipped=0)\n"
        "    c.sendall(json.dumps(answer).encode() + b'\\n')\n"
    )

    def test_a_folder_that_another_user_took_first(self):
        """Nobody else's folder is used: not a closed one, not an open one, not through a link."""
        mine = os.path.join(self.open, "memroom-feed-%d" % os.geteuid())
        for mode in ("700", "777", "711"):
            end(nobody(self.TAKES, mine, mode))
            numpy.testing.assert_array_equal(self.read(budget="80MiB"), numpy.arange(1000.0))
            self.assertEqual(os.listdir(mine), [])
            os.rmdir(mine)
        theirs = os.path.join(self.open, "theirs")
        end(nobody(self.TAKES, theirs, "777"))
        os.symlink(theirs, mine)
        numpy.testing.assert_array_equal(self.read(budget="80MiB"), numpy.arange(1000.0))
        self.assertEqual(os.listdir(theirs), [])
        os.environ["XDG_CACHE_HOME"] = theirs  # no other choice is left
        os.makedirs(os.path.join(theirs, "memroom", "feed-" + socket.gethostname()))
        os.chmod(os.path.join(theirs, "memroom", "feed-" + socket.gethostname()), 0o755)
        with self.assertRaisesRegex(memroom.FeedError, "no private folder.*TMPDIR"):
            self.read(budget="80MiB")

    def test_data_of_another_user_is_not_believed(self):
        for address in (os.path.join(self.open, "s"), "@memroom-test-%d" % os.getpid()):
            liar = nobody(self.LIES, address)
            try:
                with self.assertRaisesRegex(memroom.FeedError, "belongs to user %d" % NOBODY):
                    self.read(server=address)
            finally:
                end(liar)

    def test_no_name_that_another_user_could_take(self):
        """All sockets of a stream lie in a folder that only its user can enter."""
        with memroom.Stream(self.data, batch_size=100, budget="81MiB") as stream:
            next(iter(stream))
            with open("/proc/net/unix") as file:
                self.assertNotIn("@memroom-feed", file.read())
            socket_of = os.path.join(self.open, "memroom-feed-0", stream._server.name)
            self.assertTrue(os.path.exists(socket_of))
            knock = (
                "s = socket.socket(socket.AF_UNIX)\n"
                "try: s.connect(sys.argv[1])\n"
                "except PermissionError: print('ready')\n"
            )
            end(nobody(knock, socket_of))


class Servers(Case):
    def test_a_server_that_keeps_quiet(self):
        before, wire.SILENCE = wire.SILENCE, 0.5
        self.addCleanup(setattr, wire, "SILENCE", before)
        address = os.path.join(self.open, "quiet")
        with socket.socket(socket.AF_UNIX) as quiet:
            quiet.bind(address)
            quiet.listen()
            with self.assertRaisesRegex(memroom.FeedError, "not said a word"):
                self.read(server=address)
        with self.assertRaisesRegex(memroom.FeedError, "no feed server listens"):
            self.read(server=address)

    def test_a_server_that_stops_between_batches(self):
        before, wire.SILENCE = wire.SILENCE, 3
        self.addCleanup(setattr, wire, "SILENCE", before)
        stream = memroom.Stream(self.data, batch_size=1, budget="84MiB", prefetch=1)
        batches = iter(stream)
        next(batches)
        os.kill(wire._started[-1].pid, signal.SIGSTOP)
        self.addCleanup(os.kill, wire._started[-1].pid, signal.SIGCONT)
        with self.assertRaisesRegex(memroom.FeedError, "not said a word"):
            list(batches)

    def test_a_server_that_works_on_a_batch(self):
        """It takes longer than one that is stuck may, and says that it works on it."""
        before, wire.SILENCE = wire.SILENCE, 2
        self.addCleanup(setattr, wire, "SILENCE", before)
        address = os.path.join(self.open, "slow")
        column = {"name": "x", "kind": "fixed", "dtype": "<i8", "width": 8}
        answer = {"columns": [column], "classes": 0, "batches": 1, "rows": 1, "window": 1}
        span = struct.pack("<QQ", 0, 8)

        def serve():
            link, _ = listener.accept()
            with link:
                link.recv(1 << 16)
                link.sendall(json.dumps(answer).encode() + b"\n")
                for _ in range(5):
                    time.sleep(0.7)
                    link.sendall(wire.HEADER.pack(wire.STILL, 0, 0, 0, 1, 0, 0, 0) + bytes(16))
                link.sendall(wire.HEADER.pack(wire.BATCH, 0, 0, 1, 1, 8, 0, 0) + span + bytes(8))
                link.sendall(wire.HEADER.pack(wire.END, 0, 0, 0, 0, 2, 0, 0) + b"{}")
                link.recv(1 << 16)

        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            threading.Thread(target=serve, daemon=True).start()
            stream = memroom.Stream(self.data, server=address, transport="copy")
            self.assertEqual([batch["x"].tolist() for batch in stream], [[0]])

    def test_one_server_for_many_that_come_at_once(self):
        program = (
            "import memroom, sys\n"
            "from memroom import wire\n"
            "s = memroom.Stream(sys.argv[1], batch_size=100, budget='82MiB')\n"
            "b = iter(s); next(b)\n"
            "print(len(wire._started), flush=True); sys.stdin.readline()\n"
            "print(1 + sum(1 for _ in b), flush=True)\n"
        )
        command = [sys.executable, "-c", program, self.data]
        environment = {**os.environ, "TMPDIR": self.open}
        several = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
            )
            for _ in range(4)
        ]
        started = [int(process.stdout.readline()) for process in several]
        said = [process.communicate("go\n")[0] for process in several]
        self.assertEqual(sum(started), 1)
        self.assertEqual([int(text) for text in said], [10] * 4)

    def test_the_error_is_the_servers(self):
        with self.assertRaisesRegex(memroom.FeedError, "budget of 1MiB is too small"):
            self.read(budget="1MiB")

    def test_nothing_is_left_behind(self):
        self.read(budget="83MiB")
        self.assertTrue(self.gone(wire._started[-1].pid))
        self.assertEqual(os.listdir(os.path.join(self.open, "memroom-feed-%d" % os.geteuid())), [])

    def test_checksums_of_parquet_pages(self):
        """Where a file has checksums, no change of a page is read as if it were the data."""
        import pyarrow
        import pyarrow.parquet

        rows = 400
        rng = numpy.random.default_rng(0)
        columns = {
            "number": pyarrow.array(rng.random(rows)),
            "text": pyarrow.array(["t%d" % n for n in rng.integers(0, 1 << 40, rows)]),
            "class": pyarrow.array(rng.integers(0, 9, rows).astype(str)),
            "list": pyarrow.array([rng.random(3).tolist() for _ in range(rows)]),
        }
        found = 0
        for name, values in columns.items():
            for version in ("1.0", "2.0"):
                path = os.path.join(self.folder, "c-%s-%s.parquet" % (name, version))
                pyarrow.parquet.write_table(
                    pyarrow.table({name: values}),
                    path,
                    write_page_checksum=True,
                    compression="none",
                    data_page_version=version,
                )
                with open(path, "rb") as file:
                    content = bytearray(file.read())
                chunk = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(0)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                for at in rng.integers(start, start + chunk.total_compressed_size, 4):
                    damaged = bytearray(content)
                    damaged[at] ^= 0x10
                    with open(path, "wb") as file:
                        file.write(damaged)
                    try:
                        with memroom.Stream(path, batch_size=rows) as stream:
                            got = next(iter(stream))[name]
                        self.assertEqual([str(v) for v in got], self.texts(values))
                    except memroom.FeedError as error:
                        self.assertIn(path, str(error))
                        found += "checksum" in str(error)
        self.assertGreater(found, 20)

    def texts(self, values):
        plain = values.to_pylist()
        return [str(numpy.array(v)) if isinstance(v, list) else str(v) for v in plain]

    def test_names_that_are_not_utf8(self):
        name = os.path.join(os.fsencode(self.folder), b"caf\xe9.npy")
        os.rename(self.data, name)
        for source in (name, os.fsdecode(name), [os.fsdecode(name)], os.fsdecode(name)[:-4] + "*"):
            numpy.testing.assert_array_equal(self.read(source), numpy.arange(1000.0))
        with self.assertRaisesRegex(memroom.FeedError, "there is no file"):
            self.read(name + b".npy")


class Handler(BaseHTTPRequestHandler):
    """Ranges of one file, as behaviour says: whole, or in ways that servers have."""

    content = b""
    behaviour = "whole"
    asked = None  # set when a request has come
    seen = ()

    def do_GET(self):
        Handler.seen = (*Handler.seen, (self.path, dict(self.headers)))
        Handler.asked.set()
        behaviour = Handler.behaviour
        if behaviour == "silent":
            time.sleep(3600)
        if behaviour.startswith("to "):
            self.send_response(302)
            self.send_header("Location", behaviour[3:])
            self.end_headers()
            return
        if behaviour == "down":
            self.send_error(503)
            return
        first, last = self.headers["Range"][6:].split("-")
        first, last = int(first), min(int(last), len(self.content) - 1)
        part = self.content[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", "bytes %d-%d/%d" % (first, last, len(self.content)))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if behaviour == "halves" and len(part) > 100_000:
            part = part[: len(part) // 2]
        self.wfile.write(part)

    def log_message(self, *_):
        pass


class Web(Case):
    def setUp(self):
        super().setUp()
        self.values = numpy.arange(400_000.0)
        numpy.save(self.data, self.values)
        with open(self.data, "rb") as file:
            Handler.content = file.read()
        Handler.behaviour, Handler.asked, Handler.seen = "whole", threading.Event(), ()
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.port = server.server_port

    def address(self, secret=True):
        if not secret:
            return "http://127.0.0.1:%d/a.npy" % self.port
        return (
            "http://me:s3cretpw@127.0.0.1:%d/a.npy?X-Amz-Signature=s3cretsig&se=s3cretse"
            "&whatever=s3cretother&s3cretbare#s3cretend" % self.port
        )

    def test_secrets_stay_secret(self):
        with memroom.Stream(self.address(), batch_size=1000) as stream:
            batches = iter(stream)
            first = next(batches)["data"]
            for name in glob.glob("/proc/[0-9]*/cmdline"):
                try:
                    with open(name, "rb") as file:
                        self.assertNotIn(b"s3cret", file.read())
                except OSError:
                    pass  # it has ended
            rest = [batch["data"] for batch in batches]
            numpy.testing.assert_array_equal(numpy.concatenate([first, *rest]), self.values)
        self.assertIn("s3cretsig", Handler.seen[0][0])
        self.assertIn("Authorization", Handler.seen[0][1])

    def test_errors_do_not_tell(self):
        target = "/elsewhere?sig=s3cretnext"
        for behaviour, want in (
            ("down", "503"),
            ("to http://127.0.0.1:1%s" % target, "refused"),
            ("to http://[%s" % target, "a.npy"),
            ("to file:///etc/passwd", "only http:// and https://"),
            ("to ftp://me:s3cret@host/x", "only http:// and https://"),
            ("to http://169.254.169.254/latest/s3crets", "answer who a machine is"),
            ("to http://[fe80::1]/latest", "answer who a machine is"),
            ("to http://[fd00:ec2::254]/latest", "answer who a machine is"),
            ("to http://[::ffff:100.100.100.200]/latest", "answer who a machine is"),
            ("to http://127.0.0.1:%d%s" % (self.port, target), "on and on"),
        ):
            Handler.behaviour, Handler.seen = behaviour, ()
            with self.assertRaisesRegex(memroom.FeedError, want) as caught:
                self.read(self.address(), budget="84MiB")
            said = str(caught.exception)
            self.assertNotIn("s3cret", said)
            self.assertIn("a.npy?X-Amz-Signature=***&se=***&whatever=***&***", said)
            if "only" in want or "machine" in want:
                self.assertEqual(len(Handler.seen), 1, "%s was tried again" % behaviour)
            for _, headers in Handler.seen:
                self.assertNotIn("Referer", headers)
        for name in ("http://me:s3c ret@host:x/a.csv?y=s3cret", "gs://me:s3c/ret@host/a.csv"):
            with self.assertRaises(memroom.FeedError) as caught:
                self.read(name, budget="84MiB")
            self.assertNotIn("s3c", str(caught.exception))
            self.assertNotIn("ret@", str(caught.exception))

    def test_commands_do_not_tell(self):
        for arguments in (["inspect"], ["inspect", "--json"], ["index", "--json"], ["bench"]):
            words = [find(), "feed", *arguments, self.address()]
            for behaviour in ("whole", "down"):
                Handler.behaviour = behaviour
                done = subprocess.run(words, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0 if behaviour == "whole" else 2)
                self.assertNotIn("s3cret", done.stdout + done.stderr)

    def test_progress_begins_the_waits_anew(self):
        """With halves of every range, waits that double go on for hours."""
        Handler.behaviour = "halves"
        numpy.testing.assert_array_equal(self.read(self.address(False)), self.values)

    def test_the_server_ends_in_every_state(self):
        """Its only consumer is killed while it waits for an answer, and between two tries."""
        program = (
            "import memroom, sys; from memroom import wire\n"
            "s = wire.Server.start\n"
            "def start(self, *a):\n"
            "    link = s(self, *a); print(self.process.pid, flush=True); return link\n"
            "wire.Server.start = start\n"
            "list(memroom.Stream(sys.argv[1], batch_size=16, budget=sys.argv[2]))\n"
        )
        for i, behaviour in enumerate(("silent", "down")):
            Handler.behaviour = behaviour
            Handler.asked.clear()
            command = [sys.executable, "-c", program, self.address(False), "%dMiB" % (90 + i)]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": self.open}
            )
            pid = int(process.stdout.readline())
            Handler.asked.wait()
            end(process)
            self.assertTrue(self.gone(pid), "the server outlived its consumer (%s)" % behaviour)
