"""Write the pages of the gallery; with --films the animations, what was measured and the picture of an engine too.

python -m experiments.gallery docs/gallery --films [ENVIRONMENT ...]
"""

import argparse
import json
from pathlib import Path

from experiments.gallery.films import film, measured, still
from experiments.gallery.pages import gallery
from servegym.envs.registration import ENVIRONMENTS

SCORES = "scores.json"
STILL = "engine-overload.png"


def main() -> None:
    names = [name for name, _, _ in ENVIRONMENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--films", nargs="*", choices=names, help="of these environments; of all if none is named")
    options = parser.parse_args()
    scores = options.folder / SCORES
    known = json.loads(scores.read_text("utf-8")) if scores.exists() else {}
    if options.films is not None:
        still(options.folder / STILL)
        for name in options.films or names:
            film(name, options.folder / f"{name}.avif")
            known[name] = measured(name)
            scores.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    for file, text in gallery(known).items():
        (options.folder / file).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
