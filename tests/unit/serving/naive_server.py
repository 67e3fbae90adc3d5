"""Continuous batching the slow way: one step after another, every context and block counted anew."""

import math
from dataclasses import dataclass


@dataclass
class Seq:
    arrival: float
    prompt: int
    generate: int
    cached: int = 0
    made: int = 0
    in_cache: int = 0
    wanted: int = 0
    first: float = -1.0
    end: float = -1.0


def blocks(steps, tokens):
    return steps.kv_bytes(math.ceil(tokens / 16) * 16)


def serve(steps, asked, policy, concurrency=None):
    """(TTFT, end) of each request by arrival order, the number of preemptions, and that of steps."""
    todo = [Seq(a.arrival_s or 0.0, a.prompt_tokens, a.generated_tokens, a.cached_tokens) for a in asked]
    everything = list(todo)
    room = steps.capacity_bytes - steps.weights_bytes - steps.reserved_bytes
    clients = len(todo) if concurrency is None else concurrency
    waiting, running, now, preempted, count = [], [], 0.0, 0, 0
    ahead, todo = todo[:clients], todo[clients:]
    for seq in everything:
        seq.wanted, seq.in_cache = seq.prompt, seq.cached

    def held(seq):
        tokens = seq.in_cache if seq.in_cache >= seq.wanted else seq.wanted
        return blocks(steps, tokens + 1)

    while ahead or waiting or running:
        if not (waiting or running):
            now = max(now, ahead[0].arrival)
        while ahead and ahead[0].arrival <= now:
            waiting.append(ahead.pop(0))
        fell = False
        while sum(map(held, running)) > room:
            seq = running.pop()
            seq.wanted, seq.in_cache = seq.prompt + seq.made, seq.cached
            waiting.insert(0, seq)
            preempted, fell = preempted + 1, True
        decodes = [s for s in running if s.in_cache >= s.wanted]
        budget = policy.token_budget - (len(decodes) if policy.mixed else 0)
        chunks = []
        for seq in running:
            if seq.in_cache < seq.wanted and budget > 0:
                chunks.append((seq, min(budget, seq.wanted - seq.in_cache)))
                budget -= chunks[-1][1]
        while not fell and (budget > 0 or not (policy.cut or chunks)) and waiting and len(running) < policy.max_batch:
            seq = waiting[0]
            left = seq.wanted - seq.in_cache
            if sum(map(held, running)) + blocks(steps, seq.wanted + 1) > room:
                break
            if not policy.cut and chunks and left > budget:
                break
            running.append(waiting.pop(0))
            chunks.append((seq, min(budget, left) if policy.cut else left))
            budget -= left
        if chunks and not policy.mixed:
            decodes = []
        prefills = [(new, seq.in_cache) for seq, new in chunks]
        batch = len(decodes)
        if not chunks and policy.captured:
            batch = next((size for size in policy.captured if size >= batch), batch)
        now += steps.step_s(batch, sum(s.in_cache for s in decodes), prefills)
        count += 1
        for seq in decodes:
            seq.in_cache, seq.made = seq.in_cache + 1, seq.made + 1
        for seq, new in chunks:
            seq.in_cache += new
            if seq.in_cache == seq.wanted:
                seq.made += 1
                seq.first = now if seq.first < 0 else seq.first
        for seq in [s for s in running if s.made >= s.generate]:
            running.remove(seq)
            seq.end = now
            if concurrency is not None and todo:
                todo[0].arrival = now
                ahead.append(todo.pop(0))
    return [(s.first - s.arrival, s.end) for s in everything], preempted, count
