"""The file that a rehearsal writes."""

import json
import os
import stat
import tempfile
import threading
import unittest

from _memroom_probe.rehearse import recorder


class Written(unittest.TestCase):
    def test_a_pipe_stays_a_pipe(self):
        """A device such as /dev/null must never be replaced by a file."""
        with tempfile.TemporaryDirectory() as folder:
            path, read = os.path.join(folder, "pipe"), []
            os.mkfifo(path)

            def reader():
                with open(path) as pipe:
                    read.extend(pipe)

            thread = threading.Thread(target=reader)
            thread.start()
            recorder.Recorder().write(path, {"card": "H200"}, {"steps": 0})
            thread.join()
            self.assertTrue(stat.S_ISFIFO(os.stat(path).st_mode))
            self.assertEqual(os.listdir(folder), ["pipe"])
            self.assertEqual(json.loads(read[0])["card"], "H200")
            self.assertEqual(json.loads(read[-1])["end"]["steps"], 0)

    def test_a_file_is_replaced_as_a_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "record")
            with open(path, "w") as old:
                old.write("old")
            recorder.Recorder().write(path, {}, {})
            self.assertEqual(os.listdir(folder), ["record"])
            with open(path) as new:
                self.assertEqual(len(new.read().splitlines()), 2)
