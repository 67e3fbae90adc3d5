"""The CUDA clock on a device that is made up: what is put into the stream, in which order, and what is made of it."""

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from memwall.bench.cuda import QUEUED, SETTLING, WARM_UP, Cuda, Uploads, _captures, capturing, put_off
from memwall.bench.device import Ready
from memwall.record.measurement import Sensors


class FakeTorch:
    """A stream that notes what is put into it; each timed call takes one millisecond more than the one before."""

    def __init__(self, capture_error=None, sync_error=None):
        self.stream: list[str] = []
        self.now_ms = 0.0
        self.next_ms = 1.0
        self.empty = lambda *size, **options: room("meta")
        self.capture_error = capture_error
        self.sync_error = sync_error
        self.cuda = SimpleNamespace(
            Event=self._event, synchronize=self._synchronize, Stream=lambda: SimpleNamespace(wait_stream=nothing),
            stream=lambda stream: contextlib.nullcontext(), graph=self._graph,
            current_stream=lambda: SimpleNamespace(wait_stream=nothing),
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: self.stream.append("replay")),
        )  # fmt: skip

    def _event(self, enable_timing):
        event = SimpleNamespace(at_ms=0.0)

        def record():
            event.at_ms = self.now_ms
            self.stream.append("event")

        event.record = record
        event.elapsed_time = lambda end: end.at_ms - event.at_ms
        return event

    def _synchronize(self):
        self.stream.append("wait")
        if self.sync_error is not None:
            raise self.sync_error

    @contextlib.contextmanager
    def _graph(self, graph):
        if self.capture_error is not None:
            raise self.capture_error
        self.stream.append("begin")
        yield
        self.stream.append("end")

    def call(self):
        self.stream.append("call")
        self.now_ms += self.next_ms
        self.next_ms += 1.0


def nothing(*args):
    pass


def room(device, nbytes=1024):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def device(fake):
    """A device without its constructor, which asks the driver."""
    cuda = object.__new__(Cuda)
    cuda._torch = fake
    cuda._flush, cuda._drain = "larger than L2", "one number"
    fake.sum = lambda buffer, dim, out: fake.stream.append("flush")
    cuda._sensing = lambda: fake.stream.append("sensors") or Sensors(clock_hz=1e9)
    return cuda


def test_a_sample_restores_clears_the_cache_and_times_the_call_alone():
    fake = FakeTorch()
    samples, sensors = device(fake).samples(Ready(fake.call, lambda: fake.stream.append("restore")), 3, 1e9)
    one = ["restore", "flush", "event", "call", "event"]
    # the sensors are read while the GPU is at work
    assert fake.stream == [*one * SETTLING, "wait", *one * 3, "sensors", "wait"]
    assert samples == [(SETTLING + n) / 1e3 for n in (1, 2, 3)]  # ms -> s, the first ones dropped
    assert sensors.clock_hz == 1e9


def test_samples_are_queued_in_blocks_and_settle_once():
    fake = FakeTorch()
    samples, _ = device(fake).samples(Ready(fake.call, nothing), 2 * QUEUED + 1, 1e9)
    assert len(samples) == 2 * QUEUED + 1
    assert fake.stream.count("wait") == 1 + 3
    assert fake.stream.count("call") == SETTLING + 2 * QUEUED + 1


@pytest.mark.parametrize(("budget_s", "samples"), [(0.0, 1), (6.0, 1), (10.0, 3), (1e9, 50)])
def test_a_block_holds_no_more_slow_calls_than_its_budget(monkeypatch, budget_s, samples):
    """Calls of 2 s: the two that settle take 4 s of the budget."""
    fake = FakeTorch()
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("memwall.bench.cuda.time", SimpleNamespace(monotonic=lambda: clock.now))

    def slow():
        fake.call()
        clock.now += 2.0

    assert len(device(fake).samples(Ready(slow, nothing), 5 * QUEUED, budget_s)[0]) == samples


def test_steps_are_launched_plainly_and_their_flags_kept():
    """As the whole model is run: nothing is captured. The warm-up and settling take 1 to 5 ms each, then it counts."""
    fake = FakeTorch()
    cuda = device(fake)
    cuda._sensing = lambda: Sensors(flags=("throttled: power cap",))
    samples, flags = cuda.steps(fake.call, 3)
    assert samples == pytest.approx([(WARM_UP + SETTLING + n) / 1e3 for n in (1, 2, 3)])
    assert flags == ("throttled: power cap",)
    assert "begin" not in fake.stream and "replay" not in fake.stream


def test_a_call_is_warmed_up_restored_and_captured():
    fake = FakeTorch()
    ready = device(fake).ready(fake.call, lambda: fake.stream.append("restore"))
    assert fake.stream == [*["call"] * WARM_UP, "wait", "restore", "begin", "call", "end"]
    ready.call()
    assert fake.stream[-1] == "replay" and ready.note == ""


def test_what_cannot_be_captured_is_launched_and_says_so():
    fake = FakeTorch(capture_error=RuntimeError("operation not permitted when stream is capturing\nmore"))
    ready = device(fake).ready(fake.call, nothing)
    assert ready.call == fake.call
    assert ready.note == "no CUDA graph, plain launches: operation not permitted when stream is capturing"
    assert ready.refused


def test_a_broken_device_is_no_failed_capture():
    fake = FakeTorch(sync_error=RuntimeError("CUDA error: an illegal memory access"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device(fake).ready(fake.call, nothing)


def test_a_step_of_python_is_not_captured():
    fake = FakeTorch()
    ready = device(fake).ready(fake.call, nothing, graphed=False)
    assert ready.call == fake.call and "begin" not in fake.stream


def test_what_a_kernel_uploads_in_a_capture_waits_for_its_end():
    """A table made on the host within a capture: its place is there at once, its contents come behind the capture."""
    seen = []

    def run(column, seed=0):
        table = torch.tensor([column.numel(), 7]).to("meta")
        seen.append((table.device.type, torch.tensor([1.0]).to(torch.float64).dtype, len(copied)))
        return table

    copied = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uploads, "finish", lambda self: copied.extend(self._waiting))
        with capturing(room("meta")):
            made = put_off(run)(torch.ones(3), seed=1)
    assert seen == [("meta", torch.float64, 0)]
    ((place, source),) = copied
    assert place is made and (source.tolist(), place.dtype) == ([3, 7], torch.int64)


def test_an_upload_outside_of_a_capture_is_as_ever():
    with capturing(room("meta")):
        pass
    table = put_off(lambda t: t.to(torch.float64))(torch.tensor([2.0]))
    assert table.tolist() == [2.0]


def test_what_is_put_off_lies_in_memory_from_before_the_capture():
    """Memory allocated within a graph may be that of a tensor that the graph writes at each replay."""
    before, made = room("cpu"), []
    with capturing(before):
        put_off(lambda: made.extend(t.to("cpu", copy=True) for t in (torch.arange(5), torch.tensor(2.5))))()
    assert [t.tolist() for t in made] == [[0, 1, 2, 3, 4], 2.5]
    starts = [t.data_ptr() - before.data_ptr() for t in made]
    assert starts == [0, 256]
    with capturing(before), pytest.raises(RuntimeError, match="more than 1,024 bytes"):
        put_off(lambda: torch.ones(2000).to("cpu", copy=True))()


def test_a_graph_keeps_the_tensors_of_its_call():
    """What a call reads must live as long as its graph: the graph knows addresses alone."""
    fake = FakeTorch()
    tensor = torch.ones(3)
    gone = weakref.ref(tensor)
    ready = device(fake).ready(lambda given=tensor: fake.call() or given)
    del tensor
    gc.collect()
    assert gone() is not None
    del ready
    gc.collect()
    assert gone() is None


def test_no_limit_of_time_is_a_limit():
    """``memwall calibrate`` gives none."""
    fake = FakeTorch()
    assert len(device(fake).samples(Ready(fake.call), 25, float("inf"))[0]) == 25


def test_what_was_put_off_is_copied_also_where_the_capture_fails():
    places = []

    def capture():
        with capturing(room("cpu")):
            places.append(torch.zeros(2))
            _captures[0]._waiting.append((places[0], torch.tensor([3.0, 4.0])))
            raise RuntimeError("capture")

    with pytest.raises(RuntimeError, match="capture"):
        capture()
    assert places[0].tolist() == [3.0, 4.0] and not _captures
