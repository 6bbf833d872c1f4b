"""docs/window.html: every step is readable at a phone's and a desktop's width, and the keyboard reaches all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import READABILITY, open_page

PAGE = (Path(__file__).parents[2] / "docs" / "window.html").read_text(encoding="utf-8")

#: Goes through all stories and steps with the keyboard alone.
WALK = READABILITY + """
const press = (key) => document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
const text = (id) => document.getElementById(id).innerText;
const pale = new Set(), wide = new Set(), stories = [];
let scroll = 0;
const look = () => {
  findPale().forEach(([name]) => pale.add(name));
  findWide().forEach(name => wide.add(name));
  scroll = Math.max(scroll, document.documentElement.scrollWidth);
};
for (const key of '1234') {
  press(key);
  const first = text('count');
  press('ArrowLeft');
  const stays = text('count') === first;
  const steps = Number(first.split(' ').at(-1)), verdicts = [];
  for (let n = 1; n < steps; n++) {
    look();
    press('ArrowRight');
    const word = document.querySelector('#chunk .active .kept, #chunk .active .lost');
    if (word) verdicts.push(word.innerText);
  }
  look();
  const last = text('count');
  press('End'); press('Home');
  stories.push({steps, stays: stays && last === `Step ${steps} of ${steps}` && text('count') === first, verdicts,
    rule: !document.getElementById('rule').hidden});
  press('End');
  stories.at(-1).result = text('text');
}
press('3');
const rule = document.getElementById('rule');
rule.click();
press('End');
look();
return {
  width: innerWidth, dark: matchMedia('(prefers-color-scheme: dark)').matches, scroll, stories,
  pale: [...pale], wide: [...wide], published: [text('text'), text('state'), rule.getAttribute('aria-pressed')],
  low: [...document.querySelectorAll('button')].filter(e => e.checkVisibility() && e.clientHeight < 40).length,
};
"""
EQUAL = "State equals the table. The ledger of this window: "


def test_window_page_loads_nothing() -> None:
    """The page is one file: its policy forbids every request, and it names no other file to load."""
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'" in PAGE
    assert re.findall(r"https?:|<link|<img|\bsrc=|\bhref=|@import|url\(|fetch\(|XMLHttp", PAGE) == []


@pytest.mark.slow  # the first use downloads the browser
@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False), (1280, True)])
def test_window_page_walked_by_keys_is_readable(tmp_path: Path, width: int, dark: bool) -> None:
    found: dict[str, Any] = open_page(PAGE, WALK, tmp_path, width=width, dark=dark)
    assert (found["width"], found["dark"]) == (width, dark)
    assert (found["pale"], found["wide"], found["low"]) == ([], [], 0)
    assert found["scroll"] <= width
    assert found["stories"] == [
        {"steps": 11, "stays": True, "rule": False, "result": EQUAL + "3 rows read, 2 emitted, 0 filled, 1 dropped.",
         "verdicts": ["emitted at 1/140/0", "evicted by 1/130", "emitted at 1/140/4"]},
        {"steps": 9, "stays": True, "rule": False, "result": EQUAL + "3 rows read, 2 emitted, 0 filled, 1 dropped.",
         "verdicts": ["emitted at 1/130/0", "emitted at 1/130/2", "evicted by 1/120"]},
        {"steps": 10, "stays": True, "rule": True, "result": EQUAL + "3 rows read, 2 emitted, 0 filled, 1 dropped.",
         "verdicts": ["emitted at 1/130/0", "evicted by 1/110", "emitted at 1/130/4"]},
        {"steps": 8, "stays": True, "rule": False, "result": EQUAL + "2 rows read, 1 emitted, 1 filled, 0 dropped.",
         "verdicts": ["emitted at 1/130/0", "filled at 1/130/2: long text 2"]},
    ]
    assert found["published"][0] == "State keeps a row that is no longer true, and no later event corrects it."
    assert "the table has: paid" in found["published"][1]
    assert found["published"][2] == "true"
