"""The style of the HTML reports: the reader's font, light or dark like the reader's system, light in print."""

CSS = """
:root {
  color-scheme: light dark;
  --ink: #1b1b1b; --paper: #ffffff; --faint: #5c5c5c; --line: #d5d5d5; --tile: #f4f4f2;
}
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #17181a; --faint: #a3a3a3; --line: #3b3d40; --tile: #222427; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; }
p, li { max-width: 46rem; overflow-wrap: anywhere; }
.lead, figcaption { color: var(--faint); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0.6rem; margin: 1rem 0; }
.tiles div { background: var(--tile); border-radius: 6px; padding: 0.6rem 0.8rem; }
.tiles dt { color: var(--faint); font-size: 0.85rem; }
.tiles dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
figure { margin: 1.4rem 0; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { fill: currentColor; }
figure img { display: block; width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
figcaption { max-width: 46rem; margin-top: 0.3rem; }
.wide { overflow-x: auto; margin: 0.6rem 0 1.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.facts td, .facts th { text-align: left; overflow-wrap: anywhere; }
.facts td:first-child, .whole td { white-space: nowrap; }
.whole td:first-child { white-space: normal; min-width: 9rem; }
table td:first-child { overflow-wrap: anywhere; }
.units :is(td, th):nth-child(2) { text-align: left; }
summary { cursor: pointer; }
@media print {
  main { max-width: none; padding: 0; }
  body { font-size: 10pt; }
  .wide { overflow-x: visible; }
  table { font-size: 8pt; }
  th, td { padding: 0.15rem 0.4rem; }
  tr, .tiles div { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""
