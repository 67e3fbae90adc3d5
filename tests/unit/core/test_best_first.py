"""Best-first search: the smallest values, found without evaluating all."""

import math
import random

from memwall.core.best_first import best_first


def searched(values, slack, top=1):
    """Bounds that are as far below the value as ``slack`` says, and the candidates whose value was asked for."""
    asked = []

    def value(each):
        asked.append(each)
        return values[each]

    found = best_first(range(len(values)), [("beaten", lambda each: values[each] - slack[each]), ("", value)], top)
    return found, asked


def test_a_candidate_whose_bound_is_above_the_best_is_not_evaluated():
    """Bounds 1, 4, 2 of values 3, 5, 6: the first comes up with 3 after 1; 2 is below 3, and 4 is not."""
    found, asked = searched([3.0, 5.0, 6.0], [2.0, 1.0, 4.0])
    assert (found.chosen, asked) == ((0,), [0, 2])
    assert found.evaluated == 2 and found.pruned == {"beaten": 1}


def test_what_is_out_is_counted_by_its_reason_and_an_endless_value_is_never_chosen():
    bounds = [("beaten", lambda each: "odd" if each % 2 else 1.0), ("", lambda each: math.inf if each < 4 else each)]
    found = best_first(range(6), bounds, top=6)
    assert found.chosen == (4,) and found.evaluated == 3 and found.pruned == {"odd": 3}


def test_the_first_of_equal_values_is_chosen():
    found, _ = searched([2.0, 1.0, 1.0], [0.0, 0.0, 0.0], top=2)
    assert found.chosen == (1, 2)


def test_the_smallest_are_those_of_all_values():
    dice = random.Random(3)
    for _ in range(50):
        values = [dice.random() + 1 for _ in range(40)]
        found, asked = searched(values, [dice.random() * 0.3 for _ in values], top=3)
        assert [values[each] for each in found.chosen] == sorted(values)[:3]
        assert len(asked) == found.evaluated and found.evaluated + sum(found.pruned.values()) == 40
