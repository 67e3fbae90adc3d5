"""Budgets and regressions: limits held against profiles, with what moved them. See :mod:`memwall.gate.run`."""
