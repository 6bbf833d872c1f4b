"""Chromium without a window, to lay out a page and measure it as a browser does.

``open_page`` returns what a script finds in a copy of a page at a width and in a color scheme; ``screenshot`` writes an
image. The browser is Debian's, fetched by ``debian`` when a test first uses it (420 MB, half a minute). Its sandbox
needs rights that containers lack: open only pages of our own. Raises ``debian.Unavailable`` if it cannot be fetched.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

from tests.support.debian import tree, version
from tests.support.report import note_version

#: Functions for scripts: what a reader cannot read. Colors are opaque, so a text's background is that of its nearest
#: ancestor with one. ``findPale`` returns texts with a contrast below 4.5, ``findWide`` elements cut at the right edge.
READABILITY = """
const light = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).map(Number).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const color = getComputedStyle(e).backgroundColor;
    if (color !== 'rgba(0, 0, 0, 0)') return color;
  }
  return 'rgb(255, 255, 255)';
};
const shown = () => [...document.body.querySelectorAll('*')];
const named = (e) => e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 30);
const hasText = (e) => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())
  && e.checkVisibility() && !e.closest('svg');
const findPale = () => shown().filter(hasText).map(e => {
  const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
  return [named(e), (a + 0.05) / (b + 0.05)];
}).filter(([, ratio]) => ratio < 4.5);
const findWide = () => shown()
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest('svg')).map(named);
"""
_PROGRAM = "usr/lib/chromium/chromium-headless-shell"
_SECONDS = 60
_FOUND = re.compile(r'<pre id="found">(.*?)</pre>', re.DOTALL)
_FONTS = """\
<?xml version="1.0"?>
<fontconfig><dir>{tree}/usr/share/fonts</dir><cachedir>{folder}/fonts</cachedir></fontconfig>
"""


def open_page(page: str, script: str, folder: Path, *, width: int, dark: bool) -> Any:
    """Return the value of a script, the body of a function, in a copy of a page without its policy."""
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    added = ("<script>const value = (() => {" + script + "})();"
             "document.body.replaceChildren(Object.assign(document.createElement('pre'), "
             "{id: 'found', textContent: JSON.stringify(value)}));</script>")
    file = folder / "measured.html"
    file.write_text(copy.replace("</body>", f"{added}</body>"), encoding="utf-8")
    found = _FOUND.search(_run("--dump-dom", file, folder, width=width, height=2000, dark=dark))
    assert found, "the script did not end"
    return json.loads(unescape(found[1]))


def screenshot(page: str, image: Path, *, width: int, height: int, dark: bool) -> None:
    """Write the upper ``height`` pixels of a page as PNG."""
    file = image.with_suffix(".html")
    file.write_text(page, encoding="utf-8")
    _run(f"--screenshot={image}", file, image.parent, width=width, height=height, dark=dark)


def _run(action: str, file: Path, folder: Path, *, width: int, height: int, dark: bool) -> str:
    root = tree("chromium")
    note_version("Chromium", version("chromium"))
    fonts = folder / "fonts.conf"
    fonts.write_text(_FONTS.format(tree=root, folder=folder), encoding="utf-8")
    program = root / _PROGRAM
    done = subprocess.run(
        [str(program), "--no-sandbox", "--no-zygote", f"--browser-subprocess-path={program}", "--disable-gpu",
         "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--window-size={width},{height}", action,
         file.as_uri()],
        env=os.environ | {"FONTCONFIG_FILE": str(fonts), "HOME": str(folder)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
