"""Results of benchmarks → runs; runs of a server whose numbers are known → those numbers."""

import json
from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.engine import load_engine
from memwall.serving import serve
from memwall.serving.calibration import calibrate_engine
from memwall.serving.calibration.fitting import TERMS, FittedEngine, FittedRun, FittedTerm
from memwall.serving.calibration.results import BenchRun, is_alike, read_results
from memwall.serving.simulation.workload import RequestLoad
from tests.unit.configs import SHORT_LLAMA, target_of
from tests.unit.serving.bench_results import INFERENCEX, SGLANG, VLLM, written

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("scipy", reason="scipy is not installed")

# -- what tools write --------------------------------------------------------------------------------------------------


def test_a_result_of_vllm(tmp_path):
    (run,) = read_results([written(tmp_path / "r.json", VLLM)])
    load = run.load
    assert (run.ttft_s, run.tpot_s, run.model, run.engine) == (0.1, 0.01, "org/model", "vllm")
    assert (load.concurrency, load.requests, load.prompt.nominal, load.generate.nominal) == (8, 80, 1024, 256)


def test_results_of_sglang_are_lines(tmp_path):
    runs = read_results([written(tmp_path / "r.jsonl", SGLANG, {**SGLANG, "max_concurrency": 1}, lines=True)])
    assert [run.load.concurrency for run in runs] == [16, 1] and runs[0].engine == "sglang"
    assert [run.source.rpartition(":")[2] for run in runs] == ["1", "2"]


def test_random_lengths_of_sglang_go_from_a_share_to_nominal(tmp_path):
    (run,) = read_results([written(tmp_path / "r.jsonl", SGLANG, lines=True)])
    assert [(each.least, each.most) for each in (run.load.prompt, run.load.generate)] == [(500, 1000), (100, 200)]


def test_an_aggregate_of_inferencex(tmp_path):
    """Seconds; lengths from 0.8 of nominal on, ten requests for each client."""
    (run,) = read_results([written(tmp_path / "r.json", INFERENCEX)])
    assert (run.ttft_s, run.tpot_s, run.gpus, run.engine) == (0.2, 0.015, 4, "vllm")
    assert (run.load.concurrency, run.load.requests, run.load.prompt.least) == (32, 320, 819)


def test_aggregates_may_be_a_list(tmp_path):
    runs = read_results([written(tmp_path / "r.json", INFERENCEX, {**INFERENCEX, "conc": 4})])
    assert [run.load.concurrency for run in runs] == [32, 4]


def test_without_a_limit_all_requests_come_at_once(tmp_path):
    (run,) = read_results([written(tmp_path / "r.json", {**VLLM, "max_concurrency": None})])
    assert run.load.concurrency == run.load.requests == 80


def test_a_rate_is_one(tmp_path):
    (run,) = read_results([written(tmp_path / "r.json", {**VLLM, "max_concurrency": None, "request_rate": 4.0})])
    assert run.load.rate_per_s == 4 and run.load.concurrency is None


def test_burstiness_is_the_shape_of_a_gamma_distribution(tmp_path):
    """Whose coefficient of variation is one over its root: 2 of 0.25."""
    record = {**VLLM, "max_concurrency": None, "request_rate": 4.0, "burstiness": 0.25}
    (run,) = read_results([written(tmp_path / "r.json", record)])
    assert run.load.burst == 2


def test_sequences_that_decode_by_littles_law(tmp_path):
    """Of 0.1 s and 255 steps of 10 ms an answer decodes for 2.55 / 2.65 of the time: 7.7 of 8 clients."""
    (run,) = read_results([written(tmp_path / "r.json", VLLM)])
    assert run.decoding == pytest.approx(7.698, abs=1e-3)


@pytest.mark.parametrize(("one", "other"), [("org/Model-7B", "model-7b"), ("a/Model-7B/", "b/Model-7B")])
def test_names_of_one_model(one, other):
    assert is_alike(one, other)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({k: v for k, v in VLLM.items() if k != "mean_tpot_ms"}, "lacks mean_tpot_ms; want what vllm bench serve"),
        ({k: v for k, v in VLLM.items() if k != "total_input_tokens"}, "lacks total_input_tokens"),
        ({k: v for k, v in INFERENCEX.items() if k != "mean_ttft"}, "lacks mean_ttft"),
        ({**VLLM, "completed": 0}, "completed is 0; want a number above 0"),
        ({**VLLM, "mean_ttft_ms": -5.0}, "mean_ttft_ms is -5.0; want a number above 0"),
        ({**VLLM, "mean_tpot_ms": float("nan")}, "mean_tpot_ms is nan; want a number above 0"),
        ({**VLLM, "mean_tpot_ms": "10"}, "mean_tpot_ms is '10'"),
        ({**VLLM, "mean_tpot_ms": True}, "mean_tpot_ms is True"),
        ({**VLLM, "max_concurrency": 1.5}, "max_concurrency is 1.5; want a whole number above 0"),
        ({**VLLM, "request_rate": 4.0}, "it has a request_rate and a max_concurrency"),
        ({**VLLM, "total_output_tokens": 80}, "answers of one token have no time per output token"),
        ({**SGLANG, "random_range_ratio": 2}, "random_range_ratio is 2; want a share from 0 to 1"),
        ({**INFERENCEX, "disagg": True}, "prompts and decodes apart"),
        ({"hw": "h100"}, "has neither mean_ttft_ms nor conc"),
        ([1, 2], "is 1; want what"),
    ],
)
def test_a_result_that_is_wrong_is_one_line(tmp_path, record, said):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError) as error:
        read_results([path])
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"), [("", "is empty"), ("{\n", "is not JSON"), (json.dumps(VLLM) + "\nx\n", ":2 is not JSON")]
)
def test_a_file_that_is_no_result_is_one_line(tmp_path, text, said):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_results([tmp_path / "r.json"])


def test_results_of_two_models_are_refused(tmp_path):
    paths = [written(tmp_path / f"{name}.json", {**VLLM, "model_id": f"org/{name}"}) for name in "ab"]
    with pytest.raises(UsageError, match="results are of org/a and of org/b"):
        read_results(paths)


# -- what is fitted ----------------------------------------------------------------------------------------------------

_TRUTH = {"kernels_factor": 1.3, "request_s": 0.09, "step_s": 0.004, "sequence_s": 5e-5}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return target_of(tmp_path_factory.mktemp("model") / "llama", SHORT_LLAMA)


@pytest.fixture(scope="module")
def measured(target, tmp_path_factory):
    """Results of a server whose engine has other numbers, by clients."""
    folder = tmp_path_factory.mktemp("measured")
    numbers = "".join(f"{name} = {value}\n" for name, value in _TRUTH.items())
    (folder / "truth.toml").write_text(f'schema = "memwall.engine/1"\nbase = "vllm@0.12"\n{numbers}')
    clients = (1, 8, 48, 160)
    found = serve(target, gpu="h100", engine=str(folder / "truth.toml"), prompt=512, generate=64, concurrency=clients)
    paths = {}
    for point in found.points:
        run, count = point.candidate.run, point.workload.count
        result = {
            **VLLM, "max_concurrency": point.workload.concurrency, "completed": count,
            "total_input_tokens": 512 * count, "total_output_tokens": 64 * count,
            "mean_ttft_ms": 1e3 * run.ttft.mean, "mean_tpot_ms": 1e3 * run.tpot.mean,
        }  # fmt: skip
        paths[point.workload.concurrency] = written(folder / f"{point.workload.concurrency}.json", result)
    return paths


def fitted(found):
    return {each.term.name: each.after for each in found.terms if not each.held}


@pytest.fixture(scope="module")
def found(target, measured):
    return calibrate_engine(target, [*measured.values()], gpu="h100", engine="vllm@0.12")


def test_the_numbers_of_a_server_are_found_again(found):
    assert fitted(found) == pytest.approx(_TRUTH, rel=0.02)


def test_errors_before_after_and_of_runs_left_out(found):
    for figure in range(2):
        before, after, others = (found.error(when, figure) for when in ("before", "after", "others"))
        assert before > 0.2 and max(others, after) < 0.01


def test_what_is_written_is_an_engine(found, tmp_path):
    (tmp_path / "mine.toml").write_text(found.text)
    engine = load_engine(tmp_path / "mine.toml")
    assert (engine.kernels, engine.version) == ("vllm", "0.12")
    assert engine.host.request_s == pytest.approx(0.09, rel=0.02)


def test_one_run_tells_two_numbers_and_others_are_held(target, measured):
    found = calibrate_engine(target, [measured[8]], gpu="h100", engine="vllm@0.12")
    held = {each.term.name: each.held for each in found.terms if each.held}
    assert held == {"step_s": "2 runs of different loads tell it", "sequence_s": "3 runs of different loads tell it"}
    assert found.error("after", 1) < found.error("before", 1) and found.error("others", 1) is None


def test_a_run_twice_is_one_load(target, measured):
    found = calibrate_engine(target, [measured[8]] * 3, gpu="h100", engine="vllm@0.12")
    assert set(fitted(found)) == {"kernels_factor", "request_s"}


def test_a_run_below_the_bound_is_left_out_by_name(target, measured, tmp_path):
    wrong = {**json.loads(Path(measured[8]).read_text()), "mean_tpot_ms": 1e-3}
    found = calibrate_engine(target, [measured[48], written(tmp_path / "wrong.json", wrong)], gpu="h100")
    ((source, why),) = found.left_out
    assert source.endswith("wrong.json") and why.startswith("TPOT of 1.00 us is below the")
    assert [each.run.load.concurrency for each in found.runs] == [48]


def test_without_a_run_there_is_nothing_to_fit(target, tmp_path):
    with pytest.raises(UsageError, match=r"no run is left: .*below the"):
        calibrate_engine(target, [written(tmp_path / "r.json", {**VLLM, "mean_tpot_ms": 1e-3})], gpu="h100")


def test_a_run_that_speculates_wants_its_draft(target, tmp_path):
    path = written(tmp_path / "r.json", {**INFERENCEX, "tp": 1, "spec_decoding": "mtp"})
    with pytest.raises(UsageError, match="it speculates: say with what by --draft"):
        calibrate_engine(target, [path], gpu="h100")


def test_an_engine_of_other_gpus_is_refused(target, tmp_path):
    with pytest.raises(UsageError, match="an engine of 4 GPUs, and the server has 1"):
        calibrate_engine(target, [written(tmp_path / "r.json", INFERENCEX)], gpu="h100")


def test_the_model_of_a_launch_line_has_to_be_that_of_the_runs(target, tmp_path):
    with pytest.raises(UsageError, match="is of org/model, and the launch line of org/other"):
        calibrate_engine(target, [written(tmp_path / "r.json", VLLM)], launch="vllm serve org/other")


def test_results_of_two_engines_are_refused(target, tmp_path):
    paths = [written(tmp_path / "a.json", VLLM), written(tmp_path / "b.json", {**VLLM, "backend": "sglang"})]
    with pytest.raises(UsageError, match="results are of vllm and of sglang"):
        calibrate_engine(target, paths)


def test_the_image_of_a_result_says_the_version(target, tmp_path):
    path = written(tmp_path / "r.json", {**INFERENCEX, "tp": 1, "mean_ttft": 5.0, "mean_tpot": 0.1})
    assert calibrate_engine(target, [path], gpu="h100").engine.name == "vllm@0.11.0"


def test_what_is_calibrated_already_is_no_base(target, measured, tmp_path):
    (tmp_path / "mine.toml").write_text('schema = "memwall.engine/1"\nbase = "vllm"\n')
    with pytest.raises(UsageError, match="is calibrated already"):
        calibrate_engine(target, [measured[8]], engine=str(tmp_path / "mine.toml"))


def test_a_term_at_its_bound_says_so():
    factor = TERMS[0]
    said = [FittedTerm(term=factor, before=1.0, after=after).said for after in (1.5, 4.0, 0.25)]
    assert said == ["fitted", "fitted, but 4 is the most", "fitted, but 0.25 is the least"]


def test_a_model_s_name_adds_no_line_to_the_file(tmp_path):
    """A result whose model is called so gave the engine seconds of its own."""
    run = BenchRun(source="r", model="m", load=RequestLoad(concurrency=1), ttft_s=1.0, tpot_s=1.0)
    runs = (FittedRun(run=run, before=(1.0, 1.0), after=(1.0, 1.0), others=None),)
    terms = (FittedTerm(term=TERMS[0], before=1.0, after=1.5),)
    found = FittedEngine(engine=load_engine("vllm"), model="m\nstep_s = 9 #", server="h100-sxm", terms=terms, runs=runs)
    (tmp_path / "mine.toml").write_text(found.text)
    assert load_engine(tmp_path / "mine.toml").host.step_s == load_engine("vllm").host.step_s
