"""The page of a training step of Llama-3-70B: its size, and how long a headless Chromium takes until it is ready.

    python lab/benchmarks/page_speed.py [--runs 5] [-o reports/page.md]

Ready: the page is parsed, its script has run and it is laid out, by the page's own clock from the start of the
navigation. The goals are 3 MB and 1 s.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import memwall  # noqa: E402
from memwall.report import render  # noqa: E402
from tests.unit.places import CHROMIUM  # noqa: E402

MOST_BYTES, MOST_S = 3_000_000, 1.0
GPUS, POLICIES = ["h100-sxm", "a100-80gb-sxm"], ["eager", "memwall", "ideal"]
_CLOCK = "document.body.offsetHeight;document.title=`ready ${performance.now()}`"


def ready_s(page: str, folder: Path) -> float:
    """Seconds until a fresh browser has the page ready."""
    file = folder / "page.html"
    digest = b64encode(sha256(_CLOCK.encode()).digest()).decode()
    timed = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)  # the policy of the page allows it, too
    file.write_text(timed.replace("</body>", f"<script>{_CLOCK}</script></body>"), encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
        f"--user-data-dir={folder}/user", "--dump-dom", f"file://{file}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<title>ready ([\d.]+)", done.stdout)
    if found is None:
        raise SystemExit("the page's clock did not run")
    return float(found[1]) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("needs a headless Chromium (apt-get install chromium)")
    model = ROOT / "profiles/llama3_70b/model.py"
    page = str(render(memwall.profile(model, gpu=GPUS, mode="training", policy=POLICIES), "html"))
    with tempfile.TemporaryDirectory() as folder:
        times = [ready_s(page, Path(folder)) for _ in range(options.runs)]
    size, middle = len(page.encode()), statistics.median(times)
    text = (
        "# The page of a large step\n\n`python lab/benchmarks/page_speed.py -o reports/page.md` wrote this.\n\n"
        f"Llama-3-70B, training, on {' and '.join(GPUS)}, policies {', '.join(POLICIES)}: {size / 1e6:.2f} MB; ready in"
        f" {middle:.2f} s in headless Chromium, the median of {len(times)} ({min(times):.2f} to {max(times):.2f} s)."
        f" Goals: {MOST_BYTES / 1e6:.0f} MB, {MOST_S:.0f} s.\n"
    )
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    print(text)
    return int(size > MOST_BYTES or middle > MOST_S)


if __name__ == "__main__":
    sys.exit(main())
