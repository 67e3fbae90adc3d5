"""Streams, by hand: what runs at the same time, what is exposed, and that the seconds add up."""

import pytest

from memwall.simulate.launch_queue import QueuedKernel
from memwall.simulate.streams import Lanes, Sides, Streamed, overlapped, overlapped_in_loop


def kernel(busy_s, *waits, stream=0, issue_s=0.0):
    return Streamed(QueuedKernel(issue_s, busy_s), stream, "", waits)


def message(busy_s, *waits, stream=1, link="nvlink", issue_s=0.0):
    return Streamed(QueuedKernel(issue_s, busy_s), stream, link, waits)


@pytest.mark.parametrize(("kernels", "waits", "hidden", "time_s"), [
    # 10 s of message under 4 s of a kernel that waits for nothing; the last one waits for the message
    ([kernel(3), message(10, 0), kernel(4), kernel(2, 1)], [0, 0, 0, 0], [0, 4, 0, 0], 15),
    # whole under a longer kernel
    ([kernel(3), message(10, 0), kernel(20), kernel(2, 1)], [0, 0, 0, 0], [0, 10, 0, 0], 25),
    # in the order of one stream nothing overlaps
    ([kernel(3), message(10, stream=0), kernel(4), message(1, 2)], [0, 0, 0, 0], [0, 0, 0, 0], 18),
    # nobody waits for it, and the step ends when it does
    ([kernel(3), message(10, 0), kernel(4)], [0, 0, 0], [0, 4, 0], 13),
    # one link carries one message at a time, two links two
    ([message(5), message(5, stream=2), kernel(1, 0, 1)], [0, 0, 0], [0, 0, 0], 11),
    ([message(5), message(5, stream=2, link="network"), kernel(1, 0, 1)], [0, 0, 0], [0, 5, 0], 6),
    # the GPU computes one kernel at a time, whatever the stream: that which is ready first
    ([kernel(3), kernel(4), kernel(2, stream=1)], [0, 0, 0], [0, 0, 0], 9),
    # the CPU comes late: 5 s until the first, 5 more until the message, which runs 2 s alone
    ([kernel(1, issue_s=5), message(2, 0, issue_s=5), kernel(1, 1, issue_s=1)], [5, 0, 4], [0, 0, 0], 13),
])  # fmt: skip
def test_by_hand(kernels, waits, hidden, time_s):
    found = overlapped(kernels)
    assert (list(found.waits), found.time_s) == (waits, time_s)
    charged = [
        step.step.busy_s + wait - hid for step, wait, hid in zip(kernels, found.waits, found.hidden, strict=True)
    ]
    assert sum(charged) == time_s
    if hidden != [0, 5, 0]:  # of two messages at once either may be the one that hides the other
        assert list(found.hidden) == hidden


@pytest.mark.parametrize(("needs", "message_s", "takes_s", "hidden_s"), [
    (Sides(8), 100, 10, 8),  # at 4/5 of the multiprocessors
    (Sides(8), 5, 9, 4),  # for 5 s, in which it does 4 s of its work, and costs the step 1 s; then alone
    (Sides(1, 8), 100, 16, 8),  # at half of the bandwidth
    (Sides(8, 1), 100, 10, 8),  # 1 s of traffic takes 2, which the multiprocessors' 10 hide
    (Sides(8, 6), 100, 12, 8),  # 6 s of traffic take 12, longer than the multiprocessors' 10
    (Sides(), 100, 8, 8),  # it needs nothing of what the message takes
])  # fmt: skip
def test_a_message_takes_multiprocessors_and_bandwidth(needs, message_s, takes_s, hidden_s):
    """A kernel of 8 s next to a message that takes a fifth of the multiprocessors and a half of the bandwidth."""
    beside = Streamed(QueuedKernel(0.0, message_s), 1, "nvlink", (), Sides(0.2, 0.5))
    found = overlapped([beside, Streamed(QueuedKernel(0.0, 8.0), sides=needs)])
    assert found.spans[1] == (0, pytest.approx(takes_s))
    assert (found.waits, found.hidden[0]) == ([0, 0], pytest.approx(hidden_s))
    assert found.time_s == pytest.approx(8 + message_s - hidden_s)  # the seconds add up


def test_messages_that_come_and_go_while_a_kernel_runs():
    """10 s of work; a message that takes a fifth from 1 to 6 s, another that takes three tenths from 2 to 4 s:
    1 s at the full rate, 1 at 0.8, 2 at 0.5, 2 at 0.8, then the 5.6 s that are left. It ends at 11.6 s."""
    kernels = [
        Streamed(QueuedKernel(1.0, 5.0), 1, "nvlink", (), Sides(0.2)),
        Streamed(QueuedKernel(1.0, 2.0), 2, "network", (), Sides(0.3)),
    ]
    found = overlapped([Streamed(QueuedKernel(0.0, 10.0), sides=Sides(10)), *kernels])
    assert found.spans == [(0, pytest.approx(11.6)), (1, 6), (2, 4)]
    # each is charged what it costs: the first 0.2 + 0.5 + 0.4, the second 0.5
    assert list(found.hidden) == [0, pytest.approx(5 - 1.1), pytest.approx(2 - 0.5)]


def test_a_copy_that_is_ready_goes_before_kernels_that_become_ready_later():
    """FSDP's copy of the next layer's shard, so that its message starts under this layer's first product."""
    kernels = [kernel(1), kernel(5), kernel(5), kernel(1, 0, stream=1), message(4, 3, stream=2), kernel(1, 4)]
    found = overlapped(kernels)
    assert (found.time_s, found.hidden[4]) == (13, 4)


def test_what_a_kernel_waits_for_is_charged_before_what_runs_beside_it():
    """A sum on NVLink that the next kernel needs, while a longer message is on the network."""
    kernels = [kernel(1), message(30, 0, stream=1, link="network"), kernel(2), message(4, 2, stream=2), kernel(40, 3)]
    found = overlapped(kernels)
    assert list(found.hidden) == [0, 30, 0, 0, 0]
    assert found.time_s == 1 + 2 + 4 + 40


def test_a_step_in_a_loop_is_that_of_the_cpu_where_it_is_slower():
    """Issued in 6 s, run in 4."""
    kernels = [kernel(1, issue_s=2), message(2, 0, issue_s=2), kernel(1, 1, issue_s=2)]
    assert overlapped_in_loop(kernels).time_s == 6
    fast = [each._replace(step=each.step._replace(issue_s=0.5)) for each in kernels]
    assert overlapped_in_loop(fast)[:3] == ([0.0] * 3, [0.0] * 3, 4)


def test_one_stream_is_the_launch_queue():
    found = Lanes([0] * 3, ()).run([QueuedKernel(5, 2), QueuedKernel(5, 20), QueuedKernel(5, 1)], [], lone=True)
    assert found[:3] == ([5, 3, 0], [0.0] * 3, 31)
