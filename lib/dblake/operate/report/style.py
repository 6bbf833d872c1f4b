"""The style sheet of the page, for light and dark, from a phone's width up.

Place: part of ``page``. Cool colors are data, warm ones are what needs attention. Every text has a contrast of at least
4.5 to 1 with what is behind it, in both schemes.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --bg: #f3f5f8; --card: #fff; --text: #17202b; --muted: #546171; --line: #dbe1e8; --soft: #e9edf2;
  --inserts: #17937f; --updates: #3f7fdb; --deletes: #8a5fd0; --landing: #17937f; --state: #3f7fdb;
  --events: #23355c;
  --severe: #b8233a; --minor: #8f5600; --good: #156f41; --drop: #b8233a; --spike: #8f5600;
  --severe-bg: #fcebed; --minor-bg: #fdf2dc; --good-bg: #e4f5ec; --drop-bg: #f6c6cc; --spike-bg: #f9dca4;
  --age1: #17937f; --age2: #5db8a8; --age3: #a9d6cd; --age4: #d9a441; --never: #c2cad4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0e1319; --card: #161d26; --text: #e3e9f0; --muted: #9aa8b8; --line: #2a3542; --soft: #212b37;
    --inserts: #2fb59f; --updates: #669ff0; --deletes: #ab88ee; --landing: #2fb59f; --state: #669ff0;
    --events: #e0d0ff;
    --severe: #ff8591; --minor: #f0b552; --good: #57cf92; --drop: #ff8591; --spike: #f0b552;
    --severe-bg: #3a1a20; --minor-bg: #362810; --good-bg: #12301f; --drop-bg: #6b2a34; --spike-bg: #5f461a;
    --age1: #2fb59f; --age2: #24806f; --age3: #1d5248; --age4: #b98a34; --never: #465362;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 1240px; padding: 20px 20px 48px; background: var(--bg); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1, h2, h3, p, ul, ol, figure { margin: 0; padding: 0; }
ul, ol { list-style: none; }
h1 { font-size: 26px; line-height: 1.2; font-weight: 650; letter-spacing: -.01em; overflow-wrap: anywhere; }
h1 small { font-size: 15px; font-weight: 500; color: var(--muted); letter-spacing: 0; }
h1 .name { font: inherit; }
h2 { font-size: 18px; font-weight: 650; margin: 36px 0 10px; letter-spacing: -.005em; }
h3 { font-size: 12px; font-weight: 600; color: var(--muted); text-transform: uppercase; letter-spacing: .05em; }
header p, .note, .empty, footer { color: var(--muted); }
header p, .note, footer { font-size: 13px; }
header { margin-bottom: 16px; }
.note { margin-top: 8px; }
footer { margin-top: 40px; padding-top: 16px; border-top: 1px solid var(--line); max-width: 90ch; }
footer p + p { margin-top: 6px; }
.name, code {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; font-size: .93em;
}
.name, code, .problems p, .stage span, .tile span { overflow-wrap: anywhere; }
.card, .stage, .tile, .problems > li {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
}
.card + .card, .card + .grid, .grid + .card, .grid + .note, .card + .note { margin-top: 14px; }
.severe { color: var(--severe); } .late { color: var(--minor); }

.verdict { border-radius: 10px; padding: 14px 18px; margin-bottom: 14px; border-left: 6px solid; }
.verdict strong { font-size: 20px; font-weight: 650; margin-right: 12px; }
.verdict span { color: var(--text); }
.verdict.good { background: var(--good-bg); color: var(--good); }
.verdict.minor { background: var(--minor-bg); color: var(--minor); }
.verdict.severe { background: var(--severe-bg); color: var(--severe); }

.stages { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 18px; margin-bottom: 14px; }
.stage { position: relative; color: var(--text); }
.stage + .stage::before {
  content: "\\203A"; position: absolute; left: -14px; top: 50%; transform: translateY(-54%); color: var(--muted);
  font-size: 20px; line-height: 1;
}
.stage b, .tile b { display: block; font-size: 22px; font-weight: 650; line-height: 1.3; }
.stage span, .tile span { display: block; font-size: 13px; color: var(--muted); }
.stage h3::before {
  content: ""; display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px;
  background: var(--muted);
}
.stage.good h3::before { background: var(--good); } .stage.late h3::before { background: var(--minor); }
.stage.late b, .stage.off b { color: var(--minor); } .stage.off h3::before { background: var(--minor); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(145px, 1fr)); gap: 14px; }
.tile { color: var(--text); }
.tile.late b { color: var(--minor); }
.tile .bar { margin: 4px 0; }

.problems { display: grid; gap: 10px; }
.problems > li { border-left: 5px solid var(--line); padding: 10px 16px; }
.problems > .severe { border-left-color: var(--severe); color: var(--text); }
.problems > .minor { border-left-color: var(--minor); }
.problems .code { font-weight: 650; margin-right: 8px; }
.problems .severe .code { color: var(--severe); } .problems .minor .code { color: var(--minor); }
.problems .next { margin-top: 4px; color: var(--muted); }
.problems .next code { color: var(--text); background: var(--soft); border-radius: 5px; padding: 1px 6px; }
summary { cursor: pointer; }
.names { margin-top: 8px; font-size: 13px; color: var(--muted); }

.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--muted); margin-bottom: 10px; }
.key { width: 12px; height: 12px; border-radius: 3px; display: inline-block; margin-right: 6px; vertical-align: -1px; }
.key.limit { height: 0; border-radius: 0; border-top: 2px dashed var(--minor); width: 18px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(360px, 100%), 1fr)); gap: 14px; }
.grid > .card { min-width: 0; margin-top: 0; display: flex; flex-direction: column; }
.grid .plot { margin-top: auto; padding-top: 10px; }
.abnormal { border-color: var(--spike); }
figcaption { font-weight: 600; }
.sums { font-size: 13px; color: var(--muted); }
.lane .sums, .dumps .sums { margin-left: 10px; }
.episodes { font-size: 13px; margin-top: 2px; }
.episodes .drop, td .drop { color: var(--drop); } .episodes .spike, td .spike { color: var(--spike); }
td .drop, td .spike { margin-left: 6px; }

.plot { margin-top: 10px; }
.canvas { position: relative; height: 88px; border-bottom: 1px solid var(--line); }
.tall .canvas { height: 180px; }
.wide-axis { padding-left: 52px; }
svg { display: block; width: 100%; height: 100%; overflow: hidden; }
svg * { vector-effect: non-scaling-stroke; }
.canvas span {
  position: absolute; left: 0; font-size: 11px; line-height: 1; color: var(--muted); background: var(--card);
  padding: 1px 3px 1px 0;
}
.canvas .top { top: 0; } .canvas .half { top: 50%; transform: translateY(-50%); }
.canvas .level { left: -52px; width: 48px; text-align: right; padding: 0; transform: translateY(-50%); }
.times { position: relative; height: 16px; font-size: 11px; color: var(--muted); margin-top: 3px; }
.times span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.times .first { transform: none; } .times .last { transform: translateX(-100%); }
svg .grid, svg .level { stroke: var(--soft); stroke-width: 1; }
svg .limit { stroke: var(--minor); stroke-dasharray: 5 4; stroke-width: 1.5; }
.area { stroke-width: 1; }
.area.inserts, .key.inserts { fill: var(--inserts); stroke: var(--inserts); background: var(--inserts); }
.area.updates, .key.updates { fill: var(--updates); stroke: var(--updates); background: var(--updates); }
.area.deletes, .key.deletes { fill: var(--deletes); stroke: var(--deletes); background: var(--deletes); }
.area.dumped, .area.spark { fill: var(--updates); stroke: var(--updates); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dots { fill: none; stroke-width: 5; stroke-linecap: round; }
.landing { stroke: var(--landing); } .events { stroke: var(--events); } .state { stroke: var(--state); }
.key.landing { background: var(--landing); } .key.events { background: var(--events); }
.key.state { background: var(--state); }
.band { stroke: none; }
.band.drop, .key.drop { fill: var(--drop-bg); background: var(--drop-bg); }
.band.spike, .key.spike { fill: var(--spike-bg); background: var(--spike-bg); }
.band.unknown, .key.unknown { fill: var(--soft); background: var(--soft); }
.key.unknown { border: 1px solid var(--line); }
.band.emptied { fill: var(--deletes); }

.rows { padding: 4px 16px; }
.rows > summary { padding: 8px 0; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-size: 12px; font-weight: 600; color: var(--muted); }
th, td { padding: 6px 10px 6px 0; border-bottom: 1px solid var(--soft); vertical-align: middle; }
tr:last-child td { border-bottom: 0; }
th.spark, td.spark { width: 34%; padding-left: 12px; padding-right: 0; }
svg.spark { height: 26px; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.share { width: 34%; }
.share span { font-size: 12px; color: var(--muted); }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; background: var(--soft); }
.bar.slim { height: 7px; }
.bar.ages { height: 20px; border-radius: 6px; }
.done { background: var(--inserts); } .never { background: var(--never); }
.age1 { background: var(--age1); } .age2 { background: var(--age2); } .age3 { background: var(--age3); }
.age4 { background: var(--age4); }
.dumps { display: grid; gap: 12px; }
.dumps .bar { margin-top: 4px; }
.lanes { display: grid; gap: 10px; }
.timeline { position: relative; height: 8px; border-radius: 4px; background: var(--soft); margin-top: 3px; }
.timeline i { position: absolute; top: 0; height: 100%; border-radius: 4px; background: var(--inserts); }
.timeline .running, .timeline .paused, .timeline .queued { background: var(--updates); }
.timeline .failed { background: var(--severe); } .timeline .cancelled { background: var(--never); }

@media (max-width: 700px) {
  body { padding: 14px 12px 32px; }
  .stages { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; }
  .stage + .stage::before { content: none; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; }
  .stage b, .tile b { font-size: 19px; }
  .card, .stage, .tile { padding: 11px 12px; }
  .rows { padding: 4px 12px; }
  .verdict strong { display: block; }
  th, td { padding-right: 7px; font-size: 13px; }
  th .key + span { display: none; }
  th.spark, td.spark { width: 26%; padding-left: 4px; } .share { width: 30%; }
}
@media (max-width: 480px) { .times span:nth-child(even) { display: none; } }
@media print { body { max-width: none; } .card, .problems > li { break-inside: avoid; } }
"""
