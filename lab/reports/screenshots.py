"""Every kind of page as a reader sees it: light, dark, 500 pixels wide, and on paper; written to build/screenshots.

    python lab/reports/screenshots.py [NAME ...]

Needs a Chromium. Pages are made by the commands below from the workloads of the repository, the server's from a
configuration that this script writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from tests.unit.places import CHROMIUM  # noqa: E402

OUT = ROOT / "build" / "screenshots"
#: a small Llama, for the pages of servers
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 16, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
_BERT, _LAYER, _SERVER = "profiles/bert_large/model.py", "profiles/bert_layer/model.py", f"hf:{OUT}/llama"
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
}


def main() -> None:
    """Make the pages that are named, or all, and photograph each."""
    if CHROMIUM is None:
        sys.exit("needs a Chromium (apt-get install chromium)")
    (OUT / "llama").mkdir(parents=True, exist_ok=True)
    (OUT / "llama" / "config.json").write_text(json.dumps(_LLAMA))
    for name in sys.argv[1:] or PAGES:
        page = OUT / f"{name}.html"
        command = [sys.executable, "-m", "memwall", *PAGES[name].split(), "-q", "-o", str(page)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        _photograph(page, name)
        print(f"{page.relative_to(ROOT)}  {page.stat().st_size / 1e6:.2f} MB")


def _photograph(page: Path, name: str) -> None:
    """The page in each look."""
    text = page.read_text(encoding="utf-8")
    for look in ("light", "dark"):
        themed = page.with_name(f"{name}.{look}.html")
        themed.write_text(
            text.replace('<html lang="en">', f'<html lang="en" data-theme="{look}">', 1), encoding="utf-8"
        )
        _chromium(themed, f"--screenshot={OUT / name}.{look}.png", "--window-size=1200,2400")
        if look == "light":
            _chromium(themed, f"--screenshot={OUT / name}.narrow.png", "--window-size=500,2400")
            _chromium(themed, f"--print-to-pdf={OUT / name}.print.pdf")
        themed.unlink()


def _chromium(page: Path, *flags: str) -> None:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               "--disable-dev-shm-usage", f"--user-data-dir={OUT / 'user'}", *flags, f"file://{page}"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
