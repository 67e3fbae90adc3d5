"""``memwall profile`` and ``memwall compare`` of several policies and with what-ifs."""

import json

from memwall.record.profile import Profile

PLAIN = ("--policy", "eager", "memwall", "ideal")


def test_what_ifs_stand_at_the_end_of_the_page(run, folder):
    result = run("profile", "net.py", "--gpu", "a100", "t4", *PLAIN, "-q", "--what-if", "launch_overhead_s=0",
                 "--what-if", "fuse:2", "-o", "a.html", "-o", "a.md")  # fmt: skip
    section = result.out.partition("── What if\n")[2]
    assert "── " not in section  # nothing behind it
    assert section.count("a100-80gb-sxm") == section.count("  t4 ") == 3 * 3
    markdown = (folder / "a.md").read_text().partition("## What if")[2]
    assert "| launch\\_overhead\\_s=0 and fuse:2 |" in markdown
    assert "<h2>What if</h2>" in (folder / "a.html").read_text()


def test_what_ifs_are_in_the_record_and_do_not_spoil_it(run, folder):
    """Launches for nothing: the bytes stay, and so does all that a reader of the record asks for."""
    profile = ("profile", "net.py", "--gpu", "a100", "--cuda-graph", "--json")  # else the step waits for the host
    result = run(*profile, "-q", "--what-if", "launch_overhead_s=0")
    record = json.loads(result.out)
    (outcome,) = record.pop("what_if")
    assert (outcome["what_if"], outcome["gpu"], outcome["policy"]) == (
        ["launch_overhead_s=0"], "a100-80gb-sxm", "eager",
    )  # fmt: skip
    assert outcome["after"]["time_s"] < outcome["before"]["time_s"] == record["simulations"][0]["totals"]["time_s"]
    assert outcome["after"]["dram_bytes"] == outcome["before"]["dram_bytes"]
    (folder / "with.json").write_text(result.out)
    without = json.loads(run(*profile).out)
    assert record == without
    assert len(without.pop("verdicts")) == 1  # a reader makes them again
    assert json.loads(Profile.load(folder / "with.json").to_json()) == without


def test_what_ifs_of_a_saved_profile(run):
    run("profile", "net.py", "--gpu", "a100", *PLAIN)
    page = run("profile", ".memwall/last.json", "-q", "--what-if", "dram_bytes_per_s/=2").out
    assert page.partition("── What if\n")[2].count("a100") == 0  # one GPU: no column for it
    for policy in PLAIN[1:]:
        assert f" {policy} " in page.partition("── What if\n")[2]


def test_inductor_compiles_once_for_a_profile_and_its_what_ifs(run, monkeypatch):
    """The compiler stands in as one that leaves each op alone, and counts its calls."""
    from memwall.fusion import eager_plan
    from memwall.fusion.plan import Plan
    from memwall.inductor import compiled

    calls = []

    def plan(graph, costs, gpu, regions=None):
        calls.append(gpu.name)
        return Plan("inductor", eager_plan(graph, costs).groups)

    monkeypatch.setattr(compiled, "inductor_plan", plan)
    result = run("profile", "net.py", "--gpu", "a100", "--policy", "inductor", "memwall", "-q",
                 "--what-if", "sm_count*=2", "--what-if", "fuse:0")  # fmt: skip
    assert result.code == 0
    assert calls == ["a100-80gb-sxm"]


def test_a_record_whose_eager_kernels_are_not_single_ops_is_refused(run, record):
    """What fusion saves is counted against them."""
    saved = json.loads(record.read_text())
    (kernels,) = [s["kernels"] for s in saved["simulations"][:1]]
    last = kernels.pop()
    kernels[-1]["op_ids"] += last["op_ids"]
    for key in ("flops", "read_bytes", "write_bytes"):
        kernels[-1][key] += last[key]
    record.write_text(json.dumps(saved))
    assert "eager launches each op alone and once" in run("report", record).error


def entries(result) -> list[tuple[str, str]]:
    return [(entry["gpu"], entry["policy"]) for entry in json.loads(result.out)["entries"]]


def test_compare_lists_each_policy_of_a_record_once(run):
    run("profile", "net.py", "--gpu", "a100", "t4", "--policy", "eager", "memwall")
    own = [(gpu, policy) for policy in ("eager", "memwall") for gpu in ("a100-80gb-sxm", "t4")]
    assert entries(run("compare", "--json", "-q")) == own
    other = run("compare", ".memwall/last.json", "--gpu", "l4", "--policy", "ideal", "--json", "-q")
    assert entries(other) == [("l4", "ideal")]


def test_compare_of_a_model_under_several_policies(run, folder):
    result = run("compare", "net.py", "--gpu", "a100", "t4", *PLAIN, "--json", "-q", "-o", "c.html", "-o", "c.md",
                 "-o", "c.csv", "-o", "c.png")  # fmt: skip
    assert len(entries(result)) == len(set(entries(result))) == 6
    times = {(e["gpu"], e["policy"]): e["time_s"] for e in json.loads(result.out)["entries"]}
    for gpu in ("a100-80gb-sxm", "t4"):
        assert times[gpu, "ideal"] <= min(times[gpu, "memwall"], times[gpu, "eager"])
