"""The golden lines, from the Python side."""

import json
import os
import unittest

from _memroom_probe import wire

TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "testdata")


def lines(name):
    with open(os.path.join(TESTDATA, name), "rb") as file:
        return file.read().splitlines(keepends=True)


class Golden(unittest.TestCase):
    def test_messages_are_written_byte_for_byte(self):
        for line in lines("messages.jsonl"):
            fields = json.loads(line)
            kind = fields.pop("t")
            self.assertEqual(wire.line(kind, fields), line)

    def test_rows_have_the_documented_columns(self):
        rows = json.loads(lines("messages.jsonl")[2])["rows"]
        self.assertEqual(len(rows[0]), len(wire.STEP_COLUMNS))

    def test_commands_are_read(self):
        read = [wire.parse(line) for line in lines("commands.jsonl")]
        self.assertEqual([c["do"] for c in read], ["collect", "record_stacks", "snapshot"])
        self.assertEqual(read[1]["steps"], 12)

    def test_what_is_not_a_command_is_passed_over(self):
        for junk in (b"", b"{", b"[1]", b'{"t":"hello"}', b"\xff\xfe", b"null"):
            self.assertIsNone(wire.parse(junk))


class Dumps(unittest.TestCase):
    def test_agrees_with_json(self):
        for value in (
            None,
            True,
            0,
            -5,
            1 << 70,
            0.1,
            1e300,
            'a"\\\n\u2028\ud800',
            [],
            {},
            [1, [2, {"a": (3,)}]],
            {"k": None},
        ):
            self.assertEqual(json.loads(wire.dumps(value)), json.loads(json.dumps(value)))

    def test_numbers_that_json_lacks(self):
        self.assertEqual(
            wire.dumps([float("inf"), float("nan"), -float("inf")]), "[null,null,null]"
        )


if __name__ == "__main__":
    unittest.main()
