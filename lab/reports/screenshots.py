"""Every kind of page as a reader sees it: light, dark, 400 pixels wide, and on paper; written to build/screenshots.

    python lab/reports/screenshots.py [NAME ...]

Needs a Chromium. Pages are made by the commands below from the workloads of the repository and the records of its
tests, the server's from a configuration that this script writes. The page of a trace needs ../shared.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.report.kinds import render  # noqa: E402
from tests.unit.devtools import CHROMIUM, Page  # noqa: E402
from tests.unit.measured_fixture import make_measured  # noqa: E402
from tests.unit.places import shared  # noqa: E402

OUT = ROOT / "build" / "screenshots"
#: a small Llama, for the pages of servers
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 16, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
_BERT, _LAYER, _SERVER = "profiles/bert_large/model.py", "profiles/bert_layer/model.py", f"hf:{OUT}/llama"
#: a baseline that the gate's page is compared with, and kernels with made-up times
_BASE, _MEASURED = OUT / "base.json", OUT / "measured.json"
_TRACE = shared("traces/h100_bert-small.json.gz")
#: page → the command that makes it
PAGES = {
    "profile": f"profile {_BERT} --gpu h100 a100 l4",
    "policies": f"profile {_LAYER} --gpu h100 --policy eager memwall ideal",
    "training": "profile profiles/resnet50/model.py --gpu a100 --mode training",
    "compare": f"compare {_BERT} --gpu p100 a100 h100",
    "machines": "compare --machines --gpu p100 v100 a100 h100",
    "fuse": f"fuse {_LAYER} --gpu h100",
    "serve": f"serve {_SERVER} --gpu h100 l40s --concurrency 1 16 64 --slo tpot<20ms --price h100=2.5 l40s=1",
    "search": f"search {_SERVER} --gpu h100 l40s --gpus 4 --concurrency 64 --slo tpot<30ms --price h100=2.5 l40s=1",
    "sweep": f"sweep {_BERT} --vary gpu=h100,a100 batch=1,2,4,8,16",
    "bound": "bound softmax(f16[4096,4096]+1,-1) --gpu h100 a100 --measured 40us",
    "layout": "profile profiles/llama3_8b/model.py --mode training --cluster dgx-h100 --parallel tp=2,pp=2,dp=2",
    "gate": f"gate {_LAYER} --gpu h100 --baseline {_BASE}",
    "measure": "report",
    "accuracy": f"accuracy {_MEASURED}",
    **({"trace": f"profile {_TRACE}"} if _TRACE else {}),
}
#: look → pixels across, the medium and the theme; paper is A4 at 96 dots an inch
LOOKS = {
    "light": (1200, "screen", "light"), "dark": (1200, "screen", "dark"), "narrow": (400, "screen", "light"),
    "print": (794, "print", "light"),
}  # fmt: skip
#: pixels down of a picture at most
_HIGH = 4000


def main() -> None:
    """Make the pages that are named, or all, and photograph each."""
    if CHROMIUM is None:
        sys.exit("needs a Chromium (apt-get install chromium)")
    (OUT / "llama").mkdir(parents=True, exist_ok=True)
    (OUT / "llama" / "config.json").write_text(json.dumps(_LLAMA))
    measured = make_measured()
    measured.save(_MEASURED)
    names = sys.argv[1:] or PAGES
    if "gate" in names:
        _memwall(f"profile {_LAYER} --gpu h100 --policy eager memwall --mode training --batch 4", _BASE)
    browser = Page(OUT / "user")
    for name in names:
        page = OUT / f"{name}.html"
        if name == "measure":  # with its made-up plans, which no record holds
            page.write_text(str(render(measured, "html")), encoding="utf-8")
        else:
            _memwall(PAGES[name], page)
        for look in LOOKS:
            (OUT / f"{name}.{look}.png").write_bytes(_photograph(browser, page, *LOOKS[look]))
        print(f"{page.relative_to(ROOT)}  {page.stat().st_size / 1e6:.2f} MB")
    browser.close()


def _memwall(command: str, path: Path) -> None:
    """Have a command write a file; a gate that fails has written it too."""
    words = [sys.executable, "-m", "memwall", *command.split(), "-q", "-o", str(path)]
    done = subprocess.run(words, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        sys.exit(f"{command}: exit code {done.returncode}")


def _photograph(browser: Page, page: Path, wide: int, medium: str, theme: str) -> bytes:
    """The page in one look, as PNG, from its top."""
    size = {"width": wide, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", height=1000, **size)
    browser.call(
        "Emulation.setEmulatedMedia", media=medium, features=[{"name": "prefers-color-scheme", "value": theme}]
    )
    browser.open(page.as_uri())
    browser.wait_for("document.readyState === 'complete' && document.querySelector('main')")
    high = min(int(browser.run("document.documentElement.scrollHeight")), _HIGH)
    browser.call("Emulation.setDeviceMetricsOverride", height=high, **size)
    return base64.b64decode(browser.call("Page.captureScreenshot")["data"])


if __name__ == "__main__":
    main()
