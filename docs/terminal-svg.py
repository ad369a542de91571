"""Draws terminal output as an SVG for the README: python3 docs/terminal-svg.py < session.txt >
docs/demo.svg

Lines that begin with "$ " are what was typed; "!" in front of a line makes it stand out. Nothing is
moved or invented.
"""

import html
import sys

lines = [line.rstrip("\n") for line in sys.stdin]
width, step = max(len(line) for line in lines), 17
print(
    (
        '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
        'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="13">'
    )
    % (width * 7.85 + 32, len(lines) * step + 48)
)
print('<rect width="100%" height="100%" rx="8" fill="#15191e"/>')
for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
    print('<circle cx="%d" cy="16" r="5" fill="%s"/>' % (20 + 18 * i, colour))
for i, line in enumerate(lines):
    colour = "#d7dde4"
    if line.startswith("$ "):
        colour = "#7cc7ff"
    elif line.startswith("!"):
        colour, line = "#ffd866", line[1:]
    elif line.startswith("memroom:"):
        colour = "#a9b4c0"
    print(
        '<text x="16" y="%d" fill="%s" xml:space="preserve">%s</text>'
        % (44 + i * step, colour, html.escape(line))
    )
print("</svg>")
