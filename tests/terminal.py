"""A terminal of 80 columns and 24 lines: what a command shows on it, and what stands on it in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

COLUMNS, LINES = 80, 24
CONTROL = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<action>[A-Za-z])|\x1b[()][AB0]|[\r\n]|[^\x1b\r\n]")


class Screen:
    """What a terminal shows of the text that is written to it. It knows the few sequences that rich uses."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self.row = self.column = 0

    def write(self, text: str) -> None:
        for match in CONTROL.finditer(text):
            action = match["action"]
            if action in (None, "m", "h", "l"):
                if action is None and not match[0].startswith("\x1b"):
                    self._put(match[0])
            elif action == "A":
                self.row = max(0, self.row - int(match["numbers"] or 1))
            elif action == "K":
                self.lines[self.row] = [] if match["numbers"] == "2" else self.lines[self.row][: self.column]
            else:
                raise AssertionError(f"the test's terminal does not know {match[0]!r}")

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
            return
        if character == "\n" or self.column == COLUMNS:
            self.row, self.column = self.row + 1, 0
        if self.row == len(self.lines):
            self.lines.append([])
        if character != "\n":
            line = self.lines[self.row]
            line.extend(" " * (self.column + 1 - len(line)))
            line[self.column] = character
            self.column += 1

    @property
    def shown(self) -> list[str]:
        """The lines that stand on the terminal; those above have scrolled away."""
        return ["".join(line).rstrip() for line in self.lines][-LINES:]


def run(command: Sequence[str], cwd: Path) -> tuple[int, list[str], str]:
    """Run a command on a terminal: its exit code, the last screen, and everything that was ever written to the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            block = os.read(ours, 1 << 16)
        except OSError:  # Linux says so when nobody holds the other end any more
            break
        if not block:
            break
        written += block
    os.close(ours)
    text = written.decode()
    screen = Screen()
    screen.write(text)
    return process.wait(), screen.shown, text
